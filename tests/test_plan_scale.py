"""The plan of docs/SCALE.md, against numbers worked out by hand and against the files that faiss and SQLite write."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from st_reba.corpus.documents import Document
from st_reba.corpus.encode import SHARD_SIZE
from st_reba.corpus.store import DocumentStore
from st_reba.index.vectors.factory import auto_factory, make_index, sample_rows

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import plan_scale  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "SCALE.md"
GIVEN = ["--tokens", "10e9", "--texts", "50e6", "--tokens-per-second", "20000", "--gpus", "8", "--dimension", "1024"]


def plan(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert plan_scale.main([*GIVEN, *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_time_by_hand() -> None:
    """10 billion tokens twice and 10 more positions for each of 50 million texts, at 20,000 a second on 8 GPUs."""
    time = plan_scale.time_needed(
        tokens=10e9,
        texts=50e6,
        copies=2,
        overhead=10,
        per_second=20_000,
        gpus=8,
        shard_size=10_000,
        price=3,
        gathered_per_second=25_000,
    )
    assert time.positions == 20_500_000_000
    assert time.gpu_hours == pytest.approx(284.7222, abs=1e-4)  # 20.5e9 / 20,000 / 3,600
    assert time.shards == 5_000
    assert time.shard_seconds == pytest.approx(205)  # 410 positions a text × 10,000 / 20,000
    assert time.hours == pytest.approx(35.5903, abs=1e-4)  # 625 shards a GPU, each 205 s
    assert time.cost == pytest.approx(854.1667, abs=1e-4)  # 35.5903 × 8 × 3
    assert time.lost_gpu_hours == pytest.approx(0.45556, abs=1e-5)  # 8 × 205 s
    assert time.gather_hours == pytest.approx(0.55556, abs=1e-5)  # 2,000 s


def test_the_last_shards_leave_workers_idle() -> None:
    """9 shards on 8 GPUs take as long as 16, and all GPUs are paid for."""
    given: dict[str, Any] = {"tokens": 90_000, "texts": 900, "copies": 1, "overhead": 0, "per_second": 10, "price": 2}
    nine = plan_scale.time_needed(**given, gpus=8, shard_size=100)
    assert nine.shard_seconds == 1_000
    assert nine.hours == pytest.approx(2_000 / 3_600)
    assert nine.cost == pytest.approx(2_000 / 3_600 * 8 * 2)
    one = plan_scale.time_needed(**given, gpus=8, shard_size=5_000)
    assert one.shards == 1
    assert one.hours == pytest.approx(one.gpu_hours) == pytest.approx(2.5)
    assert one.lost_gpu_hours == pytest.approx(2.5), "only one of the eight has something to lose"


def test_shards_are_of_the_usual_size() -> None:
    assert plan_scale.build_parser().parse_args(GIVEN).shard_size == SHARD_SIZE


def test_nothing_is_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys)
    assert found["time"]["cost"] is None and found["time"]["gather_hours"] is None
    plan_scale.main(GIVEN)
    shown = capsys.readouterr().out
    assert "cost" not in shown and "not known: give --texts-per-second" in shown


def test_disk_by_hand() -> None:
    disk = plan_scale.disk_needed(50e6, 10e9, 4.5, 1024, "float16")
    assert disk.texts == 45_000_000_000 + 50_000_000 * 45
    assert disk.vectors == 102_400_000_000
    assert disk.total == 149_650_000_000
    assert plan_scale.disk_needed(50e6, 10e9, 4.5, 1024, "float32").vectors == 204_800_000_000


@pytest.mark.parametrize("length", [50, 200, 1000])
def test_documents_take_what_sqlite_takes(tmp_path: Path, length: int) -> None:
    with DocumentStore.create(tmp_path / "d.sqlite") as store:
        store.add_many(Document("x" * length, id=str(10_000_000 + row)) for row in range(5_000))
    disk = plan_scale.disk_needed(5_000, 5_000 * length / 4, 4, 8, "float32")
    assert disk.texts == pytest.approx((tmp_path / "d.sqlite").stat().st_size, rel=0.06)


@pytest.mark.parametrize("dimension", [32, 96])
@pytest.mark.parametrize(
    "name", ["Flat", "SQ8", "SQfp16", "HNSW32", "HNSW16,SQ8", "IVF32,Flat", "IVF32,SQ8", "IVF32,PQd/4"]
)
def test_index_takes_what_faiss_takes(name: str, dimension: int) -> None:
    count = 8_000
    vectors = np.random.default_rng(0).standard_normal((count, dimension), dtype=np.float32)
    needed = plan_scale.factory_needed(name, count, dimension)
    index = faiss.index_factory(dimension, needed.name, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        if hasattr(index, "pq"):
            index.pq.cp.niter, index.do_polysemous_training = 1, False
        index.train(vectors[:1_000])
    index.add(vectors)
    assert needed.vectors == pytest.approx(faiss.serialize_index(index).size, rel=0.005)


def test_cells_and_training() -> None:
    # 4 √50e6 = 28,284.3; 4 √1e9 = 126,491, which is over the most.
    assert (plan_scale.cells(1e6), plan_scale.cells(50e6), plan_scale.cells(1e9)) == (4_000, 28_285, 65_536)
    ivf = plan_scale.factory_needed("IVFx,PQd/4", 50e6, 1024)
    assert ivf.name == "IVF28285,PQ256"
    assert ivf.training == 2**32, "64 × 28,285 vectors would be 7.4 GB"
    assert ivf.vectors == 50_000_000 * (256 + 8) + 28_285 * 1024 * 4 + 256 * 1024 * 4
    assert plan_scale.factory_needed("IVF2000,Flat", 1e6, 8).training == 64 * 2_000 * 8 * 4
    assert plan_scale.factory_needed("IVF64,Flat", 1e6, 8).training == 65_536 * 8 * 4
    few = plan_scale.factory_needed("IVF64,Flat", 1_000, 8)
    assert few.training == 1_000 * 8 * 4, "there are no more vectors to train on"
    assert plan_scale.factory_needed("HNSW32", 50e6, 1024).training == 0


@pytest.mark.parametrize(("count", "dimension"), [(1_000_000, 64), (3_000_000, 4_096), (300_000, 8)])
def test_cells_and_training_are_those_of_an_index(count: int, dimension: int) -> None:
    name, _ = auto_factory(count, dimension)
    needed = plan_scale.factory_needed("IVFx," + name.partition(",")[2], count, dimension)
    assert needed.name == name
    rows = sample_rows(make_index(name, dimension), count, dimension, None, seed=0)
    assert needed.training == len(rows) * 4 * dimension


def test_hnsw_by_hand() -> None:
    """Sixteen links: 32 neighbours of 4 bytes at the bottom, 16/15 of one over it, 12 bytes of its own."""
    assert plan_scale.hnsw_bytes(16) == pytest.approx(128 + 4 * 16 / 15 + 12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--factory", "IVFx,PQ7"], "7 pieces, which do not divide dimension 1024"),
        (["--factory", "LSH"], "'LSH' is not known"),
        (["--factory", "OPQ16,Flat"], "'OPQ16,Flat' is not known"),
        (["--tokens", "0"], "0 is too few"),
        (["--gpus", "1.5"], "'1.5' is no whole number"),
        (["--price-per-gpu-hour", "-1"], "'-1' is no number from 0 on"),
        (["--tokens", "nan"], "'nan' is no number"),
    ],
)
def test_errors(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        plan_scale.main([*GIVEN, *given])
    assert said in capsys.readouterr().err


def test_sizes_for_people() -> None:
    sizes = (0, 1, 999, 1_000, 45e9, 1.5e12, 2e15)
    assert [plan_scale.human(size) for size in sizes] == ["0 B", "1 B", "999 B", "1 kB", "45 GB", "1.5 TB", "2 PB"]


def test_the_page_shows_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of the page stands before its output."""
    text = PAGE.read_text(encoding="utf-8")
    commands = list(re.finditer(r"^```sh\npython scripts/plan_scale\.py (.*)\n```\n", text, re.MULTILINE))
    assert len(commands) == 2
    for command in commands:
        assert plan_scale.main(command[1].split()) == 0
        assert text[command.end() :].startswith("\n" + capsys.readouterr().out + "\n")


def test_json_holds_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--price-per-gpu-hour", "2.5", "--factory", "Flat")
    assert found["disk"]["total"] == found["disk"]["texts"] + found["disk"]["vectors"]
    assert found["indexes"] == [{"name": "Flat", "vectors": 204_800_000_000, "training": 0, "bytes_per_vector": 4096.0}]
    assert found["time"]["cost"] == pytest.approx(found["time"]["hours"] * 8 * 2.5)
    # 3,052 shards of 16,384 texts of 400 positions, at 20,000 a second: 382 for the busiest of the 8.
    assert found["time"]["hours"] == pytest.approx(382 * 16_384 * 400 / 20_000 / 3_600)
