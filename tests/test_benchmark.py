"""The benchmark runs, compares like with like, and judges rightly; how fast that was is nobody's business here."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import symmetrized_max

import st_reba

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from benchmarks import cli  # noqa: E402
from benchmarks.aims import Aim, judge  # noqa: E402
from benchmarks.batches import draw_lengths, make_batch, make_texts  # noqa: E402
from benchmarks.growth import grown, power_law, two_parts  # noqa: E402
from benchmarks.measuring import Meter, Record, Spread, Variant, fitting_rows, measure  # noqa: E402
from benchmarks.methods import LAST, RIVALS, aims_for, planned  # noqa: E402
from benchmarks.mistakes import WrongRival  # noqa: E402
from benchmarks.models import saved_model  # noqa: E402
from benchmarks.options import build_parser  # noqa: E402
from benchmarks.padding import padding_share  # noqa: E402
from benchmarks.pipelines import Loader, middle, plain_works, reba_works  # noqa: E402
from benchmarks.report import Report  # noqa: E402
from benchmarks.rivals import attention_bytes, check_equal, fuse_by_loops, fuse_stacked, rival_works  # noqa: E402

TEXTS = make_texts([7, 12, 1, 9], seed=1)
HEAD: dict[str, Any] = {
    "command": "python x",
    "name": "tiny-float32-cpu",
    "model": "tiny",
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "threads_chosen_by": "torch",
    "processors": 2,
    "clock": "wall",
    "rounds": 1,
    "case_limit": None,
    "seed": 0,
    "keeps_memory": True,
    "peak_memory": "VmHWM",
    "realistic": "",
    "versions": {"torch": "2"},
}


def started(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, SCRIPTS / "benchmark.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd)


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same command line in this process, which need not import everything once more; it is left as it was."""
    given, out, err = [str(each) for each in arguments], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        # For the whole of a process: `started` runs it.
        patch.setattr(cli, "keep_memory", lambda: True)
        try:
            status = cli.main(given)
        except SystemExit as error:
            status = int(error.code or 0)
        finally:
            gc.unfreeze()
    return subprocess.CompletedProcess(given, status, out.getvalue(), err.getvalue())


def record(variant: str, length: int, seconds: float, peak: int | None = 2**20, rows: int = 1, **other: Any) -> Record:
    case = {"length": length, "lengths": "uniform", "batch": "1", "batch_size": rows}
    spread = Spread(seconds, seconds, seconds)
    return Record("methods", case, variant, {}, 1, spread, Spread(1, 1, 1), 1.0, peak, 1.0, other.get("aims", []))


@pytest.mark.parametrize(
    ("arguments", "variants"),
    [
        (
            ["--smoke"],
            {"classical last", "PromptEOL", "Echo-2 mean", LAST, "ReBA-2 words", "NoSink mask0-bidir", *RIVALS},
        ),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (["--smoke", "--quick", "--end-to-end"], {LAST, "ReBA-2 words", *RIVALS}),
                (["long", "--smoke"], {"Echo-2 last again", LAST, "ReBA-2 mean", "ReBA chunked last"}),
                (
                    ["layers", "--smoke"],
                    {
                        "backward",
                        "bidirectional",
                        *("nosink-forward", "nosink-bidirectional"),
                        "mask0&bidir",
                        "not converted",
                    },
                ),
                (["depth", "--smoke"], {"all layers again", "layer 1", "layer 2", "layer 3", "mean of layers 1 to 2"}),
                (["padding", "--smoke"], {"32 texts a batch again", "256 tokens a batch"}),
            )
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value[0] != "--smoke" else None,
)
def test_smoke(tmp_path: Path, arguments: list[str], variants: set[str]) -> None:
    done = run(*arguments, "--json", "out.json", "--markdown", "out.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    markdown = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert variants < {each["variant"] for each in content["records"]}
    part = arguments[0] if not arguments[0].startswith("-") else "methods"
    for each in content["records"]:
        assert each["part"] == part and each["rounds"] == 2
        assert 0 < each["seconds"]["min"] <= each["seconds"]["median"] <= each["seconds"]["max"]
        assert each["ratio"]["min"] <= each["ratio"]["median"] <= each["ratio"]["max"]
    for variant in variants:
        assert f"| {variant} |" in markdown
    assert content["header"]["threads"] == 1 and content["header"]["threads_chosen_by"] == "--threads"
    assert done.stdout == markdown


def test_the_report_and_figures_come_from_a_file_alike(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    aims = [judge(Aim(1.05), LAST, "Echo-2 last", {LAST: [1.2]}, {})]
    lines = [record(name, n, n**p, aims=aims) for name, p in (("Echo-2 last", 1), (LAST, 2)) for n in (8, 16, 32)]
    made = Report(HEAD, ["output_attentions was left out"], lines)
    (tmp_path / "one.json").write_text(made.as_json(), encoding="utf-8")
    done = run("report", "one.json", "--markdown", "again.md", "--figures", "figures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "again.md").read_text(encoding="utf-8") == made.as_markdown()
    assert "- output_attentions was left out" in done.stdout and "### aims: 0 met, 6 missed" in done.stdout
    assert "| ReBA-2 last | 8, 16, 32 | 2.00 |" in done.stdout
    files = sorted((tmp_path / "figures").iterdir())
    assert [file.name.split("-")[3] for file in files] == ["memory", "time"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


@pytest.mark.slow
def test_only_some(tmp_path: Path) -> None:
    done = started("--smoke", "--only", "reba-2 last", "prompteol", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    records = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["records"]
    assert {each["variant"] for each in records} == {"Echo-2 last", "Echo-2 last again", "PromptEOL", LAST}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers", "--lengths", "0"], "0"),
        (["layers", "--model", "x"], "'x'"),
        (["--model", "x"], "'x'"),
        (["everything"], "'everything'"),
        (["--batch-size", "some"], "'some'"),
        (["--mix", "realistic", "--batch-size", "1"], "no mix of lengths"),
        (["--json", "nowhere/out.json"], "nowhere/out.json: no such folder"),
        (["--smoke", "--only", "rebate"], "--only rebate leaves nothing to measure"),
        (["padding", "--texts", "nothing.txt"], "nothing.txt: cannot be read"),
        (["report", "nothing.json"], "nothing.json"),
        (["report", str(SCRIPTS.parent / "st_reba" / "mini" / "config.json")], "not what --json writes"),
        (["--json", "."], "--json .: is a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rivals_give_rebas_vectors(dtype: str) -> None:
    with saved_model("tiny", 64) as folder, torch.inference_mode():
        loader = Loader(folder, dtype, "cpu", {})
        echo, *_ = plain_works(loader)
        works, model = reba_works(loader)
        rivals = rival_works(loader, model)
        wanted, other = (work.forward(TEXTS)() for work in (works[0], echo))
        assert [rival.name for rival in rivals] == list(RIVALS)
        for rival in rivals:
            for got in (rival.forward(TEXTS)(), rival.whole(TEXTS)()):
                check_equal(rival.name, got, wanted)
                if dtype == "float32":
                    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
            with pytest.raises(WrongRival, match=rival.name):
                check_equal(rival.name, -got, wanted)
        assert float((other - wanted).abs().max()) > 1e-3, "ReBA and Echo agree, so that the check sees nothing"
        with pytest.raises(WrongRival):
            check_equal("NaN", wanted * float("nan"), wanted)
        for work in works[:2]:
            torch.testing.assert_close(work.whole(TEXTS)().float(), work.forward(TEXTS)().float(), atol=1e-2, rtol=0)
        vectors = torch.as_tensor(works[2].whole(TEXTS)())
        torch.testing.assert_close(vectors, works[2].forward(TEXTS)().float(), atol=1e-2, rtol=0)


def test_both_fusions_are_the_reference() -> None:
    torch.manual_seed(0)
    attentions = [torch.rand(1, 3, 6, 6).tril() for _ in range(4)]
    wanted = symmetrized_max(torch.stack(attentions)[:, 0].double())
    for fuse in (fuse_stacked, fuse_by_loops):
        torch.testing.assert_close(fuse(attentions)[0].double(), wanted, atol=1e-6, rtol=0)


def test_a_text_has_as_many_tokens_as_numbers_and_all_models_share_weights() -> None:
    with saved_model("tiny", 64) as folder:
        loader = Loader(folder, "float32", "cpu", {})
        one, two = loader.build("reba"), loader.build("classical")
    assert [len(ids) for ids in one[0].content(TEXTS)["input_ids"]] == [7, 12, 1, 9]
    template = one[0].content(['This sentence: "', "你好 world"])["input_ids"]
    assert [len(ids) for ids in template] == [4, 3]
    pairs = zip(one[0].model.parameters(), two[0].model.parameters(), strict=True)
    assert all(first.data_ptr() == second.data_ptr() for first, second in pairs)
    # 3 layers, 4 heads, float32.
    assert attention_bytes(one[0], rows=2, length=10) == 3 * 4 * 2 * 100 * 4
    assert [middle(length) for length in (1, 2, 5)] == [(0, 1), (0, 2), (2, 4)]


def test_the_embedded_model_keeps_its_weights_and_gets_more_positions() -> None:
    with saved_model("mini", 4096) as folder:
        longer = st_reba.build(folder, "classical")
    assert longer[0].model.config.max_position_embeddings == 4096 == longer.max_seq_length
    wanted = st_reba.build("mini", "classical")[0].model.state_dict()
    for name, tensor in longer[0].model.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], atol=0, rtol=0)


def test_lengths_are_what_they_are_called() -> None:
    assert draw_lengths(32, "uniform", 3, seed=0) == [32] * 3
    lengths = draw_lengths(4096, "realistic", 4000, seed=0)
    assert lengths == draw_lengths(4096, "realistic", 4000, seed=0) and lengths[0] == max(lengths) == 4096
    long, short = lengths[::2], lengths[1::2]
    assert 750 < np.median(long) < 850 and 15 <= np.median(short) <= 17 and min(lengths) >= 4
    assert max(draw_lengths(2, "realistic", 8, seed=0)) == 2
    batch = make_batch(10, "right", 4, fill=0.2, seed=0)
    assert sorted(batch.features["attention_mask"].sum(dim=1).tolist()) == [2, 5, 7, 10] and batch.tokens == 24
    assert bool(batch.features["attention_mask"][:, 0].all())


def test_the_cases_of_a_grid() -> None:
    options = build_parser().parse_args(["methods", "--lengths", "8", "16", "--batch-size", "1", "fits", "4"])
    cases = [(case.length, case.mix, case.rows) for case in planned(options)]
    one = [("uniform", 1), ("uniform", None), ("uniform", 4), ("realistic", None), ("realistic", 4)]
    assert cases == [(length, *rest) for length in (8, 16) for rest in one]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_known_exponent_is_found(exponent: float) -> None:
    lengths = [32, 128, 512, 1024]
    assert power_law(lengths, [3e-5 * n**exponent for n in lengths]) == pytest.approx(exponent)
    # A batch of 4 takes 4 times as long: what is fitted is one text's time.
    found = grown([record("a", n, 3e-5 * n**exponent * (n // 8), peak=n**2 * (n // 8), rows=n // 8) for n in lengths])
    assert [each.exponent for each in found] == [pytest.approx(exponent)]
    assert found[0].memory_exponent == pytest.approx(2.0) and found[0].lengths == lengths


def test_both_parts_of_the_growth_are_found() -> None:
    lengths = [32, 128, 512, 1024]
    a, b, worst = two_parts(lengths, [2e-5 * n + 4e-8 * n**2 for n in lengths])
    assert (a, b) == (pytest.approx(2e-5), pytest.approx(4e-8)) and worst < 1e-9
    (found,) = grown([record("a", n, 2e-5 * n + 4e-8 * n**2) for n in lengths])
    assert found.crossover == pytest.approx(500)
    assert 1 < found.exponent < 2
    # Slower than linear: a negative square would be no cost.
    a, b, worst = two_parts(lengths, [n**0.5 for n in lengths])
    assert a > 0 and b == 0 and worst > 0.1
    assert two_parts(lengths, [n**3 for n in lengths])[0] == 0
    assert grown([record("a", 32, 1.0)]) == [], "one length shows no growth"
    assert grown([record("a", n, 1.0, peak=None) for n in lengths])[0].memory_exponent is None


RATIOS = {"ours": [1.0, 1.2, 1.1], "rival": [2.0, 3.6, 1.1], "base": [1.0, 1.0, 1.0]}
PEAKS: dict[str, int | None] = {"ours": 3 * 2**30, "rival": 9 * 2**30, "base": 2 * 2**30, "unknown": None}


@pytest.mark.parametrize(
    ("aim", "name", "value", "met", "text"),
    [
        (Aim(1.10), "ours", 1.1, True, "time ≤ 1.10: met"),
        (Aim(1.05), "ours", 1.1, False, "time ≤ 1.05: **missed**"),
        # Round by round 2, 3 and 1 times ours.
        (Aim(2.0, at_least=True, of="ours"), "rival", 2.0, True, "time ≥ 2.00 × ours: met (2.00)"),
        (Aim(2.1, at_least=True, of="ours"), "rival", 2.0, False, "time ≥ 2.10 × ours: **missed** (2.00)"),
        (Aim(3.0, "memory", at_least=True, of="ours"), "rival", 3.0, True, "memory ≥ 3.00 × ours: met (3.00)"),
        (Aim(1.4, "memory"), "ours", 1.5, False, "memory ≤ 1.40: **missed** (1.50)"),
        (Aim(2 * 2**30, "bytes"), "base", 2.0**31, True, "memory ≤ 2 GiB: met (2.00 GiB)"),
        (Aim(2 * 2**30, "bytes"), "ours", 3.0 * 2**30, False, "memory ≤ 2 GiB: **missed** (3.00 GiB)"),
        (Aim(2 * 2**30, "bytes"), "unknown", None, None, "memory ≤ 2 GiB: not measured"),
        (Aim(2.0, of="absent"), "ours", None, None, "time ≤ 2.00 × absent: not measured"),
        (Aim(2.0, "memory", of="unknown"), "ours", None, None, "memory ≤ 2.00 × unknown: not measured"),
    ],
)
def test_aims_are_met_or_missed(aim: Aim, name: str, value: float | None, met: bool | None, text: str) -> None:
    verdict = judge(aim, name, "base", RATIOS, PEAKS)
    assert verdict.value == (None if value is None else pytest.approx(value))
    assert verdict.met is met and str(verdict) == text


def test_aims_stand_where_they_were_set() -> None:
    bounds = {name: [aim.limit for aim in aims_for(name, 512)] for name in (LAST, "ReBA-2 mean", "ReBA-2 words")}
    # Time, then memory.
    assert bounds == {LAST: [1.05, 1.05], "ReBA-2 mean": [1.10, 1.05], "ReBA-2 words": [1.15, 1.05]}
    assert aims_for(LAST, 127) == () and aims_for("classical last", 512) == () == aims_for("output_attentions", 128)
    assert [(aim.measure, aim.limit, aim.of) for aim in aims_for("output_attentions", 512)] == [
        ("time", 2.0, LAST),
        ("memory", 3.0, LAST),
    ]


def ticking(monkeypatch: pytest.MonkeyPatch, costs: dict[str, Sequence[float]]) -> Callable[[str], Variant]:
    """Variants that take as long as they are told, run by run, on a clock of their own; the last cost stays."""
    now = [0.0]
    monkeypatch.setattr("benchmarks.measuring.CLOCKS", {"made": lambda: now[0]})
    left = {name: list(values) for name, values in costs.items()}

    def variant(name: str) -> Variant:
        def once() -> str:
            now[0] += left[name].pop(0) if len(left[name]) > 1 else left[name][0]
            return f"{name}'s"

        return Variant(name, lambda: once, [Aim(2.0)] if name != "base" else [])

    return variant


def test_a_ratio_is_to_the_neighbouring_runs_of_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    # After the warm-up, the baseline is three times slower around b than before a.
    make = ticking(monkeypatch, {"base": [9.0, 1.0, 3.0, 3.0], "a": [9.0, 4.0], "b": [9.0, 4.0]})
    seen: list[Any] = []
    meter = Meter("cpu", "made", rounds=1)
    base, a, b = measure("methods", {}, 8, make("base"), [make("a"), make("b")], meter, check=seen.append)
    assert seen == [{"base": "base's", "a": "a's", "b": "b's"}]
    assert (a.ratio.median, b.ratio.median, base.ratio.median) == (2.0, pytest.approx(4 / 3), 1.0)
    assert a.seconds.median == 4.0 and a.tokens_per_second == 2.0 and base.seconds == Spread(3.0, 1.0, 3.0)
    assert [verdict.met for verdict in (*a.aims, *b.aims)] == [True, True]
    assert Record.from_json(json.loads(json.dumps(a.as_json()))) == a


def test_a_case_ends_at_its_limit_but_has_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ticking(monkeypatch, {"base": [1.0], "a": [1.0]})
    (_, a) = measure("methods", {}, 8, make("base"), [make("a")], Meter("cpu", "made", rounds=50, limit=1e-9))
    assert a.rounds == 1


def test_a_killed_run_keeps_the_cases_it_had(tmp_path: Path) -> None:
    report = Report(HEAD, file=tmp_path / "out.json")
    for count, length in enumerate((8, 16), start=1):
        report.add([record("a", length, 1.0)])
        assert Report.read(tmp_path / "out.json").records == report.records and len(report.records) == count


def test_rows_that_fit_are_even_and_bounded() -> None:
    assert fitting_rows(lambda rows: lambda: None, seconds=100.0, most=8) == 8


def test_padding_is_counted() -> None:
    with saved_model("tiny", 64) as folder:
        model = Loader(folder, "float32", "cpu", {}).build("reba")
    # Sorted by length: 12 and 9, then 7 and 1, twice each.
    share, batches = padding_share(model, lambda: model.encode(make_texts([7, 12, 1, 9], seed=0), batch_size=2))
    assert batches == 2 and share == pytest.approx(1 - 58 / 76)
