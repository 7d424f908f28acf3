"""Kill encodes, builds and changes of indexes at random moments, run each again, and compare with the undisturbed.

    python scripts/kill_test.py --kills 200 --seed 0            a table; exit status 1 if anything differed

Every operation is killed (SIGKILL) after a time drawn uniformly from what it took undisturbed. Then a reader must see
the state before or the state after it, whole; the same call is run again; and ids, texts, metadata, vectors bit for
bit, counts, search results and the names of all files must be those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--size", type=int, default=60, help="documents of an index (default: %(default)s)")
    options = parser.parse_args()

    import faiss
    import torch
    from kills import Trial
    from operations import operations
    from tqdm.auto import tqdm

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.disable(logging.WARNING)
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        named = enumerate(operations(options.size))
        trials = [Trial(operation, Path(scratch) / str(number)) for number, operation in named]
        counts = [Counter[str]() for _ in trials]
        for number in tqdm(range(options.kills), unit=" kills", disable=None):
            trial, count = trials[number % len(trials)], counts[number % len(trials)]
            delay = moments.uniform(0, trial.seconds)
            # An operation may be done a little sooner than it was undisturbed: that is another draw.
            while (outcome := trial.kill(delay=delay)).problem is None and not outcome.was_killed:
                delay = moments.uniform(0, trial.seconds)
            count.update(kills=1, after=outcome.saw_new_state, equal=outcome.problem is None)
            if outcome.problem is not None:
                print(f"{trial.operation.name}, killed after {delay:.4f} s: {outcome.problem}", file=sys.stderr)
    total = sum(counts, Counter[str]())
    print(f"{'operation':26} {'kills':>6} {'after':>6} {'equal':>6}")
    for name, count in [*((t.operation.name, c) for t, c in zip(trials, counts, strict=True)), ("all", total)]:
        print(f"{name:26} {count['kills']:6} {count['after']:6} {count['equal']:6}")
    return int(total["equal"] < options.kills)


if __name__ == "__main__":
    sys.exit(main())
