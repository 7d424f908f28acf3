"""Templates drawn at random, and the runs of a curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

import st_reba
from st_reba.cli import main
from st_reba.evaluation.benchmark import TasksFailed
from st_reba.evaluation.benchmark.local import read_local
from st_reba.evaluation.methods import Base, Method, read_methods
from st_reba.evaluation.results import Results, read_results
from st_reba.evaluation.sweeps import sample_templates, sweep_prompts, sweep_repeats, sweep_tokens

METHODS = ("classical", "nosink", "echo", "reba", "prompteol")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("method", METHODS)
def test_templates_have_their_methods_structure(method: str, language: str) -> None:
    templates = sample_templates(method, 40, language=language)
    assert len(set(templates)) == 40
    copies = 2 if method in ("echo", "reba") else 1
    for template in templates:
        assert template.count("{text}") == copies
        assert not template.startswith("{text}")
        # PromptEOL asks behind the text, which all others end with.
        assert template.endswith("{text}") == (method != "prompteol")
        assert "  " not in template
        chinese = any("一" <= letter <= "鿿" for letter in template)
        assert chinese == (language == "zh")


def test_draws_depend_on_the_seed_and_not_on_the_count() -> None:
    first = sample_templates("echo", 5, seed=1)
    assert sample_templates("echo", 20, seed=1)[:5] == first
    assert sample_templates("echo", 5, seed=2) != first
    # Written down once: other versions of anything must draw these.
    fixed = [
        "REPEAT THE SENTENCE, a) {text}, ANSWER b) {text}",
        "REPEAT THE PROMPT, QUERY a) {text}, ANSWER b) {text}",
    ]
    assert sample_templates("echo", 2) == fixed


def test_methods_that_are_compared_share_their_templates() -> None:
    assert sample_templates("echo", 9, seed=3) == sample_templates("reba", 9, seed=3)
    assert sample_templates("classical", 9, seed=3) == sample_templates("nosink", 9, seed=3)


def test_every_part_is_drawn() -> None:
    templates = "".join(sample_templates("echo", 300))
    for part in (
        "Repeat",
        "REWRITE",
        "Rephrase",
        "Fill In The Blank",
        "the query",
        "::",
        "\n",
        "(B)",
        "Response",
        "Prompt",
    ):
        assert part in templates


@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_copies(repeats: int) -> None:
    assert all(each.count("{text}") == repeats for each in sample_templates("reba", 10, repeats=repeats))


@pytest.mark.parametrize("method", METHODS)
def test_models_are_built_with_them(method: str) -> None:
    for template in sample_templates(method, 3, language="zh", seed=4):
        options = {"setting": "mask0-bidir", "k": 2} if method == "nosink" else {}
        model = st_reba.build("mini", method, template=template, **options)  # type: ignore[arg-type]
        assert model.encode("天气很好").shape == (192,)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "pooled"}, "method='pooled' takes no template"),
        ({"language": "fr"}, "language='fr' is not known"),
        ({"count": 0}, "count=0 must be a whole number from 1 on"),
        ({"repeats": 0}, "repeats=0 must be"),
        ({"method": "classical", "language": "zh", "count": 100_000}, "there are only about"),
    ],
)
def test_what_cannot_be_drawn_is_named(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        sample_templates(**{"method": "echo", "count": 2, **change})  # type: ignore[arg-type]


PAIRS = [
    ("天气很好", "天气不错", 4),
    ("他在银行取钱", "今天下雨", 0),
    ("我们去公园散步", "他们在公园里走", 3),
    ("猫在睡觉", "狗在睡觉", 2),
    ("她喜欢唱歌", "她爱唱歌", 5),
    ("火车晚点了", "飞机起飞了", 1),
] * 3


@pytest.fixture
def task(tmp_path: Path) -> list[Any]:
    path = tmp_path / "some-pairs.tsv"
    rows = ["text1\ttext2\tscore", *(f"{a}{n}\t{b}{n}\t{score}" for n, (a, b, score) in enumerate(PAIRS))]
    path.write_text("\n".join(rows), encoding="utf-8")
    return read_local(f"STS={path}")


@pytest.mark.slow
def test_budgets_are_points_of_one_curve(task: list[Any], tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    methods = read_methods("classical:pooling=mean,echo:pooling=mean")
    found = sweep_tokens(Base("mini"), methods, task, results, [6, 12])
    assert [(each.method, each.settings["max_tokens"]) for each in found] == [
        ("classical mean", 6),
        ("echo-2 mean", 6),
        ("classical mean", 12),
        ("echo-2 mean", 12),
    ]
    # Each point is what a model of that length gives.
    for each, repeats in zip(found, (1, 2, 1, 2), strict=True):
        name = "classical" if repeats == 1 else "echo"
        model = st_reba.build("mini", name, pooling="mean", max_seq_length=each.settings["max_tokens"])
        assert each.scores["cosine_spearman"] == pytest.approx(spearman(model), abs=1e-4)
    assert len({each.scores["cosine_pearson"] for each in found}) == 4
    wide = sweep_tokens(Base("mini"), methods, task, results, [6], of="content")
    assert wide[1].settings == {"max_tokens": 6, "budget": "content"}
    assert wide[1].scores["cosine_spearman"] == pytest.approx(
        spearman(st_reba.build("mini", "echo", pooling="mean", max_seq_length=13)), abs=1e-4
    )


@pytest.mark.slow
def test_only_methods_that_repeat_have_points(task: list[Any], tmp_path: Path) -> None:
    methods = read_methods("classical,echo,reba")
    found = sweep_repeats(Base("mini"), methods, task, Results(tmp_path / "out"), [1, 3])
    assert [each.method for each in found] == [
        "classical last",
        "echo-1 last",
        "echo-3 last",
        "reba-1 last",
        "reba-3 last",
    ]
    assert found[0].scores["cosine_spearman"] == pytest.approx(found[1].scores["cosine_spearman"], abs=1e-6)


@pytest.mark.slow
def test_templates_are_points(task: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path / "out")
    methods = read_methods("prompteol,reba:pooling=mean")
    found = sweep_prompts(Base("mini"), methods, task, results, 2, seed=5, language="zh")
    assert [each.method for each in found] == ["prompteol last"] * 2 + ["reba-2 mean"] * 2
    assert [each.settings["prompt_number"] for each in found] == [1, 2, 1, 2]
    assert [each.settings["prompt"] for each in found[2:]] == sample_templates("reba", 2, seed=5, language="zh")
    model = st_reba.build("mini", "reba", pooling="mean", template=found[3].settings["prompt"])
    assert found[3].scores["cosine_spearman"] == pytest.approx(spearman(model), abs=1e-4)
    # A second time everything is there, and more points are added to it.
    monkeypatch.setattr(Method, "build", None)
    assert sweep_prompts(Base("mini"), methods, task, results, 2, seed=5, language="zh") == found


def test_what_fails_does_not_lose_the_other_points(task: list[Any], tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    # PromptEOL's own words take more than three positions.
    with pytest.raises(TasksFailed, match="max_seq_length=3") as caught:
        sweep_tokens(Base("mini"), read_methods("prompteol,classical"), task, results, [3, 40])
    assert [each.method for each in caught.value.results] == ["classical last", "prompteol last", "classical last"]
    assert len(results.all()) == 3


@pytest.mark.parametrize("values", [[], [0], [True], [1.5]])
def test_points_that_are_none(values: list[Any], task: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be whole numbers from 1 on"):
        sweep_tokens(Base("mini"), read_methods("echo"), task, Results(tmp_path / "out"), values)
    assert not read_results(tmp_path / "out")


def spearman(model: Any) -> float:
    first = model.encode([f"{a}{n}" for n, (a, _, _) in enumerate(PAIRS)])
    second = model.encode([f"{b}{n}" for n, (_, b, _) in enumerate(PAIRS)])
    return float(spearmanr((first * second).sum(axis=1), [score for _, _, score in PAIRS]).statistic)


def test_the_command(task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--model", "mini", "--out", str(tmp_path / "out")]
    tasks = ["--tasks", f"STS={tmp_path / 'some-pairs.tsv'}"]
    assert main(["evaluate", "sweep", "repeats", "1", "2", "--methods", "echo", "--json", *tasks, *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in shown] == ["echo-1 last", "echo-2 last"]
    # A single evaluation of the same takes what the curve has.
    assert main(["evaluate", "mteb", "--methods", "echo-1", "--json", *tasks, *where]) == 0
    assert json.loads(capsys.readouterr().out) == shown[:1]
    # A budget that holds no text fails; the other point is shown.
    assert main(["evaluate", "sweep", "tokens", "3", "40", "--methods", "prompteol", *tasks, *where]) == 1
    out, errors = capsys.readouterr()
    assert "max_tokens 40" in out and "max_seq_length=3" in errors and "1 failed" in errors
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "figures" / "STS-main-repeats-mini.png").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tokens", "8", "--max-tokens", "9"], "--max-tokens 9: tokens are what changes here"),
        (["prompts", "8", "9"], "prompts 8 9: give one number"),
        (["tokens", "8", "--language", "zh"], "--language zh: only prompts have one"),
        (["tokens", "8", "--methods", "mean"], "'mean' is not known"),
        (["tokens", "8", "--methods", "echo,echo-2"], "'echo-2 last' stands twice"),
    ],
)
def test_commands_that_cannot_be_run(
    words: list[str], told: str, task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--tasks", f"STS={tmp_path / 'some-pairs.tsv'}", "--model", "mini", "--out", str(tmp_path / "out")]
    assert main(["evaluate", "sweep", *words, *where]) == 2
    assert told in capsys.readouterr().err
