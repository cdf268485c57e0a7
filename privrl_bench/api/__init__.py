"""What Python programs, notebooks and the commands use: run, plan, load and use policies."""
