"""Numbers of the page against the float64 oracle and plain Python."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from oracle import assert_close, oracle
from reference import reba, reba_weights, reba_word
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba.explore import compute
from st_reba.explore.compute import MAX_CHARACTERS, MAX_POSITIONS, Refused, look, tokens_of

TEXT = "他在银行取了钱，then went home."


@pytest.mark.parametrize(("method", "repeats"), [("reba", 2), ("reba", 3), ("echo:pooling=mean", 1)])
def test_weights(method: str, repeats: int) -> None:
    """The rows are those of A^new, whatever the model's own number of copies, which stays."""
    model = st_reba.build("mini", method)
    before = model.encode(TEXT)
    inside = look(model, TEXT, repeats)
    placed, hidden, matrix = oracle("mini", TEXT, (None,) * repeats)
    assert inside.copies == list(placed.copy_of) and len(inside.maps.tokens) == len(placed.ids)
    assert_close(inside.rows, reba_weights(matrix, placed))
    assert_close(torch.tensor(inside.weights("mean")) @ hidden / placed.n, reba(hidden, matrix, placed, "mean"))
    assert_close(torch.tensor(inside.weights("last")) @ hidden, reba(hidden, matrix, placed, "last"))
    chosen = tokens_of(model, TEXT, " 取了 ")
    assert [inside.maps.tokens[placed.positions(1)[i]] for i in chosen] == ["取", "了"]
    assert_close(torch.tensor(inside.weights("word", chosen)) @ hidden, reba_word(hidden, matrix, placed, chosen))
    np.testing.assert_array_equal(model.encode(TEXT), before)


def test_attention_is_that_of_the_copies() -> None:
    """The maps and the weights are of one input: the text as often as was asked for, behind the model's prompt."""
    model = st_reba.build("mini", "reba", prompts={"query": "query: "}, default_prompt_name="query")
    inside = look(model, "天气", 3)
    assert inside.copies[-6:] == [1, 1, 2, 2, 3, 3] and "".join(inside.maps.tokens[1:-6]) == "query:␣"
    assert len(inside.maps.layers) == len(inside.sinks) == compute.passes_of(model) == 6
    assert inside.maps.layers[0].matrix.shape == (len(inside.copies),) * 2
    assert inside.sinks[0].sink == pytest.approx(inside.maps.layers[0].matrix[1:, 0].mean(), abs=1e-6)


def test_a_template_has_its_own_copies() -> None:
    model = st_reba.build("mini", "echo", template="echo", pooling="mean")
    assert compute.copies_of(model) == (2, False)
    assert compute.copies_of(st_reba.build("mini", "reba", repeats=3)) == (3, True)
    assert compute.copies_of(st_reba.build("mini", "prompteol")) == (1, False)
    inside = look(model, TEXT, 4)
    pieces = ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None)
    placed, _, matrix = oracle("mini", TEXT, pieces)
    assert inside.copies == list(placed.copy_of)
    assert_close(inside.rows, reba_weights(matrix, placed))
    twice = st_reba.build("mini", "nosink", setting="extra-bidir", k=2)
    assert compute.passes_of(twice) == len(look(twice, "天气", 2).maps.layers) == 8


def test_models_that_cannot_be_looked_at() -> None:
    assert not compute.can_look(st_reba.build("mini", "prompteol", template="metaeol"))
    folder = Path(st_reba.__file__).parent / "mini"
    assert not compute.can_look(SentenceTransformer(modules=[Transformer(str(folder)), Pooling(192, "mean")]))


def test_similarities_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines of vectors that are not of length 1; a query and documents have their prompts; ties keep their order."""
    model = st_reba.build("mini", "reba", normalize=False, prompts={"query": "query: ", "document": "passage: "})
    texts = ["Ships sail.", "a cat", "The cat sleeps on the sofa.", "a cat"]

    def cosine(one: object, other: object) -> float:
        return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))

    vectors = model.encode(texts).astype(float)
    expected = [[cosine(one, other) for other in vectors] for one in vectors]
    np.testing.assert_allclose(compute.similarities(model, texts), expected, atol=1e-6)
    query = model.encode_query("Where is the cat?").astype(float)
    scores = [round(cosine(query, each), 6) for each in model.encode_document(texts).astype(float)]
    best = sorted(range(4), key=lambda place: (-scores[place], place))[:3]
    monkeypatch.setattr(compute, "MAX_RESULTS", 3)
    hits = compute.ranked(model, "Where is the cat?", texts)
    assert [text for _, text in hits] == [texts[place] for place in best]
    np.testing.assert_allclose([score for score, _ in hits], [scores[place] for place in best], atol=2e-6)


def test_saved_models_are_loaded_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock(**{"load_file_path.side_effect": lambda base, file: None if base == "a/base" else file})
    for name in ("load", "build", "load_file_path"):
        monkeypatch.setattr(compute, name, getattr(found, name))
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    wanted = {("mini", None): "build", ("a/base", None): "load_file_path build", ("a/b", st_reba.Method()): "build"}
    wanted |= {("a/b", None): "load_file_path load", ("my model", None): "load_file_path load"}
    for (base, method), names in wanted.items():
        found.reset_mock()
        compute.open_model(base, method)
        assert [name for name, _, _ in found.mock_calls] == names.split()


def test_bounds() -> None:
    assert compute.lines_of(" a \n\n b", least=1, most=2) == ["a", "b"]
    assert compute.lines_of("长" * MAX_CHARACTERS, least=1, most=1) == ["长" * MAX_CHARACTERS]
    for text, key in (("\n", "too_few"), ("a\nb\nc", "too_many"), ("a\n" + "长" * (MAX_CHARACTERS + 1), "too_long")):
        with pytest.raises(Refused) as refused:
            compute.lines_of(text, least=1, most=2)
        assert refused.value.key == key and refused.value.values.get("number", 2) == 2
    short, model = st_reba.build("mini", "reba", max_seq_length=41), st_reba.build("mini", "reba")
    assert len(look(short, "天" * 20, 2).copies) == 41
    for asked, text, key in ((short, "天" * 21, "cut"), (model, "天" * (MAX_POSITIONS // 2), "too_many_positions")):
        with pytest.raises(Refused) as refused:
            look(asked, text, 2)
        assert refused.value.key == key
    for word in ("狗", " "):
        with pytest.raises(Refused, match="no_word"):
            tokens_of(model, TEXT, word)
