"""The papers' numbers: as data that agree with themselves, and beside results of the same base and method."""

import configparser
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from reporting_results import GPT2, method, parsed, result, write

import st_reba
from st_reba import zoo
from st_reba.evaluation import papers
from st_reba.evaluation.items import Classes
from st_reba.evaluation.methods import name_of
from st_reba.evaluation.mteb_tasks import find_tasks, suites
from st_reba.evaluation.papers import (
    _KINDS,
    _METRICS,
    _SUITES,
    _TASKS,
    PaperRow,
    PaperScore,
    averaged_over,
    metric_names,
    paper_rows,
    paper_scores,
    task_name,
)
from st_reba.evaluation.report import make_report
from st_reba.modules.layout import TEMPLATES

SCORES = paper_scores()
FILE = yaml.safe_load(Path(papers.__file__).with_name("papers.yaml").read_text(encoding="utf-8"))
_ALIKE = ("classification", "clustering", "pair classification", "reranking", "retrieval", "STS")
SIZES = {
    "MTEB": {**dict(zip(_ALIKE, (12, 11, 3, 4, 15, 10), strict=True)), "summarization": 1},
    "C-MTEB": dict(zip(_ALIKE, (6, 4, 2, 4, 8, 7), strict=True)),
}


def columns() -> dict[tuple[Any, ...], dict[tuple[str, str], PaperScore]]:
    """By paper, base and method: the numbers, of all tables."""
    found: dict[tuple[Any, ...], dict[tuple[str, str], PaperScore]] = {}
    for each in SCORES:
        key = (each.paper, each.table, each.base, each.method, each.fine_tuned)
        found.setdefault(key, {})[each.task, each.metric] = each
    return found


# The data


def test_the__file__is_well_formed_and_packed() -> None:
    assert list(FILE) == ["averages", "rows"]
    bases = {zoo.load(name).base for name in zoo.names()}
    for row in FILE["rows"]:
        keys = ("paper", "table", "base", "fine_tuned", "arguments", "scores", "disputed", "note")
        assert list(row) == [key for key in keys if key in row]
        assert row["base"] in bases or row["base"] == "BAAI/bge-m3"
        template = row["arguments"].get("template", "echo")
        assert name_of(row["arguments"]) and template in TEMPLATES
        assert set(row.get("disputed", {})) <= {task for scores in row["scores"].values() for task in scores}
    setup = configparser.ConfigParser()
    root = Path(st_reba.__file__).parent
    setup.read(root.parent / "setup.cfg")
    packed = {path for each in setup["options.package_data"]["st_reba"].split() for path in root.glob(each)}
    assert {root / "evaluation" / name for name in ("papers.yaml", "suites.yaml", "prompts/echo.yaml")} <= packed


def test_recipes_are_not_repeated() -> None:
    from_zoo = [
        (recipe.about.paper, score["table"], recipe.base, score["task"], score["metric"], score["value"])
        for recipe in map(zoo.load, zoo.names())
        for score in recipe.about.scores
    ]
    assert len(from_zoo) > 300
    assert [(s.paper, s.table, s.base, s.task, s.metric, s.printed) for s in SCORES[: len(from_zoo)]] == from_zoo
    # One number a paper, table, base, method, task and metric.
    keys = [(s.paper, s.table, s.base, s.method, s.fine_tuned, s.task, s.metric) for s in SCORES]
    assert len(set(keys)) == len(keys)
    # Of the same table, the file adds what no recipe has; of ReBA's total another table's value, where it is another.
    known: dict[tuple[str, ...], list[PaperScore]] = {}
    for each in SCORES[: len(from_zoo)]:
        known.setdefault((each.paper, each.base, each.method, each.task), []).append(each)
    for each in SCORES[len(from_zoo) :]:
        for other in known.get((each.paper, each.base, each.method, each.task), ()):
            assert other.table != each.table and other.printed != each.printed, each


def test_values_are_fractions() -> None:
    for each in SCORES:
        assert 0 < each.value < 1
        assert each.value * (1 if each.paper == "reba" else 100) == pytest.approx(each.printed, abs=1e-9)
        assert re.fullmatch(r"Table \d+", each.table)
    found = {(s.base, s.method, s.table, s.task): s for s in SCORES}
    assert found["mistralai/Mistral-7B-Instruct-v0.1", "echo mean template=echo", "Table 1", "MTEB"].value == 0.4864
    assert found["nvidia/NV-Embed-v2", "as saved", "Table 1", "CoNLL-2003"].value == 0.707


def test_printed_averages() -> None:
    """Every average that a table prints, from the numbers of its own table, within rounding."""
    checked = []
    for (paper, table, base, name, _), scores in columns().items():
        for (task, metric), score in scores.items():
            if task in FILE["averages"]:
                over = [(one, None) if isinstance(one, str) else tuple(one) for one in FILE["averages"][task]]
                values = [
                    next(s.value for (t, m), s in scores.items() if t == one and own in (None, m)) for one, own in over
                ]
                assert metric == "average"
                mean = fmean(values)
            elif task == "General":
                both = {s.task: s.value for s in SCORES if (s.base, s.method) == (base, name)}
                mean = fmean([both["MTEB-15"], both["CoNLL-2003"]])
            elif task in SIZES and {f"{task} {kind}" for kind in SIZES[task]} <= {t for t, _ in scores}:
                parts = {t: s.value for (t, _), s in scores.items()}
                mean = sum(parts[f"{task} {kind}"] * n for kind, n in SIZES[task].items()) / sum(SIZES[task].values())
            elif task == "C-MTEB" and len(scores) == 32:
                mean = fmean(s.value for (t, _), s in scores.items() if t != task)
            else:
                continue
            # Of the mean itself, and of what it is taken over; Echo averages before it rounds.
            error = {"reba": 1.5e-4, "echo": 2e-4, "nosink": 1.1e-3}[paper]
            disputed = score.note is not None and task in score.note
            wrong_part = any(s.note and f"{t}:" in s.note for (t, _), s in scores.items() if t.startswith(f"{task} "))
            checked.append((paper, table, task))
            assert (abs(mean - score.value) < error) == (not disputed and not wrong_part), (base, name, task, mean)
    counts = {key: sum(each[:2] == key for each in checked) for key in {each[:2] for each in checked}}
    assert counts == {
        ("reba", "Table 2"): 5,
        ("reba", "Table 3"): 5,
        ("reba", "Table 4"): 3,
        ("reba", "Table 5"): 4,
        ("echo", "Table 1"): 4,
        ("echo", "Table 5"): 4,
        ("echo", "Table 12"): 6,
        ("nosink", "Table 1"): 10,
        ("nosink", "Table 2"): 30,
    }


def test_reba_table_2_against_the_tasks_of_tables_3_to_5() -> None:
    """Which of Table 2's averages its own tasks contradict is known, and no more of them are."""
    tasks = {key[1:4]: scores for key, scores in columns().items() if len(scores) == 32}
    assert len(tasks) == 12
    contradicted, compared = [], 0
    for (paper, table, base, name, _), scores in columns().items():
        if (paper, table) != ("reba", "Table 2") or base.startswith("google-bert"):
            continue
        # Table 3 has Echo-2 and Echo-3 in each other's place.
        swapped = {"echo-2 last": "echo-3 last", "echo-3 last": "echo-2 last"} if base == GPT2 else {}
        (own,) = [each for (_, b, n), each in tasks.items() if (b, n) == (base, swapped.get(name, name))]
        known = {task_name(t): s.value for (t, _), s in own.items()}
        for (task, _), score in scores.items():
            over = averaged_over(task)
            assert over is not None
            mean = fmean(known[task_name(one)] for one, _ in over)
            compared += 1
            if abs(mean - score.value) > 1.5e-4:
                contradicted.append((name, task))
                assert score.note is not None and f"{mean:.4f}" in score.note
            else:
                assert score.note is None or task not in score.note
    assert compared > 50
    assert sorted(contradicted) == [
        ("classical mean", "C-MTEB reranking"),
        ("echo-2 last", "C-MTEB retrieval"),
        ("echo-2 mean", "C-MTEB STS"),
        ("echo-3 last", "C-MTEB retrieval"),
        ("reba-2 last", "C-MTEB retrieval"),
        ("reba-3 last", "C-MTEB STS"),
        ("reba-3 last", "C-MTEB retrieval"),
    ]


# Names


def test_names_are_mtebs() -> None:
    names = {each.name: each.task for each in find_tasks(["C-MTEB"])}
    assert set(_TASKS.values()) <= set(names) and not set(_TASKS) & set(names)
    mains = {task.metadata.main_score for task in names.values()}
    assert {"map_at_1000", "v_measure", "accuracy", "cosine_spearman"} <= mains
    assert metric_names("map") == ("map_at_1000",) and metric_names("cos_sim_pearson") == ("cosine_pearson",)
    # Every task of a paper's suite is mteb's, of the kind that its metric belongs to.
    for score in SCORES:
        if score.paper == "reba" and not score.task.startswith("C-MTEB"):
            task = names[_TASKS.get(score.task, score.task)]
            kinds = {
                "accuracy": "Classification",
                "cos_sim_accuracy": "PairClassification",
                "cos_sim_pearson": "STS",
                "map": "Reranking",
                "recall_at_1000": "Retrieval",
                "v_measure": "Clustering",
            }
            assert task.metadata.type == kinds[score.metric], score.task
    assert {each.metric for each in SCORES} <= {
        "average",
        "main_score",
        "accuracy",
        "v_measure",
        "recall_at_1000",
        "weighted_f1",
        *_METRICS,
    }


def test_sets_of_tasks() -> None:
    sizes = {task: len(over) for score in SCORES if (over := averaged_over(task := score.task))}
    assert sizes == {
        **{name: sum(kinds.values()) for name, kinds in SIZES.items()},
        **{f"{name} {kind}": size for name, kinds in SIZES.items() for kind, size in kinds.items()},
        **{"MTEB-15": 15, "Medicine": 4, "Finance": 3, "Law": 3},
    }
    assert averaged_over("MTEB-MINI") is None and averaged_over("TNews") is None
    assert set(_SUITES.values()) <= set(suites()) and set(_KINDS.values()) == set(suites()["MTEB-56"].tasks)


# Beside results


def rows_of(folder: Path, metric: Any = "paper") -> list[dict[str, str]]:
    return parsed(make_report([folder], metric).to_markdown())[0]


def averages(*folders: Path) -> list[dict[str, str]]:
    """The table of the papers' averages."""
    found: list[dict[str, str]] = make_report(folders).to_json()["averages"]
    return found


def sts(words: str = "reba", base: str = GPT2, **values: Any) -> list[Any]:
    draw = random.Random(5)
    tasks = ["AFQMC", "ATEC", "BQ", "LCQMC", "PAWSX", "QBQTC", "STSB"]
    scores = [{"cosine_spearman": draw.random(), "cosine_pearson": draw.random()} for _ in tasks]
    return [
        result(task, words, each, base=base, paper="cosine_pearson", **values)
        for task, each in zip(tasks, scores, strict=True)
    ]


def test_beside_a_recipe(tmp_path: Path) -> None:
    made = sts()
    scores = zoo.load("gpt2-chinese-reba-last").about.scores
    printed = {score["task"]: score["value"] for score in scores if score["metric"] == "cos_sim_pearson"}
    assert len(printed) == 7
    own, paper = rows_of(write(tmp_path / "r", *made))
    assert (own["method"], paper["method"]) == (
        "reba-2 last",
        "paper: reba-2 last (ReBA, Table 3, 512 positions)",
    )
    ours = {each.task: each.scores["cosine_pearson"] for each in made}
    for task, value in printed.items():
        assert paper[task] == f"{value:.4f} ({ours[task] - value:+.4f})"
    # The paper has no Spearman.
    assert [row["method"] for row in rows_of(tmp_path / "r", "main")] == ["reba-2 last"]
    # Over the whole kind, with Table 2's own average; it stands in the Markdown too.
    (average,) = averages(tmp_path / "r")
    mean = fmean(ours.values())
    assert (average["paper"], average["ours"], average["tasks"]) == ("0.2118", f"{mean:.4f}", "7")
    assert average["difference"] == f"{mean - 0.2118:+.4f}"
    assert parsed(make_report([tmp_path / "r"]).to_markdown())[-1][0]["difference"] == average["difference"]
    # One task less, and Table 2's average has nothing beside it.
    assert averages(write(tmp_path / "s", *made[1:])) == []


@pytest.mark.parametrize(
    ("words", "base", "settings", "found"),
    [
        ("reba", GPT2, {}, ["ReBA, Table 2", "ReBA, Table 3"]),
        ("reba:max_seq_length=512", GPT2, {"seed": 3}, ["ReBA, Table 2", "ReBA, Table 3"]),
        ("reba", GPT2, {"max_tokens": 512, "budget": "total"}, ["ReBA, Table 2", "ReBA, Table 3"]),
        ("reba", "gpt2-base-chinese", {}, ["ReBA, Table 2", "ReBA, Table 3"]),
        ("reba-3", GPT2, {}, ["ReBA, Table 2", "ReBA, Table 3"]),
        ("reba:pooling=mean", GPT2, {}, ["ReBA, Table 2", "ReBA, Table 4"]),
        # Other experiments than the paper's.
        ("reba", GPT2, {"max_tokens": 256, "budget": "total"}, []),
        ("reba", GPT2, {"max_tokens": 512, "budget": "content"}, []),
        ("reba:max_seq_length=256", GPT2, {}, []),
        ("reba", GPT2, {"layer": 3}, []),
        ("reba", GPT2, {"prompts": "nosink"}, []),
        ("reba", "mini", {}, []),
        ("reba-4", GPT2, {}, []),
        ("reba:template={text}-{text}", GPT2, {}, []),
        ("reba:variant=published", GPT2, {}, []),
        # What the paper leaves open may be anything, what it names may not.
        (
            "nosink:setting=mask0-bidir,k=7",
            "intfloat/e5-mistral-7b-instruct",
            {"prompts": "nosink"},
            ["NoSink, Table 1"],
        ),
        ("nosink:setting=mask0&bidir,k=all,k0=9", "intfloat/e5-mistral-7b-instruct", {}, ["NoSink, Table 1"]),
        ("nosink:setting=mask0&bidir,k=3,k0=2", "intfloat/e5-mistral-7b-instruct", {}, []),
        ("nosink:setting=baseline", "TheFinAI/finma-7b-nlp", {}, ["NoSink, Table 2"]),
        ("classical:pooling=mean", "TheFinAI/finma-7b-nlp", {}, ["NoSink, Table 2"]),
        # Of several limits of positions the one that was run with.
        ("prompteol", "Sheared-LLaMA-1.3B", {"max_tokens": 528}, ["Echo, Table 12"]),
        ("classical", "TheFinAI/finma-7b-nlp", {}, []),
        # Models that were trained further are no method of the untrained one.
        ("classical", "mistralai/Mistral-7B-Instruct-v0.1", {}, []),
    ],
)
def test_which_results_are_the_papers(words: str, base: str, settings: dict[str, Any], found: list[str]) -> None:
    assert sorted({row.source for row in paper_rows(base, method(words).arguments, settings)}) == found


def test_instructions_belong_to_their_tasks() -> None:
    arguments = method("nosink:setting=mask0-bidir,k=7").arguments
    base = "intfloat/e5-mistral-7b-instruct"
    with_them = {s.task for row in paper_rows(base, arguments, {"prompts": "nosink"}) for s in row.scores.values()}
    without = {s.task for row in paper_rows(base, arguments, {}) for s in row.scores.values()}
    assert with_them == {"MTEB-15"} and without == {"CoNLL-2003", "General"}


def test_a_saved_embedder(tmp_path: Path) -> None:
    made = result("CoNLL2003", "reba", {"entity_f1": 0.75}, kind="NER", base="nvidia/NV-Embed-v2", main="entity_f1")
    made = replace(made, method="as saved", arguments={})
    _, paper = rows_of(write(tmp_path / "r", made), "main")
    assert (paper["method"], paper["CoNLL2003"]) == ("paper: as saved (NoSink, Table 1)", "0.707 (+0.043)")


def test_disputed_numbers_and_local_folders_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *sts("echo", base="gpt2-base-chinese"))
    text = make_report([folder]).to_markdown()
    assert "Table 2 prints this column's averages, but for retrieval, under Echo-3." in text
    assert "- gpt2-base-chinese is taken for ckiplab/gpt2-base-chinese by its folder's name\n" in text
    own, paper = rows_of(folder)
    assert all("* (" in paper[task] and "*" not in own[task] for task in ("AFQMC", "STSB"))


def test_averages_over_a_whole_benchmark(tmp_path: Path) -> None:
    scores = {
        "Classification": "accuracy", "Clustering": "v_measure", "PairClassification": "cosine_accuracy",
        "Reranking": "map_at_1000", "Retrieval": "recall_at_1000", "STS": "cosine_pearson",
    }  # fmt: skip
    draw = random.Random(9)
    made = [
        result(task, "reba:pooling=mean", {"own": draw.random(), scores[kind]: draw.random()}, kind=kind, base=GPT2,
               main="own", paper=scores[kind])
        for kind, tasks in suites()["C-MTEB"].tasks.items()
        for task in tasks
    ]  # fmt: skip
    found = {each["average"].partition(",")[0]: each for each in averages(write(tmp_path / "r", *made))}
    assert len(found) == 7
    total = fmean(each.scores[each.paper or ""] for each in made)
    assert found["C-MTEB"]["ours"] == f"{total:.4f}" and found["C-MTEB"]["tasks"] == "31"
    assert found["C-MTEB"]["paper"] == "0.3977" and "Table 4" in found["C-MTEB"]["average"]
    for name, each in found.items():
        if name != "C-MTEB":
            kind = _KINDS[name[7:]]
            mean = fmean(one.scores[scores[kind]] for one in made if one.kind == kind)
            assert each["ours"] == f"{mean:.4f}"
    # By folders that disagree, each of its own.
    other = write(tmp_path / "s", *(replace(each, identity=each.identity[::-1]) for each in made))
    both = averages(tmp_path / "r", other)
    assert sorted({each["method"] for each in both}) == [f"reba-2 mean [{tmp_path / name}]" for name in "rs"]
    assert len(both) == 14


def test_a_papers_main_score_is_that_of_the_main_metric() -> None:
    score: Any = object()
    row = PaperRow("Echo", "echo", None, {(task_name("STS22"), "main_score"): score})
    assert row.find("STS22", "ndcg_at_10", "ndcg_at_10") is score
    assert row.find("STS22", "map", "ndcg_at_10") is None


def test_averages_of_main_scores(tmp_path: Path) -> None:
    """Echo's, of mteb's own metric, in percent."""
    draw = random.Random(2)
    made = [
        result(task, "echo:template=echo,pooling=mean", draw.random(), kind="Retrieval",
               base="mistralai/Mistral-7B-Instruct-v0.1", main="ndcg_at_10")
        for task in suites()["MTEB-56"].tasks["Retrieval"]
    ]  # fmt: skip
    (each,) = averages(write(tmp_path / "r", *made))
    assert (each["average"].partition(",")[0], each["tasks"], each["paper"]) == ("MTEB retrieval", "15", "0.2082")
    assert each["ours"] == f"{fmean(one.scores['ndcg_at_10'] for one in made):.4f}"


def test_law_is_averaged_over_our_own_metrics(tmp_path: Path) -> None:
    """NoSink, Table 2: micro- and macro-F1 of SCOTUS, weighted F1 of UNFAIR-ToS."""
    made = []
    for task, first in (("SCOTUS", 0.2), ("UNFAIR-ToS", 0.6)):
        scores = {name: first + 0.1 * number for number, name in enumerate(Classes.metrics)}
        one = result(task, "reba", scores, kind="Classification", base="nvidia/NV-Embed-v2", main="accuracy")
        made.append(replace(one, method="as saved", arguments={}))
    (each,) = averages(write(tmp_path / "r", *made))
    law, unfair = (one.scores for one in made)
    wanted = fmean([law["accuracy"], law["f1"], unfair["weighted_f1"]])
    assert (each["average"].partition(",")[0], each["tasks"], each["ours"]) == ("Law", "3", f"{wanted:.4f}")


def test_an_average_takes_what_its_instructions_belong_to(tmp_path: Path) -> None:
    base, words = "intfloat/e5-mistral-7b-instruct", "nosink:setting=mask0-bidir,k=7"
    with_them = [
        result(task, words, 0.5, base=base, settings={"prompts": "nosink"}) for task in suites()["MTEB-15"].names
    ]
    # A task without instructions, which stands last, takes nothing from the others.
    plain = result("CoNLL-2003", words, {"entity_f1": 0.5}, kind="NER", base=base, main="entity_f1")
    found = averages(write(tmp_path / "r", *with_them, plain))
    assert [each["average"].partition(",")[0] for each in found] == ["MTEB-15"]
