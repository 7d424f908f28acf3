"""Plan the encoding of a large corpus: hours, cost, disk and memory, from a rate that was measured on its own hardware.

    python scripts/plan_scale.py --tokens 10e9 --texts 50e6 --tokens-per-second RATE --gpus 8 --dimension 1024

RATE is what `st-reba encode-corpus … --json` told of a sample of the corpus on one of the GPUs. docs/SCALE.md says how.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any

BYTES = {"float32": 4, "float16": 2}
FACTORIES = ("Flat", "HNSW32", "IVFx,Flat", "IVFx,SQ8", "IVFx,PQd/4")

# What SQLite adds to a document's text: row, id (stored once more in its index) and empty metadata.
DOCUMENT_BYTES = 45
# faiss: a label in an inverted list, a neighbour, and what HNSW keeps of a vector beside its neighbours.
LABEL_BYTES = 8
NEIGHBOUR_BYTES = 4
HNSW_VECTOR_BYTES = 12
# As `st-reba index` chooses and trains: cells at most, vectors a cell, vectors at least, bytes at most.
MOST_CELLS = 65_536
TRAINING_A_CELL = 64
LEAST_TRAINING = 65_536
TRAINING_BYTES = 2**32


@dataclass(frozen=True)
class Time:
    """Time of encoding: of all workers together, and what one worker's death can cost."""

    positions: int
    gpu_hours: float
    hours: float
    cost: float | None
    shards: int
    shard_seconds: float
    lost_gpu_hours: float
    gather_hours: float | None


@dataclass(frozen=True)
class Disk:
    """Bytes of an encoded corpus."""

    texts: int
    vectors: int

    @property
    def total(self) -> int:
        """Both."""
        return self.texts + self.vectors


@dataclass(frozen=True)
class Factory:
    """Bytes of an index by a faiss factory string: on disk, and in memory once it is read whole."""

    name: str
    vectors: int
    training: int


def positions(tokens: float, texts: float, copies: int, overhead: float) -> int:
    """Positions that the model runs: every copy of every token, and what stands around the copies of each text."""
    return round(tokens * copies + texts * overhead)


def gpu_hours(count: float, per_second: float) -> float:
    """Hours of one GPU for so many positions."""
    return count / per_second / 3600


def shard_count(texts: float, shard_size: int) -> int:
    """Shards of a corpus."""
    return math.ceil(texts / shard_size)


def time_needed(
    *,
    tokens: float,
    texts: float,
    copies: int,
    overhead: float,
    per_second: float,
    gpus: int,
    shard_size: int,
    price: float | None = None,
    gathered_per_second: float | None = None,
) -> Time:
    """Hours and cost of encoding.

    Args:
        tokens: Tokens of the texts, each once.
        texts: Their number.
        copies: How often the method repeats a text.
        overhead: Positions of a text beside its copies: template, prompt, special tokens.
        per_second: Positions a second of one GPU.
        gpus: Workers, one a GPU.
        shard_size: Texts a shard.
        price: Of a GPU for an hour.
        gathered_per_second: Texts a second that one process reads and stores; None: not measured.
    """
    count = positions(tokens, texts, copies, overhead)
    shards = shard_count(texts, shard_size)
    in_all = gpu_hours(count, per_second)
    shard_seconds = count / texts * min(shard_size, texts) / per_second
    # The last round of shards may leave all workers but one idle: hours are whole shards for the busiest worker.
    hours = min(math.ceil(shards / gpus) * shard_seconds / 3600, in_all)
    busy = min(gpus, shards)
    return Time(
        positions=count,
        gpu_hours=in_all,
        hours=hours,
        # Paid for until the last is done, idle or not.
        cost=None if price is None else hours * gpus * price,
        shards=shards,
        shard_seconds=shard_seconds,
        lost_gpu_hours=busy * shard_seconds / 3600,
        gather_hours=None if gathered_per_second is None else texts / gathered_per_second / 3600,
    )


def disk_needed(texts: float, tokens: float, bytes_per_token: float, dimension: int, dtype: str) -> Disk:
    """Bytes of the shards: SQLite files and .npy files."""
    return Disk(round(tokens * bytes_per_token + texts * DOCUMENT_BYTES), round(texts * dimension * BYTES[dtype]))


def cells(texts: float) -> int:
    """Cells of an inverted file: four times the square root of the vectors."""
    return min(math.ceil(4 * math.sqrt(texts)), MOST_CELLS)


def training_bytes(count: int, texts: float, dimension: int) -> int:
    """Bytes of the sample that so many cells are trained on."""
    wanted = max(TRAINING_A_CELL * count, LEAST_TRAINING)
    fitting = max(min(wanted, TRAINING_BYTES // (4 * dimension)), count)
    return round(min(texts, fitting)) * 4 * dimension


def hnsw_bytes(links: int) -> float:
    """What HNSW keeps of a vector beside its values: 2 M neighbours at the bottom, M on each level over it.

    One vector in M reaches the first level over the bottom, one in M² the second, and so on: 1 / (M − 1) in all.
    """
    return NEIGHBOUR_BYTES * (2 * links + links / (links - 1)) + HNSW_VECTOR_BYTES


def code_bytes(code: str, dimension: int) -> tuple[int, int]:
    """Bytes of one vector's code, and of the tables that decode it, by the last part of a factory string."""
    if code == "Flat":
        return 4 * dimension, 0
    if code == "SQ8":
        return dimension, 2 * 4 * dimension
    if code == "SQfp16":
        return 2 * dimension, 0
    found = re.fullmatch(r"PQ(\d+)(?:x8)?", code)
    if found is None:
        raise ValueError(f"the code {code!r} is not known: choose Flat, SQ8, SQfp16, PQ16 or another number, or PQd/4")
    pieces = int(found[1])
    if pieces < 1 or dimension % pieces:
        raise ValueError(f"{code!r} cuts a vector into {pieces} pieces, which do not divide dimension {dimension}")
    return pieces, 256 * 4 * dimension


def factory_needed(name: str, texts: float, dimension: int) -> Factory:
    """Bytes of an index.

    Args:
        name: A factory string; ``x`` stands for the cells that suit the number of texts, ``d/4`` for a quarter of the
            dimension.
        texts: Vectors.
        dimension: Of a vector.

    Returns:
        Its name, filled in, and its bytes.

    Raises:
        ValueError: It is none of the kinds that are known here.
    """
    count = cells(texts)
    full = name.replace("IVFx", f"IVF{count}").replace("PQd/", f"PQ{dimension}/")
    full = re.sub(r"PQ(\d+)/(\d+)", lambda found: f"PQ{int(found[1]) // int(found[2])}", full)
    first, _, code = full.partition(",")
    a_vector, tables, training = 0.0, 0, 0
    if found := re.fullmatch(r"HNSW(\d+)", first):
        a_vector, code = hnsw_bytes(int(found[1])), code or "Flat"
    elif found := re.fullmatch(r"IVF(\d+)", first):
        a_vector, tables = LABEL_BYTES, int(found[1]) * 4 * dimension
        training = training_bytes(int(found[1]), texts, dimension)
    elif not code:
        code = first
    else:
        raise ValueError(f"--factory {name!r} is not known: give one as {', '.join(FACTORIES)}")
    of_code, of_tables = code_bytes(code, dimension)
    return Factory(full, round(texts * (a_vector + of_code) + tables + of_tables), training)


def human(count: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count >= 1 else "0 B"
        count /= 1000
    return f"{count:.3g} PB"


def report(options: argparse.Namespace, time: Time, disk: Disk, factories: list[Factory]) -> str:
    """The plan as text and two Markdown tables."""
    per_text = time.positions / options.texts
    lines = [
        f"{time.positions:,} positions: {options.tokens:,.0f} tokens × {options.copies} copies + {options.texts:,.0f} "
        f"texts × {options.overhead:g}; {per_text:,.1f} a text",
        "",
        "| encoding | |",
        "|---|--:|",
        f"| GPU-hours of work at {options.tokens_per_second:,.0f} positions a second | {time.gpu_hours:,.1f} |",
        f"| hours on {options.gpus} GPUs | {time.hours:,.1f} |",
    ]
    if time.cost is not None:
        lines.append(f"| cost at {options.price_per_gpu_hour:g} a GPU-hour | {time.cost:,.0f} |")
    gathering = "not known: give --texts-per-second" if time.gather_hours is None else f"{time.gather_hours:,.1f}"
    lines += [
        f"| hours of gathering before it, one process | {gathering} |",
        f"| shards of {options.shard_size:,} texts | {time.shards:,} |",
        f"| seconds of one GPU a shard: what one worker's death loses at most | {time.shard_seconds:,.0f} |",
        f"| GPU-hours lost at most if all workers die at once | {time.lost_gpu_hours:,.2f} |",
        f"| disk: texts, ids (SQLite) | {human(disk.texts)} |",
        f"| disk: vectors (.npy, {options.dtype}) | {human(disk.vectors)} |",
        f"| a shard on disk | {human(disk.total / time.shards)} |",
        "",
        "| index | bytes a vector | on disk, and in memory | training sample |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {each.name} | {each.vectors / options.texts:,.1f} | {human(each.vectors)} | "
        f"{human(each.training) if each.training else '–'} |"
        for each in factories
    ]
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        epilog="example:\n  python scripts/plan_scale.py --tokens 10e9 --texts 50e6 --tokens-per-second 20000 --gpus 8 "
        "--dimension 1024 --dtype float16\n\nThe rate is to be measured: docs/SCALE.md says how.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--tokens", type=_number, required=True, metavar="N", help="tokens of all texts, each once: 10e9")
    add("--texts", type=_whole, required=True, metavar="N", help="texts: 50e6")
    add(
        "--tokens-per-second",
        type=_number,
        required=True,
        metavar="RATE",
        help="positions a second of one GPU, all copies counted, as measured with this model on these texts",
    )
    add("--gpus", type=_whole, required=True, metavar="N", help="workers, one a GPU")
    add("--dimension", type=_whole, required=True, metavar="D", help="of a vector")
    add("--dtype", choices=sorted(BYTES), default="float32", help="of the stored vectors (default: %(default)s)")
    add("--copies", type=_whole, default=2, metavar="K", help="copies of a text (default: %(default)s; 1: once)")
    add(
        "--overhead",
        type=_amount,
        default=0.0,
        metavar="N",
        help="positions of a text beside its copies: template, prompt, special tokens (default: 0)",
    )
    add(
        "--bytes-per-token",
        type=_number,
        default=4.0,
        metavar="N",
        help="bytes of UTF-8 text a token, an assumption that is to be measured (default: %(default)s)",
    )
    add("--shard-size", type=_whole, default=16_384, metavar="N", help="texts a shard (default: %(default)s)")
    add("--texts-per-second", type=_number, metavar="N", help="texts a second that gathering reads, as measured")
    add("--price-per-gpu-hour", type=_amount, metavar="P", help="in any currency")
    add(
        "--factory",
        action="append",
        metavar="F",
        help=f"of the index; x: cells that suit, d/4: a quarter of D; again for more (default: {' '.join(FACTORIES)})",
    )
    add("--json", action="store_true", help="one JSON object, bytes and hours unrounded")
    return parser


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on: write it as 20000 or 10e9")
    return value


def _number(text: str) -> float:
    value = _amount(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 is too few: give a number over it")
    return value


def _whole(text: str) -> int:
    value = _number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: write it as 8 or 50e6")
    return int(value)


def main(arguments: list[str] | None = None) -> int:
    """Print the plan."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    time = time_needed(
        tokens=options.tokens,
        texts=options.texts,
        copies=options.copies,
        overhead=options.overhead,
        per_second=options.tokens_per_second,
        gpus=options.gpus,
        shard_size=options.shard_size,
        price=options.price_per_gpu_hour,
        gathered_per_second=options.texts_per_second,
    )
    disk = disk_needed(options.texts, options.tokens, options.bytes_per_token, options.dimension, options.dtype)
    try:
        factories = [factory_needed(each, options.texts, options.dimension) for each in options.factory or FACTORIES]
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        plan: dict[str, Any] = {
            "time": asdict(time),
            "disk": {**asdict(disk), "total": disk.total},
            "indexes": [{**asdict(each), "bytes_per_vector": each.vectors / options.texts} for each in factories],
        }
        print(json.dumps(plan, indent=2))
    else:
        print(report(options, time, disk, factories))
    return 0


if __name__ == "__main__":
    sys.exit(main())
