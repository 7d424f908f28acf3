"""mteb's own tasks: sets of them are mteb's, and the encoder gives the model's vectors."""

from __future__ import annotations

import configparser
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mteb_data import make_task, texts, unseeded
from transformers import PreTrainedTokenizerFast

import st_reba
from st_reba.encode import encode_texts
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.methods import Limit
from st_reba.evaluation.mteb_tasks import Encoder, MtebTask, _has_roles, find_tasks, model_meta, suites
from st_reba.evaluation.run import tasks_of

# Sets of tasks


@pytest.fixture(scope="module", autouse=True)
def _unseeded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        unseeded(patch)
        yield


def told(tasks: Any) -> dict[str, Any]:
    return {task.metadata.name: (set(task.eval_splits), set(task.hf_subsets)) for task in tasks}


@pytest.mark.parametrize("name", list(suites()))
def test_suites_are_known_to_mteb(name: str) -> None:
    suite = suites()[name]
    assert len(set(suite.names)) == len(suite.names)
    assert set(suite.splits) | set(suite.subsets) <= set(suite.names)
    kinds = {task: kind for kind, tasks in suite.tasks.items() for task in tasks}
    for each in find_tasks([name.lower()]):
        assert each.kind == kinds.pop(each.name) and each.prompts == suite.prompts and len(each.task.hf_subsets) == 1
    assert not kinds


@pytest.mark.parametrize(("name", "theirs"), [("C-MTEB", "MTEB(cmn, v1)"), ("MTEB-56", "MTEB(eng, v1)")])
def test_suites_of_mteb_are_its_own(name: str, theirs: str) -> None:
    import mteb

    own = mteb.get_benchmark(theirs).tasks
    assert told(each.task for each in find_tasks([name])) == told(own)
    assert [each.name for each in find_tasks([theirs])] == [task.metadata.name for task in own]


def test_english_suites_agree_on_splits() -> None:
    whole = {each.name: each.fingerprint for each in find_tasks(["MTEB-56"])}
    for each in find_tasks(["MTEB-15", "MTEB-MINI"]):
        assert each.fingerprint == whole[each.name]


@pytest.mark.parametrize(("name", "count"), [("MTEB(eng, v2)", 41), ("STS22.v2", 1), ("BIOSSES", 1)])
def test_mtebs_own_names(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(tasks_of([name])) == count


def test_a_folder_may_have_a_suites_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MTEB-15", "toy"):
        (tmp_path / name).mkdir()
    assert len(tasks_of(["MTEB-15"])) == 15 and len(tasks_of(["toy"], limit=20)) > 1


def test_tasks_that_are_refused() -> None:
    for words, message in (
        ([], "name one at least"),
        ([5], "neither a name nor"),
        (["CIFAR10"], "not of text alone"),
        ([make_task("STS"), make_task("STS", seed=1)], "two tasks are called 'own-STS'"),
        (["STS17", "MTEB-MINI"], "two tasks are called 'STS17'"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks_of(words)
    with pytest.raises(ValueError, match=r"limit=5 \(--limit\): mteb's own tasks are scored whole"):
        tasks_of(["STSB"], limit=5)
    unnamed = make_task("STS")
    unnamed.metadata = unnamed.metadata.model_copy(update={"dataset": {"path": "own", "revision": "NA"}})
    with pytest.raises(ValueError, match="revision='NA'"):
        tasks_of([unnamed])
    # One that is named twice counts once.
    names = [each.name for each in tasks_of(["BIOSSES", "MTEB-56", "BIOSSES", make_task("STS")])]
    assert names[0] == "BIOSSES" and names[-1] == "own-STS" and len(names) == 57


def test_a_fingerprint_holds_what_decides_scores() -> None:
    plain = MtebTask(make_task("Classification")).fingerprint
    assert MtebTask(make_task("Classification")).fingerprint == plain
    for other in (
        make_task("Classification", seed=1),
        make_task("Classification", "other"),
        make_task("Classification", n_experiments=3),
        make_task("Classification").filter_eval_splits(["train"]),
    ):
        assert MtebTask(other).fingerprint != plain


def test_what_a_task_draws_is_the_same_each_time() -> None:
    task, drawn = make_task("STS"), []
    load = task.load_data

    def loading() -> None:
        drawn.append((random.random(), np.random.random(), task.rng_state.random()))
        load()

    task.load_data = loading
    for _ in range(2):
        with MtebTask(task)._loaded(3):
            random.random(), np.random.random(), task.rng_state.random()
    assert drawn[0] == drawn[1]


def test_scores_are_averaged_as_mteb_averages() -> None:
    from mteb.results import TaskResult

    task = make_task("STS")
    task._eval_splits, task.hf_subsets = ["a", "b"], ["x", "y"]
    row = {"cosine_spearman": 0.5, "other": 1, "text": "no", "languages": ["eng-Latn"], "mteb_version": "2"}
    rows = {
        "a": [
            {**row, "hf_subset": "x", "main_score": 0.5},
            {**row, "hf_subset": "y", "main_score": 0.2, "cosine_spearman": 0.2},
        ],
        "b": [{**row, "hf_subset": "x", "main_score": 0.9, "cosine_spearman": 0.9, "other": float("nan")}],
    }
    found = TaskResult(dataset_revision="1", task_name="own", mteb_version="2.26", scores=rows, evaluation_time=1.0)
    scores = MtebTask(task)._averaged(found.scores)
    assert scores == {"cosine_spearman": pytest.approx(found.get_score())}
    # What mteb kept for other splits or subsets does not count.
    task._eval_splits, task.hf_subsets = ["a"], ["y"]
    assert MtebTask(task)._averaged(found.scores) == {"cosine_spearman": 0.2, "other": 1}
    rows["a"][1]["cosine_spearman"] = float("nan")
    with pytest.raises(ValueError, match="no finite number"):
        MtebTask(task)._averaged(rows)


def test_whose_metric_is_the_papers() -> None:
    """ReBA, table 3, by mteb's names of today; other papers report the main score."""
    reba = {
        "Classification": "accuracy",
        "Clustering": "v_measure",
        "PairClassification": "cosine_accuracy",
        "Reranking": "map_at_1000",
        "Retrieval": "recall_at_1000",
        "STS": "cosine_pearson",
    }
    for kind, metric in reba.items():
        task = MtebTask(make_task(kind))
        assert task.paper({metric: 0.5}) == (None if metric == task.task.metadata.main_score else metric)
        assert task.paper({}) is None
    names = {each.name: each for each in find_tasks(["C-MTEB", "MTEB-15"])}
    everything = dict.fromkeys(reba.values(), 0.5)
    for name, wanted in (
        ("STSB", "cosine_pearson"),
        ("Ocnli", "cosine_accuracy"),
        ("T2Retrieval", "recall_at_1000"),
        ("STSBenchmark", None),
    ):
        assert names[name].paper(everything) == wanted


def test_without_mteb_a_name_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match="files of your own do without it") as caught:
        tasks_of(["STSB"])
    setup = configparser.ConfigParser()
    setup.read(Path(st_reba.__file__).parents[1] / "setup.cfg")
    extra = str(caught.value).partition("pip install 'st-reba[")[2].partition("]'")[0]
    assert "mteb" in setup["options.extras_require"][extra]


# The encoder

INSTRUCT = {"method": "echo", "template": "echo-instruct", "instruction": "Find it."}


@pytest.fixture(scope="module")
def model() -> Any:
    return st_reba.build("mini", "echo", pooling="mean")


def counted() -> Any:
    """Counts texts and positions, as ``progress``."""
    found = SimpleNamespace(texts=0, positions=0)

    def progress(texts: int, positions: int) -> None:
        found.texts += texts
        found.positions += positions

    return found, progress


def encoded(encoder: Encoder, given: list[str], kind: str = "STS", role: str | None = None, name: str = "own") -> Any:
    """What mteb gets for texts, handed over in batches of five."""
    from mteb.types import PromptType

    batches = [{"text": given[start : start + 5]} for start in range(0, len(given), 5)]
    return encoder.encode(
        batches,
        task_metadata=make_task(kind, name).metadata,
        hf_split="test",
        hf_subset="default",
        prompt_type=None if role is None else PromptType(role),
    )


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_vectors_are_the_models_and_each_text_is_encoded_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is tokenized more often than `encode_texts` does."""
    given = texts(30)
    assert len(set(given)) < len(given)
    new = [*given[::-1], "a text that was not there"]
    asked: list[str] = []
    plain = PreTrainedTokenizerFast.__call__

    def spy(self: Any, text: Any, *arguments: Any, **options: Any) -> Any:
        asked.extend([text] if isinstance(text, str) else text)
        return plain(self, text, *arguments, **options)

    wanted = model.encode(given)
    (found, progress) = counted()
    encoder = Encoder(model, None, progress=progress)
    with monkeypatch.context() as patched:
        patched.setattr(PreTrainedTokenizerFast, "__call__", spy)
        first, again = encoded(encoder, given), encoded(encoder, new)
        ours = sorted(asked)
        asked.clear()
        encode_texts(model, sorted(set(new)))
    assert set(new) <= set(ours) and ours == sorted(asked)
    assert first.dtype == np.float32
    close(first, wanted)
    close(again[:-1], wanted[::-1])
    close(again[-1], model.encode(new[-1]))
    # Positions as the model's own input has them.
    masks = [model[0].preprocess([text])["attention_mask"].sum().item() for text in set(new)]
    assert (found.texts, found.positions) == (len(set(new)), sum(masks))
    assert encoder.scored == len(given) + len(new)


def test_little_room_changes_nothing(model: Any) -> None:
    given = texts(30)
    (found, progress) = counted()
    encoder = Encoder(model, None, progress=progress)
    encoder._room = 10
    close(encoded(encoder, given), model.encode(given))
    close(encoded(encoder, given), model.encode(given))
    assert found.texts == 2 * len(set(given))


def test_instructions_are_applied_task_by_task_and_role_by_role(model: Any) -> None:
    given = Instructions(
        "mine", {"one": "Say it.", "two": {"query": "Ask.", "document": "Answer."}}, query="I: {instruction}\n"
    )
    encoder = Encoder(model, None, given)
    asked = texts(6)
    for name, role, prompt in (
        ("one", None, "I: Say it.\n"),
        ("one", "query", "I: Say it.\n"),
        ("one", "document", None),
        ("two", "query", "I: Ask.\n"),
        ("two", "document", "Answer."),
        ("three", None, None),
    ):
        found = encoded(encoder, asked, "Retrieval" if role else "STS", role, name)
        close(found, model.encode(asked, prompt=prompt))
        assert np.allclose(found, model.encode(asked), atol=1e-4) == (prompt is None)


def test_a_templates_field_takes_the_bare_instruction() -> None:
    model = st_reba.build("mini", **INSTRUCT)
    given = Instructions("mine", {"own": "Find the answer."}, query="Instruct: {instruction}\nQuery: ")
    encoder = Encoder(model, None, given)
    texts_ = texts(6)
    asked = model.encode_query(texts_, prompt="Find the answer.")
    assert _has_roles(model) and not np.allclose(asked, model.encode_query(texts_), atol=1e-4)
    close(encoded(encoder, texts_, "Retrieval", "query"), asked)
    close(encoded(encoder, texts_, "Retrieval", "document"), model.encode_document(texts_))
    close(encoded(encoder, texts_), asked)


@pytest.mark.parametrize(
    "options",
    [
        {"prompts": {"query": "Q: ", "document": "D: "}},
        {"prompts": {"query": "Q: ", "any": "A: "}, "default_prompt_name": "any"},
        {"template": {"query": "Q: {text} {text}", "document": "D: {text} {text}"}},
    ],
)
def test_roles_where_the_model_has_them(options: dict[str, Any], model: Any) -> None:
    own = st_reba.build("mini", "echo", **options)
    encoder, given = Encoder(own, None), texts(6)
    assert _has_roles(own) and not _has_roles(model)
    close(encoded(encoder, given, "Retrieval", "query"), own.encode_query(given))
    close(encoded(encoder, given, "Retrieval", "document"), own.encode_document(given))
    close(encoded(encoder, given), own.encode(given))
    assert not np.allclose(own.encode_query(given), own.encode_document(given), atol=1e-4)


def test_a_limit_of_content_counts_no_prompt() -> None:
    given = Instructions("mine", {"one": "A long instruction, of many tokens, before a text."})
    for method in ("classical", "echo"):
        model = st_reba.build("mini", method)
        for name in ("one", "two", "one"):
            (found, progress) = counted()
            encoder = Encoder(model, None, given, limit=Limit(3, "content"), progress=progress)
            encoded(encoder, ["cat " * 40], name=name)
            (frame,) = model[0].frames(given.of(name))
            assert found.positions == frame.overhead + 3 * frame.copies


def test_names_need_no_network(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    meta = model_meta("base--echo-2 mean", "00ff" * 16, model)
    assert (meta.name, meta.revision) == ("st-reba/base--echo-2-mean--00ff00ff", "00ff" * 16)
    assert (meta.embed_dim, meta.similarity_fn_name.value) == (192, "cosine")
    assert meta.n_parameters == sum(parameter.numel() for parameter in model.parameters())
