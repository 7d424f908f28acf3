"""The papers' sets of tasks and instructions, and mteb's own runs: slow, as importing mteb takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from sentence_transformers import SentenceTransformer
from tiny import TASK_WORDS

import st_reba
from st_reba.evaluation import Task, evaluate
from st_reba.evaluation.instructions import read_instructions
from st_reba.evaluation.mteb_tasks import find_tasks, scores_of, suites
from st_reba.evaluation.results import Result


@pytest.mark.slow
@pytest.mark.parametrize("name", suites())
def test_sets_name_tasks_of_mteb(name: str) -> None:
    mteb = pytest.importorskip("mteb")
    for kind, task_names in suites()[name]["tasks"].items():
        task_types = {mteb.get_task(task_name).metadata.type for task_name in task_names}
        assert task_types <= {kind, "Summarization"}, task_names


@pytest.mark.slow
def test_sets_are_found_by_name_with_their_instructions() -> None:
    pytest.importorskip("mteb")
    chinese_tasks = find_tasks("c-mteb")
    assert len(chinese_tasks) == 31
    assert {prompts for _, prompts in chinese_tasks} == {None}
    assert {prompts for _, prompts in find_tasks("MTEB-15")} == {"nosink"}


@pytest.mark.slow
def test_sets_take_some_subsets_alone() -> None:
    pytest.importorskip("mteb")
    tasks = {task.metadata.name: task for task, _ in find_tasks("MTEB-15")}
    assert tasks["STS17"].hf_subsets == ["en-en"]


@pytest.mark.slow
def test_single_tasks_are_found_by_name() -> None:
    pytest.importorskip("mteb")
    assert [task.metadata.name for task, _ in find_tasks("STSB")] == ["STSB"]
    with pytest.raises(ValueError, match="'STSBx' is neither"):
        find_tasks("STSBx")


def test_nosinks_instructions_are_those_of_its_set() -> None:
    instructions = read_instructions("nosink")
    for task_names in suites()["MTEB-15"]["tasks"].values():
        assert set(task_names) <= set(instructions.tasks)


def test_instructions_are_written_before_queries_alone() -> None:
    instructions = read_instructions("nosink")
    instruction = instructions.tasks["SciFact"]
    assert (
        instructions.before("SciFact", "query", has_field=False)
        == f"Instruct: {instruction}\nQuery: "
    )
    assert instructions.before("SciFact", "query", has_field=True) == instruction
    assert instructions.before("SciFact", "document", has_field=False) is None


def test_instructions_are_read_from_a_file(tmp_path: Path) -> None:
    content = {"tasks": {"*": {"document": "D"}}, "document": "{instruction}: "}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    instructions = read_instructions(tmp_path / "own.yaml")
    assert instructions.name == "own"
    assert instructions.before("any", "document", has_field=False) == "D: "
    assert instructions.before("any", None, has_field=False) is None


@pytest.mark.parametrize("source", ["none", None])
def test_there_may_be_no_instructions(source: str | None) -> None:
    assert read_instructions(source).tasks == {}


def test_instructions_are_not_read_again() -> None:
    instructions = read_instructions("nosink")
    assert read_instructions(instructions) is instructions


@pytest.mark.parametrize(
    "content",
    [
        {"tasks": {"STS": "x"}, "query": "no field"},
        {"tasks": {"STS": "x"}, "passage": "{instruction}"},
        {"tasks": {}},
        {"STS": {}},
        {},
    ],
    ids=["no field", "unknown key", "no tasks", "no texts", "empty"],
)
def test_mappings_without_instructions_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="prompts='own'"):
        read_instructions(content)


def test_a_missing_file_of_instructions_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        read_instructions("nowhere.yaml")


class FakeMteb(SimpleNamespace):
    """mteb with one benchmark of one task; it keeps the prompts with which a model runs."""

    def __init__(self) -> None:
        metadata = SimpleNamespace(name="SciFact", type="Retrieval", main_score="ndcg")
        scores = {
            "test": [{"ndcg": 0.25, "map": 0.5}],
            "dev": [
                {
                    "ndcg": 0.75,
                    "map": float("nan"),
                    "subset": "en",
                }
            ],
        }
        self.task: Any = SimpleNamespace(metadata=metadata)
        self.results = [SimpleNamespace(scores=scores)]
        self.prompts_of_runs: list[dict[str, str]] = []
        self.get_task = {}.pop
        self.get_benchmark = {"Mine": SimpleNamespace(tasks=[self.task])}.pop

    def evaluate(self, model: SentenceTransformer, task: Any, **options: Any) -> SimpleNamespace:
        self.prompts_of_runs.append(model.prompts)
        return SimpleNamespace(task_results=self.results, exceptions=None)


@pytest.fixture
def fake_mteb(monkeypatch: pytest.MonkeyPatch) -> FakeMteb:
    fake_module = FakeMteb()
    monkeypatch.setitem(sys.modules, "mteb", fake_module)
    return fake_module


@pytest.fixture
def prompted_model() -> SentenceTransformer:
    model = st_reba.build("mini", "classical", prompts={"query": "q"})
    model[0].model.config._name_or_path = "me/it"
    return model


@pytest.mark.parametrize("name", ["Mine", Path("Mine")], ids=["word", "path"])
def test_mtebs_metrics_are_averaged(
    name: str | Path, fake_mteb: FakeMteb, prompted_model: SentenceTransformer
) -> None:
    (result,) = evaluate(prompted_model, name)
    assert (result.model, result.task, result.kind) == ("me/it", "SciFact", "Retrieval")
    assert (result.metric, result.score) == ("ndcg", 0.5)
    assert result.scores == {"ndcg": 0.5}


@pytest.mark.parametrize(
    ("prompts", "task_prompts"),
    [
        (
            {"SciFact": "Find."},
            {
                "SciFact": "Find.",
                "SciFact-query": "Find.",
                "SciFact-document": "",
            },
        ),
        ({"STSB": "Find."}, {}),
    ],
    ids=["the task's", "another task's"],
)
def test_instructions_are_the_prompts_while_mteb_runs(
    fake_mteb: FakeMteb,
    prompted_model: SentenceTransformer,
    prompts: dict[str, str],
    task_prompts: dict[str, str],
) -> None:
    model_prompts = dict(prompted_model.prompts)
    evaluate(prompted_model, fake_mteb.task, prompts=prompts)
    assert fake_mteb.prompts_of_runs == [{**model_prompts, **task_prompts}]
    assert prompted_model.prompts == model_prompts


def test_mteb_without_a_finite_score_is_refused(
    fake_mteb: FakeMteb, prompted_model: SentenceTransformer
) -> None:
    fake_mteb.task.metadata.main_score = "map"
    with pytest.raises(ValueError, match="'map' is not finite"):
        evaluate(prompted_model, fake_mteb.task)


def test_mteb_without_a_result_is_refused(
    fake_mteb: FakeMteb, prompted_model: SentenceTransformer
) -> None:
    fake_mteb.results.clear()
    with pytest.raises(ValueError, match="mteb gave no result"):
        evaluate(prompted_model, fake_mteb.task)


def test_names_that_mteb_lacks_are_refused(
    fake_mteb: FakeMteb, prompted_model: SentenceTransformer
) -> None:
    with pytest.raises(ValueError, match="'STSBx' is neither"):
        evaluate(prompted_model, "STSBx")


OTHER_WORDS = list(map("the {}".format, TASK_WORDS[3:] + TASK_WORDS[:3]))
TEXTS = (*TASK_WORDS, *OTHER_WORDS)
PAIRED_ROWS = list(zip(range(12), range(12, 24), strict=True))


def make_mteb_task(name: str, dataset: Any) -> Any:
    """A task of the type of one of mteb's, with another dataset."""
    import mteb

    base_class = type(mteb.get_task(name))
    dataset_info = {**mteb.get_task("STSBenchmark").metadata.dataset, "revision": "1"}
    changes = {"name": f"Own{name}", "dataset": dataset_info, "eval_splits": ["test"]}
    attributes = {
        "metadata": base_class.metadata.model_copy(update=changes),
        "samples_per_label": 99,
        "n_experiments": 1,
        "load_data": lambda self, *arguments, **options: None,
    }
    task = type(f"Own{name}", (base_class,), attributes)()
    task.dataset = dataset
    task.data_loaded = True
    return task


@pytest.fixture(scope="module")
def make_rows() -> Callable[[dict[str, Any]], Any]:
    """Makes a split of columns."""
    pytest.importorskip("mteb")
    dataset_class: Any = pytest.importorskip("datasets").Dataset
    return dataset_class.from_dict  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean")


def evaluate_items(
    model: SentenceTransformer,
    kind: str,
    items: Sequence[tuple[Any, ...]],
    **options: Any,
) -> Result:
    (result,) = evaluate(model, Task("t", kind, TEXTS, tuple(items), **options))
    return result


@pytest.mark.slow
def test_mteb_scores_pairs_as_we_do(model: SentenceTransformer, make_rows: Any) -> None:
    scores = list(map(float, range(12)))
    split = make_rows({"sentence1": TASK_WORDS, "sentence2": OTHER_WORDS, "score": scores})
    expected_scores = scores_of(model, make_mteb_task("STSBenchmark", {"test": split}))
    items = [(*rows, score) for rows, score in zip(PAIRED_ROWS, scores, strict=True)]
    result = evaluate_items(model, "STS", items)
    for metric in ("cosine_spearman", "cosine_pearson"):
        assert result.scores[metric] == pytest.approx(expected_scores[metric], abs=1e-4)


@pytest.mark.slow
def test_mteb_scores_pair_classes_as_we_do(model: SentenceTransformer, make_rows: Any) -> None:
    labels = [0, 1] * 6
    split = make_rows({"sentence1": TASK_WORDS, "sentence2": OTHER_WORDS, "labels": labels})
    expected_scores = scores_of(model, make_mteb_task("TwitterSemEval2015", {"test": split}))
    items = [(*rows, label) for rows, label in zip(PAIRED_ROWS, labels, strict=True)]
    result = evaluate_items(model, "PairClassification", items)
    # mteb's best accuracy leaves out the threshold above all cosines, so that it may be lower.
    assert result.scores["cosine_ap"] == pytest.approx(
        expected_scores["cosine_ap"],
        abs=1e-4,
    )


@pytest.mark.slow
def test_mteb_scores_classes_as_we_do(model: SentenceTransformer, make_rows: Any) -> None:
    train_labels = [0] * 6 + [1] * 6
    test_labels = train_labels[::-1]
    splits = {
        "train": make_rows({"text": TASK_WORDS, "label": train_labels}),
        "test": make_rows({"text": OTHER_WORDS, "label": test_labels}),
    }
    expected_scores = scores_of(model, make_mteb_task("Banking77Classification", splits))
    items = list(enumerate(test_labels, start=12))
    result = evaluate_items(model, "Classification", items, train=tuple(enumerate(train_labels)))
    for metric in ("accuracy", "f1"):
        assert result.scores[metric] == pytest.approx(expected_scores[metric], abs=1e-4)


@pytest.mark.slow
def test_mteb_scores_clusters_as_we_do(model: SentenceTransformer, make_rows: Any) -> None:
    topics = list("000000111111" * 2)
    split = make_rows(
        {
            "sentences": [list(TEXTS)],
            "labels": [topics],
        }
    )
    expected_scores = scores_of(
        model, make_mteb_task("TwentyNewsgroupsClustering", {"test": split})
    )
    result = evaluate_items(model, "Clustering", list(enumerate(topics)))
    assert result.scores["v_measure, one start"] == pytest.approx(
        expected_scores["v_measure"],
        abs=1e-6,
    )


MTEB_RANKINGS = {"Retrieval": "SciFact", "Reranking": "AskUbuntuDupQuestions"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MTEB_RANKINGS)
def test_mteb_scores_rankings_as_we_do(
    model: SentenceTransformer, make_rows: Any, kind: str
) -> None:
    items = []
    relevant_documents: dict[str, dict[str, int]] = {}
    for query in range(12):
        documents = (12 + query * 5 % 12, 12 + (query * 7 + 1) % 12, 12 + (query + 3) % 12)
        grades = dict(zip(documents, (2, 1, 0), strict=True))
        items.append((query, tuple(grades), tuple(map(float, grades.values()))))
        relevant_documents[f"q{query}"] = {
            f"d{document}": grade for document, grade in grades.items()
        }
    top_ranked = None
    if kind == "Reranking":
        top_ranked = {query: list(grades) for query, grades in relevant_documents.items()}
    query_ids = list(map("q{}".format, range(12)))
    document_ids = list(map("d{}".format, range(12, 24)))
    split = {
        "queries": make_rows({"id": query_ids, "text": TASK_WORDS}),
        "corpus": make_rows(
            {
                "id": document_ids,
                "title": [""] * 12,
                "text": OTHER_WORDS,
            }
        ),
        "relevant_docs": relevant_documents,
        "top_ranked": top_ranked,
    }
    expected_scores = scores_of(
        model,
        make_mteb_task(MTEB_RANKINGS[kind], {"default": {"test": split}}),
    )
    result = evaluate_items(model, kind, items, query_count=12)
    for metric in ("ndcg_at_10", "map_at_1000", "recall_at_10"):
        assert result.scores[metric] == pytest.approx(
            expected_scores[metric],
            abs=2e-4,
        ), metric
