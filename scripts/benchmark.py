"""Measure what st_reba costs; ``python scripts/benchmark.py --help`` says what there is."""

import sys

from benchmarks.cli import main

if __name__ == "__main__":
    sys.exit(main())
