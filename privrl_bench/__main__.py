"""`python -m privrl_bench` is `privrl-bench`."""

from privrl_bench.cli.train import main

if __name__ == "__main__":
    main()
