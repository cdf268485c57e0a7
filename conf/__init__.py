"""The YAML values of privrl_bench. Installed as `privrl_bench.conf`."""
