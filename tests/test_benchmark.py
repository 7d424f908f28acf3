"""The benchmark runs and writes what it measured; how fast that was is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "benchmark.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def test_smoke(tmp_path: Path) -> None:
    written = tmp_path / "out.json", tmp_path / "out.md"
    done = run("layers", "--smoke", "--json", written[0], "--markdown", written[1])
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(written[0].read_text(encoding="utf-8"))
    records = report["records"]
    variants = {record["variant"] for record in records}
    kinds = {"plain SDPA", "backward", "bidirectional", "nosink-forward", "nosink-bidirectional", "mask0&bidir"}
    assert kinds < variants
    for record in records:
        assert record["part"] == "layers" and record["seconds"]["median"] > 0
        assert record["ratio"]["min"] <= record["ratio"]["median"] <= record["ratio"]["max"]
    for variant in kinds:
        assert f"| {variant} |" in written[1].read_text(encoding="utf-8")


def test_mistakes_are_named(tmp_path: Path) -> None:
    for arguments, message in ((["layers", "--lengths", "0"], "0"), (["layers", "--model", "x"], "'x'"), ([], "part")):
        done = run(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
