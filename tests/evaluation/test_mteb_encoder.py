"""The encoder that mteb gets: the model's own vectors, a prompt a task, each text once, and names that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mteb_tasks import make_task, texts

import st_reba
from st_reba.evaluation.benchmark.encoder import Encoder, has_roles, model_meta
from st_reba.evaluation.benchmark.prompts import Prompts
from st_reba.evaluation.methods import Limit

INSTRUCT = {"method": "echo", "template": "echo-instruct", "instruction": "Find it."}


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


@pytest.fixture(scope="module")
def model() -> Any:
    return st_reba.build("mini", "echo", pooling="mean")


def test_vectors_are_the_models_and_duplicates_are_encoded_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = texts(30)
    assert len(set(given)) < len(given)
    asked: list[str] = []
    plain = type(model).encode

    def spy(self: Any, inputs: Any, **options: Any) -> Any:
        asked.extend(inputs)
        return plain(self, inputs, **options)

    encoder = Encoder(model, None, show_progress_bar=False)
    wanted = model.encode(given)
    with monkeypatch.context() as patched:
        patched.setattr(type(model), "encode", spy)
        found = encoded(encoder, given)
        again = encoded(encoder, given[::-1] + ["a text that was not there"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(again[:-1], wanted[::-1], atol=1e-6)
    np.testing.assert_allclose(again[-1], model.encode("a text that was not there"), atol=1e-6)
    assert sorted(asked) == sorted({*given, "a text that was not there"})
    # Positions as the model's own input has them.
    masks = [model[0].preprocess([text])["attention_mask"].sum().item() for text in set(asked)]
    assert (encoder.counts.texts, encoder.counts.tokens) == (len(set(asked)), sum(masks))
    encoder.start(None, Prompts())
    assert encoder.counts.texts == 0
    encoded(encoder, given[:1])
    assert encoder.counts.texts == 1


def test_little_room_changes_nothing(model: Any) -> None:
    given = texts(30)
    encoder = Encoder(model, None, show_progress_bar=False)
    encoder._room = 10
    np.testing.assert_allclose(encoded(encoder, given), model.encode(given), atol=1e-6)
    np.testing.assert_allclose(encoded(encoder, given), model.encode(given), atol=1e-6)
    assert encoder.counts.texts == 2 * len(set(given))


def test_prompts_are_applied_task_by_task(model: Any) -> None:
    prompts = Prompts(
        "mine", {"one": "Say it.", "two": {"query": "Ask.", "document": "Answer."}}, query="I: {instruction}\n"
    )
    encoder = Encoder(model, None, prompts, show_progress_bar=False)
    given = texts(6)
    for name, role, prompt in (
        ("one", None, "I: Say it.\n"),
        ("one", "query", "I: Say it.\n"),
        ("one", "document", None),
        ("two", "query", "I: Ask.\n"),
        ("two", "document", "Answer."),
        ("three", None, None),
    ):
        encoder.start(None, prompts)
        found = encoded(encoder, given, "Retrieval" if role else "STS", role, name)
        np.testing.assert_allclose(found, model.encode(given, prompt=prompt), atol=1e-6)
        assert np.allclose(found, model.encode(given), atol=1e-4) == (prompt is None)
    # Within a task, a text that is a query and a document too has a vector of each.
    asked = encoded(encoder, given, "Retrieval", "query", "two")
    told = encoded(encoder, given, "Retrieval", "document", "two")
    np.testing.assert_allclose(told, model.encode(given, prompt="Answer."), atol=1e-6)
    assert not np.allclose(asked, told, atol=1e-4)


def test_a_templates_field_takes_the_bare_instruction() -> None:
    model = st_reba.build("mini", **INSTRUCT)
    prompts = Prompts("mine", {"own": "Find the answer."}, query="Instruct: {instruction}\nQuery: ")
    encoder = Encoder(model, None, prompts, show_progress_bar=False)
    given = texts(6)
    assert has_roles(model)
    asked = model.encode_query(given, prompt="Find the answer.")
    np.testing.assert_allclose(encoded(encoder, given, "Retrieval", "query"), asked, atol=1e-6)
    np.testing.assert_allclose(
        encoded(encoder, given, "Retrieval", "document"), model.encode_document(given), atol=1e-6
    )
    np.testing.assert_allclose(encoded(encoder, given), asked, atol=1e-6)
    assert not np.allclose(asked, model.encode_query(given), atol=1e-4)


def test_roles_where_the_model_has_them(model: Any) -> None:
    assert not has_roles(model)
    saved = st_reba.build("mini", prompts={"query": "Q: ", "document": "D: "})
    encoder = Encoder(saved, None, show_progress_bar=False)
    given = texts(6)
    assert has_roles(saved)
    np.testing.assert_allclose(encoded(encoder, given, "Retrieval", "query"), saved.encode_query(given), atol=1e-6)
    np.testing.assert_allclose(
        encoded(encoder, given, "Retrieval", "document"), saved.encode_document(given), atol=1e-6
    )
    np.testing.assert_allclose(encoded(encoder, given), saved.encode(given), atol=1e-6)


def test_templates_of_their_own_make_roles() -> None:
    model = st_reba.build("mini", "echo", template={"query": "Q: {text} {text}", "document": "D: {text} {text}"})
    encoder = Encoder(model, None, show_progress_bar=False)
    given = texts(6)
    asked, told = model.encode_query(given), model.encode_document(given)
    assert has_roles(model) and not np.allclose(asked, told, atol=1e-4)
    np.testing.assert_allclose(encoded(encoder, given, "Retrieval", "query"), asked, atol=1e-6)
    np.testing.assert_allclose(encoded(encoder, given, "Retrieval", "document"), told, atol=1e-6)


def test_a_limit_of_content_counts_no_prompt() -> None:
    prompts = Prompts("mine", {"one": "A long instruction, of many tokens, before a text."})
    for method in ("classical", "echo"):
        model = st_reba.build("mini", method)
        encoder = Encoder(model, None, prompts, limit=Limit(3, "content"), show_progress_bar=False)
        for name in ("one", "two", "one"):
            encoder.start(None, prompts)
            encoded(encoder, ["cat " * 40], name=name)
            (frame,) = model[0].frames(prompts.instruction(name))
            assert encoder.counts.tokens == frame.overhead + 3 * frame.copies


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
