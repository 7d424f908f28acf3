"""tune for search: filters, what chooses and what reports, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import st_reba
from st_reba import Filter, Method
from st_reba.cli.app import main
from st_reba.encode import Role, encode_texts
from st_reba.evaluation import trials, tune_plan
from st_reba.evaluation.readouts import build_on, encode_methods, group_by_pass, load_base
from st_reba.evaluation.retrieval_items import RetrievalItems, read_rankings, retrieval_views
from st_reba.evaluation.trials import Candidate, Trials
from st_reba.evaluation.tried_methods import default_on, search_methods
from st_reba.evaluation.tune import tune
from st_reba.evaluation.tune_plan import (
    Purpose,
    RetrievalPlan,
    plan_for_auto,
    plan_search_by_labels,
    plan_search_by_views,
)
from st_reba.evaluation.tune_report import TuneReport
from st_reba.evaluation.vectors import (
    Vectors,
    normalize_rows,
    search_filter_kinds,
    search_similarities,
)
from st_reba.methods import DEFAULT_METHOD
from st_reba.recipe import save_recipe

ACTIONS = ["plays the guitar", "reads a long letter", "is buying bread", "walks home late", "sings"]
PLACES = [
    "in the street",
    "near the river",
    "on a Sunday morning",
    "behind the school",
    "without a word",
]
PEOPLE = ["man", "woman", "neighbour", "cat", "teacher", "bird"]
STORIES = list(product(PEOPLE, ACTIONS, PLACES))
DOCUMENTS = [
    f"The {person} {action} {place}. Nobody saw the {person} of house {year}. It ended {place} in year {year}."
    for year, (person, action, place) in enumerate(STORIES)
]
SILENT: dict[str, Any] = {"report_step": lambda line: None}
# The methods of each pass for search, on a base of six layers.
PASSES = list(group_by_pass(search_methods(6, "LATIN"), 6).values())
ROLES: list[Role] = ["query", "document"]


@pytest.fixture(scope="module")
def base_folder(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def report(base_folder: str, tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    folder = tmp_path_factory.mktemp("tuned") / "out"
    return tune(base_folder, DOCUMENTS, folder, purpose="search", **SILENT)


@pytest.fixture(scope="module")
def plan() -> RetrievalPlan:
    """The plan of the report."""
    return plan_search_by_views(DOCUMENTS, 1000, 0)


def random_unit_rows(generator: np.random.Generator, row_count: int) -> Vectors:
    rows = generator.normal(size=(row_count, 160)) * np.linspace(3, 0.1, 160) + 2
    return normalize_rows(rows.astype(np.float32))


@pytest.mark.parametrize(
    "document_count",
    [30, 120, 300],
    ids=["fewer than dimensions", "some", "many"],
)
def test_similarities_are_those_behind_the_filter(document_count: int) -> None:
    generator = np.random.default_rng(0)
    queries = random_unit_rows(generator, 40)
    query_sample = random_unit_rows(generator, 25)
    documents = random_unit_rows(generator, document_count)
    # Lengths do not count.
    vectors = (3 * queries, 5 * query_sample, documents)
    np.testing.assert_allclose(
        search_similarities(*vectors, None),
        queries @ documents.T,
        atol=2e-5,
    )
    for kind in search_filter_kinds(document_count, 25)[1:]:
        power = 0.25 if kind == "whiten" else None
        fitted_filter = Filter.fit(documents, kind, power=power, query_vectors=query_sample)  # type: ignore[arg-type]
        filtered_queries = fitted_filter.apply(queries, "query").astype(np.float32)
        filtered_documents = fitted_filter.apply(documents, "document").astype(np.float32)
        expected_similarities = (
            normalize_rows(filtered_queries) @ normalize_rows(filtered_documents).T
        )
        np.testing.assert_allclose(
            search_similarities(*vectors, kind), expected_similarities, atol=2e-5
        )


@pytest.mark.parametrize(
    ("document_count", "sentence_count", "kinds"),
    [
        (19, 50, [None]),
        (20, 19, [None]),
        (99, 20, [None, "center"]),
        (100, 20, [None, "center", "whiten"]),
    ],
)
def test_few_vectors_allow_fewer_filters(
    document_count: int, sentence_count: int, kinds: list[str | None]
) -> None:
    assert search_filter_kinds(document_count, sentence_count) == kinds


def test_candidates_have_the_scores_of_their_models(base_folder: str) -> None:
    base_model = load_base(base_folder)
    text_views = retrieval_views(DOCUMENTS, 0)
    filter_kinds = RetrievalPlan(text_views, text_views, DOCUMENTS, DOCUMENTS).filter_kinds(
        base_model
    )
    assert filter_kinds == [None, "center", "whiten"]
    candidates = Trials(base_model, text_views, filter_kinds).score_pass(PASSES[0])
    assert len(candidates) == 3 * 14
    for candidate in candidates[:: len(candidates) // 4]:
        model = build_on(base_model, candidate.method)
        similarities = search_similarities(
            encode_texts(model, text_views.queries, task="query"),
            encode_texts(model, text_views.query_sample, task="query"),
            encode_texts(model, text_views.documents, task="document"),
            candidate.filter_kind,
        )
        scores = text_views.score_similarities(similarities)
        assert candidate.score == pytest.approx(float(scores.mean()), abs=5e-3)


def test_no_document_both_chooses_and_reports(plan: RetrievalPlan) -> None:
    assert (
        plan.selection_items.item_count,
        plan.test_items.item_count,
        len(plan.documents),
    ) == (100, 50, 100)
    selection_text = "\n".join(plan.documents)
    for test_text in (*plan.test_items.queries, *plan.test_items.documents):
        assert test_text not in selection_text


@pytest.fixture(scope="module")
def labelled_plan() -> RetrievalPlan:
    rows = [(f"what is {row_number}", document) for row_number, document in enumerate(DOCUMENTS)]
    task = read_rankings(pd.DataFrame(rows, columns=["query", "document"]))
    return plan_search_by_labels(task, None, 1000, 0)


def test_no_labelled_query_both_chooses_and_reports(labelled_plan: RetrievalPlan) -> None:
    selection = labelled_plan.selection_items
    rest = labelled_plan.test_items
    assert (selection.kind, selection.item_count, rest.item_count) == ("Retrieval", 100, 50)
    assert set(selection.queries).isdisjoint(rest.queries)


def test_all_documents_are_searched_and_fit_the_filter(labelled_plan: RetrievalPlan) -> None:
    assert (
        set(labelled_plan.documents)
        == set(DOCUMENTS)
        == set(labelled_plan.selection_items.documents)
    )


def test_sentences_of_documents_stand_for_queries(labelled_plan: RetrievalPlan) -> None:
    selection = labelled_plan.selection_items
    assert len(selection.query_sample) == 200
    assert set(selection.query_sample).isdisjoint(selection.queries)


def test_report_is_written(report: TuneReport) -> None:
    folder = Path(report.folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == f"{report}\n"
    assert "documents chose it" in str(report)
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["kind"] == "SearchViews"


def test_report_compares_the_choice_with_defaults_and_words(report: TuneReport) -> None:
    names = list(map(attrgetter("name"), report.rows))
    assert names == [
        "chosen",
        "default, whitened",
        "default",
        "classical, mean",
        "PromptEOL",
        "BM25",
    ]


@pytest.mark.parametrize("role", ROLES)
def test_recipe_model_and_report_give_the_same_vectors(
    base_folder: str, report: TuneReport, role: Role
) -> None:
    saved_model = st_reba.load(str(Path(report.folder) / "model"))
    rebuilt_model = st_reba.build(Path(report.folder) / "recipe.yaml")
    method = report.method
    expected_vectors = encode_methods(
        load_base(base_folder),
        [method],
        DOCUMENTS[:9],
        task=role,
    )[method]
    for model in (saved_model, rebuilt_model):
        np.testing.assert_allclose(
            encode_texts(model, DOCUMENTS[:9], task=role),
            expected_vectors,
            atol=3e-5,
        )
    transformer: Any = saved_model[0]
    assert transformer.depth == (method.layer if isinstance(method.layer, int) else 6)


def test_report_scores_the_saved_model(report: TuneReport, plan: RetrievalPlan) -> None:
    model = st_reba.load(str(Path(report.folder) / "model"))
    query_vectors = model.encode_query(list(plan.test_items.queries))
    document_vectors = model.encode_document(list(plan.test_items.documents))
    scores = plan.test_items.score_similarities(query_vectors @ document_vectors.T)
    assert report.rows[0].score == pytest.approx(float(scores.mean()), abs=1e-2)
    expected_error = float(scores.std(ddof=1)) / len(scores) ** 0.5
    assert report.rows[0].error == pytest.approx(expected_error, abs=1e-2)


PROMPTS = {"query": "Find: ", "document": "Doc: "}


@pytest.fixture
def prompted_report(
    base_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TuneReport:
    """Of a recipe with prompts; one pass is tried, and a filter is chosen."""
    monkeypatch.setattr(tune_plan, "search_methods", lambda *arguments, **options: PASSES[4])
    monkeypatch.setattr(RetrievalPlan, "filter_kinds", lambda plan, base_model: ["whiten"])
    recipe = tmp_path / "prompted.yaml"
    save_recipe(recipe, base_folder, Method("prompteol"), prompts=PROMPTS)
    return tune(recipe, DOCUMENTS, tmp_path / "out", purpose="search", **SILENT)


def test_saved_prompts_stand_in_the_recipe_and_the_model(prompted_report: TuneReport) -> None:
    folder = Path(prompted_report.folder)
    saved_model = st_reba.load(str(folder / "model"))
    assert saved_model.prompts == PROMPTS
    rebuilt_model = st_reba.build(folder / "recipe.yaml")
    np.testing.assert_allclose(
        rebuilt_model.encode_query(DOCUMENTS[:9]),
        saved_model.encode_query(DOCUMENTS[:9]),
        atol=2e-5,
    )


def test_the_report_scores_the_model_with_its_prompts(
    prompted_report: TuneReport, plan: RetrievalPlan
) -> None:
    model = st_reba.load(str(Path(prompted_report.folder) / "model"))
    scores = {}
    for name in ("with prompts", "without"):
        query_vectors = model.encode_query(list(plan.test_items.queries))
        document_vectors = model.encode_document(list(plan.test_items.documents))
        similarities = query_vectors @ document_vectors.T
        scores[name] = float(plan.test_items.score_similarities(similarities).mean())
        model.prompts = {"query": "", "document": ""}
    assert prompted_report.rows[0].score == pytest.approx(scores["with prompts"], abs=2e-3)
    assert abs(scores["with prompts"] - scores["without"]) > 1e-2


def test_an_index_whitens_no_model_with_a_filter(report: TuneReport, tmp_path: Path) -> None:
    assert report.method.filter is not None
    model_folder = str(Path(report.folder) / "model")
    index = st_reba.Index.build(model_folder, DOCUMENTS[:120], tmp_path / "filtered")
    assert index.info()["whitening"] is None


def test_notes_tell_how_to_keep_an_index_from_whitening(plan: RetrievalPlan) -> None:
    candidate = Candidate(Method("prompteol"), None, 1.0, torch.zeros(3))
    assert "--no-whiten" in plan.notes(candidate)[-1]
    centered_candidate = replace(candidate, filter_kind="center")
    assert "--no-whiten" not in " ".join(plan.notes(centered_candidate))


def test_notes_tell_what_scores_of_labels_are(
    plan: RetrievalPlan, labelled_plan: RetrievalPlan
) -> None:
    candidate = Candidate(Method("prompteol"), "center", 1.0, torch.zeros(3))
    notes = labelled_plan.notes(candidate)
    assert notes[0] == "Scores are nDCG@10 of the labelled queries."
    assert notes[1].startswith("Whitened: half-whitened as an index does by default")
    assert plan.notes(candidate)[0].startswith("A score (0 to 1) says how early a search")


def test_the_time_of_words_is_for_a_thousand_texts(
    plan: RetrievalPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=iter([1.0, 3.0]).__next__)
    monkeypatch.setattr(tune_plan, "time", clock)
    row = plan._score_words()
    assert row.seconds == pytest.approx(1000 * 2 / plan.test_items.text_count)


def test_the_default_is_kept_as_an_index_whitens_it(base_folder: str, plan: RetrievalPlan) -> None:
    base_model = load_base(base_folder)
    default = Candidate(default_on(base_model, ""), None, 1.5, torch.zeros(3))
    whitened_default = replace(default, filter_kind="whiten")
    candidates = [default, whitened_default]
    assert plan.find_default(candidates, base_model) is whitened_default
    labelled_plan = replace(plan, selection_items=replace(plan.selection_items, is_labelled=True))
    assert labelled_plan.find_default(candidates, base_model) is None


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["similarity", "search"])
def test_layers_that_hide_their_attention_are_read_by_states(
    base: Callable[..., str], tmp_path: Path, purpose: Purpose
) -> None:
    report = tune(base("bloom"), DOCUMENTS, tmp_path / "tuned", purpose=purpose, **SILENT)
    assert "attention" not in str(report)
    assert "default" in map(attrgetter("name"), report.rows)


def test_the_default_that_is_tried_is_what_build_makes(base_folder: str) -> None:
    base_model = load_base(base_folder)
    model = build_on(base_model, default_on(base_model, ""), check=False)
    default = build_on(base_model, Method.parse(DEFAULT_METHOD), check=False)
    np.testing.assert_array_equal(
        model.encode_query(DOCUMENTS[:3]), default.encode_query(DOCUMENTS[:3])
    )


def test_an_index_whitens_a_model_without_a_filter(base_folder: str, tmp_path: Path) -> None:
    model = st_reba.build(base_folder, "prompteol")
    index = st_reba.Index.build(model, DOCUMENTS[:120], tmp_path / "raw")
    assert index.info()["whitening"] is not None


@pytest.mark.parametrize("kind", ["center", "whiten"])
def test_filters_have_the_mean_of_queries(base_folder: str, plan: RetrievalPlan, kind: str) -> None:
    model = build_on(load_base(base_folder), Method("prompteol", template="prompteol-search"))
    fitted_filter = plan.fit_filter(model, kind)
    assert fitted_filter.kind == kind
    assert fitted_filter.query_mean is not None


def test_the_saved_filter_is_fitted_on_all_documents(
    base_folder: str, report: TuneReport, plan: RetrievalPlan
) -> None:
    assert report.method.filter is not None
    saved_filter = Filter.load(report.method.filter)
    model = build_on(load_base(base_folder), replace(report.method, filter=None))
    whole_filter = plan.with_all_texts().fit_filter(model, saved_filter.kind)
    np.testing.assert_allclose(saved_filter.mean, whole_filter.mean, atol=1e-6)
    selection_filter = plan.fit_filter(model, saved_filter.kind)
    assert np.abs(saved_filter.mean - selection_filter.mean).max() > 1e-4


def test_finished_passes_do_not_run_again(
    base_folder: str, report: TuneReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        trials,
        "MethodGroup",
        lambda *arguments, **options: pytest.fail("a pass ran again"),
    )
    resumed_report = tune(base_folder, DOCUMENTS, report.folder, purpose="search", **SILENT)
    assert resumed_report.method == report.method


def test_a_stopped_run_leaves_the_filter_of_the_recipe(prompted_report: TuneReport) -> None:
    def stop_before_the_last_filter(line: str) -> None:
        if line.startswith("fitting"):
            raise KeyboardInterrupt

    folder = Path(prompted_report.folder)
    filter_bytes = (folder / "filter.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        tune(
            folder.parent / "prompted.yaml",
            DOCUMENTS,
            folder,
            purpose="search",
            report_step=stop_before_the_last_filter,
        )
    assert (folder / "filter.safetensors").read_bytes() == filter_bytes


@pytest.fixture
def labels_command(base_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that tunes for search by labels, with one pass."""
    monkeypatch.setattr(tune_plan, "search_methods", lambda *arguments, **options: PASSES[4])
    rows = [(f"{text.split('.')[0]}?", text) for text in DOCUMENTS]
    pd.DataFrame(rows, columns=["query", "document"]).to_csv(
        tmp_path / "pairs.csv",
        index=False,
    )
    (tmp_path / "texts.txt").write_text("\n".join(DOCUMENTS), encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("texts.txt", "out")]
    return [
        "tune",
        base_folder,
        *paths,
        "--for",
        "search",
        "--labels",
        str(tmp_path / "pairs.csv"),
    ]


@pytest.mark.slow
def test_labels_choose_for_search(labels_command: list[str], tmp_path: Path) -> None:
    assert main(labels_command) == 0
    saved_report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert saved_report["kind"] == "Retrieval"
    assert (saved_report["selection_count"], saved_report["test_count"]) == (100, 50)


def test_other_kinds_of_labels_are_refused_for_search(labels_command: list[str]) -> None:
    assert main([*labels_command, "--kind", "STS"]) == 2


@pytest.mark.slow
def test_auto_for_search_gives_the_same_model_again(base_folder: str) -> None:
    model = st_reba.build(base_folder, "auto", texts=DOCUMENTS, purpose="search")
    same_model = st_reba.build(base_folder, "auto", texts=DOCUMENTS, purpose="search")
    np.testing.assert_array_equal(
        model.encode_query(DOCUMENTS[:3]),
        same_model.encode_query(DOCUMENTS[:3]),
    )


def test_auto_for_search_chooses_by_all_drawn_documents() -> None:
    auto_plan = plan_for_auto(DOCUMENTS, "search", 0)
    assert isinstance(auto_plan.selection_items, RetrievalItems)
    assert auto_plan.selection_items.item_count == 150


SENTENCES = ["A single sentence of a text, one"] * 90


@pytest.mark.parametrize(
    ("options", "part_of_message"),
    [
        ({"purpose": "search"}, "purpose=… belong to method='auto'"),
        ({"method": "auto", "texts": DOCUMENTS, "purpose": "clusters"}, "purpose='clusters'"),
        ({"method": "auto", "texts": SENTENCES, "purpose": "search"}, "texts of two sentences"),
    ],
    ids=["without auto", "unknown purpose", "single sentences"],
)
def test_purposes_and_texts_that_do_not_fit_are_refused(
    options: dict[str, Any], part_of_message: str
) -> None:
    with pytest.raises(ValueError, match=part_of_message):
        st_reba.build("mini", **options)
