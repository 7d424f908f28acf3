"""tune for similarity: the search, what chooses and what reports, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers.normalizers import Lowercase
from torch import Tensor
from torch.nn.functional import normalize

import st_reba
from st_reba import Method
from st_reba.encode import computed_positions
from st_reba.evaluation import Task, read_task, trials, tune, tune_plan, tune_report
from st_reba.evaluation.items import TaskItems
from st_reba.evaluation.kinds.views import views_of
from st_reba.evaluation.readouts import (
    MethodGroup,
    build_on,
    encode_methods,
    group_by_pass,
    load_base,
)
from st_reba.evaluation.trials import Candidate, Trials, select_best
from st_reba.evaluation.tried_methods import default_on, published_methods, similarity_methods
from st_reba.evaluation.tune_plan import (
    SimilarityPlan,
    plan_by_labels,
    plan_by_views,
    sample_for_filter,
)
from st_reba.evaluation.tune_report import ReportEntry, TuneReport, report_rows
from st_reba.evaluation.vectors import remove_directions

PEOPLE = ["a man", "the old woman", "my neighbour", "a black cat", "the teacher"]
ACTIONS = ["plays the guitar", "reads a long letter", "is buying bread", "walks home late", "sings"]
PLACES = [
    "in the street",
    "near the river",
    "on a Sunday morning",
    "behind the school",
    "without a word",
]
TEXTS = list(map(" ".join, product(PEOPLE, ACTIONS, PLACES)))
SILENT: dict[str, Any] = {"report_step": lambda line: None}
# The methods of each pass for similarity, without labels, on a base of six layers.
PASSES = list(group_by_pass(similarity_methods(6, "LATIN"), 6).values())


@pytest.fixture(scope="module")
def base_folder(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def report(base_folder: str, tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    return tune.tune(
        base_folder,
        TEXTS,
        tmp_path_factory.mktemp("tuned") / "out",
        **SILENT,
    )


def view_score(base_folder: str, method: Method, text_views: Task) -> float:
    vectors = torch.from_numpy(
        encode_methods(load_base(base_folder), [method], text_views.texts)[method]
    )
    return float(text_views.task_kind.score_items(text_views, vectors).mean())


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of methods of each pass that runs."""
    method_counts: list[int] = []

    def counted_group(base_model: Any, methods: Any) -> MethodGroup:
        method_counts.append(len(methods))
        return MethodGroup(base_model, methods)

    monkeypatch.setattr(trials, "MethodGroup", counted_group)
    return method_counts


def random_vectors(row_count: int, width: int) -> Tensor:
    scales = torch.linspace(3, 0.3, width)
    vectors = torch.randn(row_count, width, generator=torch.manual_seed(0)) * scales + 2
    return normalize(vectors, dim=1)


def test_directions_are_removed_as_the_saved_filter_removes_them() -> None:
    sample = random_vectors(500, 24)
    other_vectors = random_vectors(530, 24)[500:]
    expected_vectors = st_reba.Filter.fit(
        sample.numpy(),
        "abtt",
        r=2,
    ).apply(other_vectors.numpy())
    expected_vectors /= np.linalg.norm(expected_vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(
        remove_directions(other_vectors, sample), expected_vectors, atol=2e-4
    )
    assert remove_directions(sample).mean(dim=0).abs().max() < 0.05


def make_candidate(score: float, cost: float) -> Candidate:
    method = Method("echo", repeats=round(cost * 10))
    return Candidate(
        method,
        None,
        cost,
        torch.full((100,), score),
    )


def test_the_best_candidate_is_the_cheapest_of_the_best() -> None:
    candidates = [
        make_candidate(0.5, 1.0),
        make_candidate(0.6, 2.0),
        make_candidate(0.6, 2.5),
    ]
    assert select_best(candidates) is candidates[1]


def test_the_best_candidate_costs_no_more_than_allowed() -> None:
    candidates = [make_candidate(0.5, 1.0), make_candidate(0.6, 2.0)]
    assert select_best(candidates, max_cost=1.0) is candidates[0]
    with pytest.raises(ValueError, match="the cheapest method costs 1.00"):
        select_best(candidates, max_cost=0.5)


def test_the_default_is_kept_unless_another_method_is_clearly_better() -> None:
    default = make_candidate(0.5, 1.5)
    # The standard error of the gain is 0.01.
    spread = 0.1 * torch.tensor([1.0, -1.0]).repeat(50)
    for gain, is_clear in ((-0.1, False), (0.02, False), (0.029, False), (0.031, True)):
        other = replace(make_candidate(0.0, 2.0), item_scores=default.item_scores + gain + spread)
        chosen = select_best([default, other], default=default)
        assert chosen is (other if is_clear else default)


def test_the_default_is_not_kept_where_it_costs_too_much() -> None:
    default = make_candidate(0.6, 1.5)
    other = make_candidate(0.5, 1.0)
    assert select_best([default, other], max_cost=1.2, default=default) is other


def test_similarity_without_labels_keeps_the_default_without_a_filter(base_folder: str) -> None:
    base_model = load_base(base_folder)
    text_views = TaskItems(views_of(TEXTS))
    plan = SimilarityPlan(text_views, text_views, TEXTS, TEXTS)
    default = replace(make_candidate(0.5, 1.5), method=default_on(base_model, ""))
    filtered_default = replace(default, filter_kind="abtt")
    assert plan.find_default([filtered_default, default], base_model) is default
    assert plan.find_default([filtered_default], base_model) is None


def test_candidates_are_judged_with_a_filter_and_without(base_folder: str) -> None:
    base_model = load_base(base_folder)
    text_views = TaskItems(views_of(TEXTS))
    pairs = Task(
        "t",
        "STS",
        tuple(TEXTS[:20]),
        tuple((row_number, 19 - row_number, float(row_number % 3)) for row_number in range(10)),
    )
    labelled_items = TaskItems(pairs)
    for selection_items in (text_views, labelled_items):
        plan = SimilarityPlan(selection_items, selection_items, TEXTS, TEXTS)
        assert plan.filter_kinds(base_model) == [None, "abtt"]


def test_few_texts_allow_no_filter(base_folder: str) -> None:
    text_views = TaskItems(views_of(TEXTS))
    assert SimilarityPlan(
        text_views,
        text_views,
        TEXTS[:15],
        TEXTS,
    ).filter_kinds(load_base(base_folder)) == [None]
    assert SimilarityPlan(
        text_views,
        text_views,
        TEXTS[:25],
        TEXTS,
    ).filter_kinds(load_base("mini")) == [None]


def test_candidates_have_the_scores_and_costs_of_their_models(base_folder: str) -> None:
    base_model = load_base(base_folder)
    text_views = views_of(TEXTS)
    candidates = Trials(base_model, TaskItems(text_views), ["abtt"]).score_pass(PASSES[4])
    assert sorted(candidate.method.layer or 6 for candidate in candidates) == [
        4,
        5,
        6,
    ]
    plain_positions = sum(computed_positions(base_model[0], text_views.texts, {}))
    for candidate in candidates:
        method = candidate.method
        vectors = torch.from_numpy(encode_methods(base_model, [method], text_views.texts)[method])
        scores = text_views.task_kind.score_items(text_views, remove_directions(vectors))
        assert candidate.score == pytest.approx(float(scores.mean()), abs=2e-3)
        position_count = sum(
            computed_positions(build_on(base_model, method)[0], text_views.texts, {})
        )
        expected_cost = position_count / plain_positions * (method.layer or 6) / 6
        assert candidate.cost == pytest.approx(expected_cost)


def scores_of(candidates: list[Candidate]) -> dict[tuple[Method, float], float]:
    """Scores by method and cost."""
    return {(candidate.method, candidate.cost): candidate.score for candidate in candidates}


def test_methods_that_do_not_fit_are_read_by_another_pass(
    base_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_views = views_of(TEXTS[:40])
    whole_trials = Trials(load_base(base_folder), TaskItems(text_views), ["abtt"])
    whole_scores = scores_of(whole_trials.score_pass(PASSES[1]))
    monkeypatch.setattr(trials, "_MAX_BYTES", 5 * 4 * 32 * len(text_views.texts))
    method_counts = count_passes(monkeypatch)
    split_scores = scores_of(whole_trials.score_pass(PASSES[1]))
    assert method_counts == [5, 5, 3]
    assert split_scores == pytest.approx(whole_scores, abs=1e-4)


def test_report_is_written(report: TuneReport) -> None:
    folder = Path(report.folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == f"{report}\n"
    saved_report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert (saved_report["selection_count"], saved_report["test_count"]) == (83, 42)
    assert 0 < report.pass_seconds < report.seconds


def test_recipe_model_and_report_give_the_same_vectors(
    base_folder: str, report: TuneReport
) -> None:
    folder = Path(report.folder)
    expected_vectors = encode_methods(
        load_base(base_folder),
        [report.method],
        TEXTS[:9],
    )[report.method]
    saved_model = st_reba.load(str(folder / "model"))
    rebuilt_model = st_reba.build(folder / "recipe.yaml")
    for model in (saved_model, rebuilt_model):
        np.testing.assert_allclose(model.encode(TEXTS[:9]), expected_vectors, atol=2e-5)
    # A model that reads layer k has k layers.
    transformer: Any = saved_model[0]
    assert transformer.depth == (report.method.layer or 6)


def test_report_names_the_choice_and_the_published_methods(report: TuneReport) -> None:
    names = list(map(attrgetter("name"), report.rows))
    assert names == ["chosen", "default", *published_methods(6, "LATIN", {})]
    assert report.rows[0].method == report.method


def test_report_scores_the_texts_that_did_not_choose(base_folder: str, report: TuneReport) -> None:
    test_items = plan_by_views(TEXTS, 1000, 0).test_items
    assert isinstance(test_items, TaskItems)
    for row in (report.rows[0], report.rows[2]):
        assert row.method is not None
        assert row.score == pytest.approx(
            view_score(base_folder, row.method, test_items.task),
            abs=1e-3,
        )


@pytest.fixture
def cost_rows(base_folder: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tune_report.TuneRow, ...]:
    """Rows of half a base, the whole base, and two copies; two seconds for the first pass, and one for the second."""
    whole = Method("classical", pooling="mean")
    entries = [
        ReportEntry("half", replace(whole, layer=3)),
        ReportEntry("whole", whole),
        ReportEntry("twice", Method("echo", pooling="mean")),
    ]
    clock = SimpleNamespace(perf_counter=iter([1.0, 3.0, 7.0, 8.0]).__next__)
    monkeypatch.setattr(tune_report, "time", clock)
    return report_rows(load_base(base_folder), TaskItems(views_of(TEXTS[:20])), entries)


def test_seconds_of_a_shared_pass_are_divided_by_layers(cost_rows: Any) -> None:
    text_count = len(views_of(TEXTS[:20]).texts)
    expected_milliseconds = [1000 * seconds / text_count for seconds in (1, 2, 1)]
    assert list(map(attrgetter("seconds"), cost_rows)) == pytest.approx(expected_milliseconds)


def test_work_is_positions_times_layers(base_folder: str, cost_rows: Any) -> None:
    base_model = load_base(base_folder)
    texts = views_of(TEXTS[:20]).texts
    doubled_model = build_on(base_model, Method("echo", pooling="mean"))
    plain_positions = sum(computed_positions(base_model[0], texts, {}))
    doubled_positions = sum(computed_positions(doubled_model[0], texts, {}))
    assert list(map(attrgetter("cost"), cost_rows)) == pytest.approx(
        [
            0.5,
            1,
            doubled_positions / plain_positions,
        ]
    )


def test_rows_have_the_standard_error_and_the_size_of_the_weights(
    base_folder: str, cost_rows: Any
) -> None:
    base_model = load_base(base_folder)
    text_views = views_of(TEXTS[:20])
    method = cost_rows[1].method
    vectors = torch.from_numpy(encode_methods(base_model, [method], text_views.texts)[method])
    scores = text_views.task_kind.score_items(text_views, vectors)
    assert cost_rows[1].score == pytest.approx(float(scores.mean()))
    assert cost_rows[1].error == pytest.approx(float(scores.std()) / 20**0.5)
    weight_count = sum(weight.numel() for weight in base_model.parameters())
    assert cost_rows[1].megabytes == pytest.approx(weight_count * 4 / 1e6)


def test_report_ends_with_the_rows_and_notes(cost_rows: Any) -> None:
    report = TuneReport(
        cost_rows[1].method,
        cost_rows[:2],
        "STS",
        40,
        20,
        9,
        5.0,
        4.0,
        "out",
        ("A note.",),
    )
    last_lines = [line[:7] for line in str(report).splitlines()[-5:]]
    assert last_lines == ["| half ", "| whole", "", "Work: p", "A note."]


def test_texts_that_report_neither_choose_nor_fit() -> None:
    texts = list(map("{0} one{0} two{0} three{0}".format, range(1000)))
    plan = plan_by_views(texts, 1000, 0)
    assert (
        plan.selection_items.item_count,
        plan.test_items.item_count,
        len(plan.filter_texts),
    ) == (200, 150, 667)
    used_texts = {
        *plan.selection_items.texts_by_role[None],
        *plan.filter_texts,
        *views_of(plan.filter_texts).texts,
    }
    assert used_texts.isdisjoint(plan.test_items.texts_by_role[None])


def test_finished_passes_are_read_from_the_folder(
    base_folder: str, report: TuneReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes_folder = Path(report.folder) / "passes"
    files = sorted(passes_folder.iterdir())
    assert len(files) == 8
    # A half written pass runs again.
    files[0].rename(files[0].with_suffix(".part"))
    method_counts = count_passes(monkeypatch)
    resumed_report = tune.tune(base_folder, TEXTS, report.folder, **SILENT)
    assert len(method_counts) == 1
    assert resumed_report.method == report.method
    assert list(map(attrgetter("score"), resumed_report.rows)) == list(
        map(attrgetter("score"), report.rows)
    )
    assert len(list(passes_folder.glob("*.pt"))) == 8


def test_other_texts_filters_and_number_types_are_other_passes(base_folder: str) -> None:
    base_model = load_base(base_folder)
    text_views = TaskItems(views_of(TEXTS))
    searches = [
        Trials(base_model, text_views, ["abtt"]),
        Trials(base_model, TaskItems(views_of(TEXTS[1:])), ["abtt"]),
        Trials(base_model, text_views, [None]),
        Trials(load_base(base_folder, dtype="bfloat16"), text_views, ["abtt"]),
    ]
    keys = {one_search.pass_key(methods) for one_search in searches for methods in PASSES[:2]}
    assert len(keys) == 8
    key = searches[0].pass_key(PASSES[0])
    embeddings: Any = base_model[0].model.embed_tokens.weight  # type: ignore[union-attr, unused-ignore]
    with torch.no_grad():
        embeddings[9, 3] += 1  # as of a token that was trained
    assert Trials(base_model, text_views, ["abtt"]).pass_key(PASSES[0]) != key
    with torch.no_grad():
        embeddings[9, 3] -= 1
    tokenizer: Any = base_model.tokenizer
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    assert Trials(base_model, text_views, ["abtt"]).pass_key(PASSES[0]) != key


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> list[list[Method]]:
    """Only two passes are tried, nothing is reported, and each look at the clock is a second later."""
    passes = PASSES[:2]
    methods = sum(passes, [])
    monkeypatch.setattr(tune_plan, "similarity_methods", lambda *arguments, **options: methods)
    monkeypatch.setattr(tune_plan, "report_rows", lambda *arguments: ())
    monkeypatch.setattr(tune, "time", SimpleNamespace(perf_counter=count().__next__))
    return passes


def test_classes_choose(base_folder: str, two_passes: Any, tmp_path: Path) -> None:
    classes = pd.DataFrame(
        {
            "text": TEXTS[:50],
            "label": [text[:5] for text in TEXTS[:50]],
        }
    )
    report = tune.tune(
        base_folder,
        TEXTS,
        tmp_path / "out",
        labels=classes,
        **SILENT,
    )
    assert report.kind == "Classification"
    assert report.selection_count + report.test_count == 50


def test_pairs_choose_for_a_loaded_model(base_folder: str, two_passes: Any, tmp_path: Path) -> None:
    transformer: Any = load_base(base_folder)[0]
    neighbours = zip(TEXTS, TEXTS[3:], strict=False)
    pairs = [(first, second, float(first[:4] == second[:4])) for first, second in neighbours]
    report = tune.tune(
        transformer.model,
        None,
        tmp_path / "pairs",
        labels=pd.DataFrame(pairs, columns=["text1", "text2", "score"]),
        tokenizer=transformer.tokenizer,
        **SILENT,
    )
    assert (report.kind, report.seconds) == ("STS", 5)
    recipe = (tmp_path / "pairs" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"base: {Path(base_folder).name}, method: " in recipe


def test_each_pass_is_reported_with_the_best_method(
    base_folder: str, two_passes: Any, tmp_path: Path
) -> None:
    lines: list[str] = []
    report = tune.tune(base_folder, TEXTS, tmp_path / "out", report_step=lines.append)
    first_pass, second_pass = two_passes
    assert lines[0] == "2 passes through the base"
    assert lines[1].startswith(f"1/2 {first_pass[0]}: 1 s; best ")
    assert lines[2].startswith(f"2/2 {second_pass[0]}: 1 s; best ")
    assert lines[2].endswith(f": {replace(report.method, filter=None)}")
    assert lines[3].startswith("scoring the choice, and what it is compared with")


def read_ranking(document: str) -> Task:
    """Thirty queries with three documents each."""
    rows = []
    for query, grade in product(range(30), range(3)):
        rows.append((f"q{query}", f"{document} {query} {grade}", grade % 2))
    return read_task(pd.DataFrame(rows, columns=["query", "document", "relevance"]))


def test_labels_are_divided_by_items_over_their_own_texts() -> None:
    task = read_ranking("d number is")
    plan = plan_by_labels(task, None, 1000, 0)
    selection_texts = set(plan.selection_items.texts_by_role[None])
    assert (plan.selection_items.item_count, plan.test_items.item_count) == (20, 10)
    assert selection_texts.isdisjoint(plan.test_items.texts_by_role[None])
    assert set(plan.filter_texts) == {text for text in selection_texts if text.startswith("d")}


def test_a_restricted_task_keeps_documents_and_grades() -> None:
    task = read_ranking("d")
    restricted_task = tune_plan.restrict_task(task, task.items[20:])
    for query, documents, grades in restricted_task.items:
        row_number = restricted_task.texts[query].removeprefix("q")
        expected_documents = [f"d {row_number} {grade}" for grade in range(3)]
        assert [restricted_task.texts[document] for document in documents] == expected_documents
        assert grades == (0.0, 1.0, 0.0)


def notes_of(item_count: int, texts: list[str]) -> list[str]:
    text_views = TaskItems(Task("t", "Views", (), ((0, 0, 0, 0),) * item_count))
    return SimilarityPlan(text_views, text_views, texts, texts).notes(make_candidate(0.5, 1.0))


def test_notes_doubt_a_choice_by_few_items() -> None:
    *_, doubt = notes_of(199, ["cat"])
    assert doubt.startswith("Only 199 items chose")
    assert "items chose" not in " ".join(notes_of(200, ["cat"]))


def test_notes_name_several_scripts() -> None:
    assert "several scripts" not in notes_of(200, ["cat"] * 19 + ["猫"])[-1]
    assert "several scripts" in notes_of(200, ["cat"] * 18 + ["猫"])[-1]


def test_auto_gives_a_model_with_a_filter(
    base_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method_options: list[Any] = []

    def methods_of_two_passes(*arguments: Any, **options: Any) -> list[Method]:
        method_options.append(options)
        return sum(PASSES[1:3], [])

    monkeypatch.setattr(tune_plan, "similarity_methods", methods_of_two_passes)
    model = st_reba.build(
        base_folder,
        "auto",
        texts=TEXTS[:60],
        prompts={"query": "q: "},
        max_seq_length=64,
    )
    same_model = st_reba.build(base_folder, "auto", texts=TEXTS[:60])
    np.testing.assert_array_equal(model.encode(TEXTS[:4]), same_model.encode(TEXTS[:4]))
    assert (model.prompts["query"], model.max_seq_length) == ("q: ", 64)
    assert method_options == [{"is_small": True, "has_labels": False}] * 2
    assert "Dense" in [type(module).__name__ for module in model]


def test_prompts_without_room_for_a_text_are_not_tried(base_folder: str) -> None:
    narrow_base = load_base(base_folder, max_seq_length=64)
    narrow_trials = Trials(narrow_base, TaskItems(views_of(TEXTS)), [None])
    lines: list[str] = []
    passes = narrow_trials.plan_passes(PASSES[0] + PASSES[3], lines.append)
    assert passes == [PASSES[3]]
    assert lines[0].startswith(f"left out: {PASSES[0][0]}: ")
    assert "leaves no room" in lines[0]


def test_auto_chooses_by_all_drawn_texts() -> None:
    selection_items = tune_plan.plan_for_auto(TEXTS[:60], "similarity", 0).selection_items
    assert selection_items.item_count == 60
    assert set(selection_items.texts_by_role[None]) == set(views_of(TEXTS[:60]).texts)


def test_a_filter_of_few_texts_is_fitted_on_their_views_too() -> None:
    texts = list(map("{0} one{0} two{0} three{0} four{0}".format, range(60)))
    # Each has four views.
    assert [len(sample_for_filter(texts[:count], 32)) for count in (19, 20, 60)] == [
        0,
        100,
        100,
    ]
    assert [len(sample_for_filter(TEXTS, width)) for width in (125, 1000)] == [
        125,
        0,
    ]
    text_views = TaskItems(views_of(texts))
    model = st_reba.build("mini", "classical", pooling="mean")
    fitted_filter = SimilarityPlan(text_views, text_views, texts[:40], texts).fit_filter(
        model,
        "abtt",
    )
    assert fitted_filter.mean.shape == (192,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plan_by_labels(views_of(TEXTS), TEXTS, 1000, 0),
            "30 or more items of Classification, PairClassification, Reranking, STS, without train",
        ),
        (lambda: tune.tune("mini"), "texts"),
        (lambda: st_reba.build("mini", "auto", texts=TEXTS[:20]), "give 50 at least"),
        (lambda: st_reba.build("mini", "auto", texts=TEXTS, quantization="int3"), "quantization"),
        (lambda: tune.tune("mini", TEXTS, max_cost=float("nan")), "max_cost=nan .*above 0"),
        (lambda: tune.tune("mini", TEXTS, max_cost=0.0), "max_cost=0.0 .*above 0"),
        (lambda: tune.tune("mini", TEXTS, __file__), "is not a folder"),
        (lambda: tune.tune("mini", np.array(TEXTS), seed=-1), "seed=-1 must be"),
        (lambda: st_reba.build("mini", "auto", texts=TEXTS, seed="a"), "seed='a' must be"),
    ],
    ids=[
        "kind",
        "no texts",
        "few texts",
        "quantization",
        "no number for a cost",
        "no cost",
        "file",
        "seed",
        "seed of auto",
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
