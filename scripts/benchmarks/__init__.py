"""What scripts/benchmark.py runs: one file an idea, `cli.py` on top."""
