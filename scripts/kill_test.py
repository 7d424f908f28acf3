"""Kill encodes, builds and changes of indexes at random moments, run each again, and compare with the undisturbed.

    python scripts/kill_test.py --kills 200 --seed 0

It prints a table; its exit status is 1 if anything differed.

Every operation is killed (SIGKILL) after a time drawn uniformly from what it took undisturbed. Then
a reader must see the state before or the state after it, whole; the same call is run again; and
ids, texts, metadata, vectors bit for bit, counts, search results and the names of all files must be
those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

if TYPE_CHECKING:
    from kills import Trial


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the moments (default: %(default)s)",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=60,
        help="documents of an index (default: %(default)s)",
    )
    return parser.parse_args()


def kill(trial: Trial, random_moments: random.Random) -> Counter[str]:
    """Kill an operation at a random moment; counts of what came of it."""
    while True:
        delay = random_moments.uniform(0, trial.seconds)
        outcome = trial.kill(delay=delay)
        # An operation may be done a little sooner than it was undisturbed: that is another draw.
        if outcome.was_killed or outcome.problem is not None:
            break
    if outcome.problem is not None:
        print(
            f"{trial.operation.name}, killed after {delay:.4f} s: {outcome.problem}",
            file=sys.stderr,
        )
    return Counter(kills=1, after=int(outcome.saw_new_state), equal=int(outcome.problem is None))


def print_table(counts: dict[str, Counter[str]]) -> None:
    print(f"{'operation':26} {'kills':>6} {'after':>6} {'equal':>6}")
    for name, count in counts.items():
        print(f"{name:26} {count['kills']:6} {count['after']:6} {count['equal']:6}")


def main() -> int:
    options = parse_options()

    import faiss
    import torch
    from kills import Trial
    from operations import operations
    from tqdm.auto import tqdm

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.disable(logging.WARNING)
    random_moments = random.Random(options.seed)
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        trials: list[Trial] = []
        for index, operation in enumerate(operations(options.size)):
            trials.append(Trial(operation, Path(scratch) / str(index)))
            counts[operation.name] = Counter()
        for kill_index in tqdm(range(options.kills), unit=" kills", disable=None):
            trial = trials[kill_index % len(trials)]
            counts[trial.operation.name].update(kill(trial, random_moments))
    total = sum(counts.values(), Counter[str]())
    print_table(counts | {"all": total})
    return int(total["equal"] < options.kills)


if __name__ == "__main__":
    sys.exit(main())
