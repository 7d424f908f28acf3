"""What the page shows against reference.py and plain Python."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import assert_close, oracle
from reference import reba, reba_weights, reba_word
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.explore.compute import (
    MOST_CHARACTERS,
    MOST_POSITIONS,
    Refused,
    can_look,
    copies_of,
    found_in,
    lines_of,
    look,
    open_index,
    open_models,
    passes_of,
    ranked,
    shared_words,
    similarities,
    tokens_of,
)

TEXT = "他在银行取了钱，then went home."


@pytest.mark.parametrize("method", ["reba", "echo:pooling=mean"])
@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_weights(method: str, repeats: int) -> None:
    """The rows are those of A^new, whatever the model's own number of copies, which stays."""
    model = st_reba.build("mini", method)
    before = model.encode(TEXT)
    inside = look(model, TEXT, repeats)
    placed, hidden, matrix = oracle("mini", TEXT, (None,) * repeats)
    wanted = reba_weights(matrix, placed)
    assert inside.copies == tuple(placed.copy_of) and len(inside.tokens) == len(placed.ids)
    assert_close(inside.rows, wanted)
    # METHODS: alpha_t is the sum of A^new[pos(1, i), t] over the tokens i that stand at t or before.
    alpha = [0.0] * len(placed.ids)
    for i in placed.positions(1):
        for t in placed.content:
            alpha[t] += float(matrix[i, t]) if t >= i else 0.0
    assert_close(inside.weights("mean"), torch.tensor(alpha, dtype=torch.float64))
    assert_close(torch.tensor(inside.weights("mean")) @ hidden / placed.n, reba(hidden, matrix, placed, "mean"))
    assert_close(torch.tensor(inside.weights("last")) @ hidden, reba(hidden, matrix, placed, "last"))
    chosen = tokens_of(model, TEXT, " 取了 ")
    assert [inside.maps.tokens[placed.positions(1)[i]] for i in chosen] == ["取", "了"]
    assert_close(torch.tensor(inside.weights("word", chosen)) @ hidden, reba_word(hidden, matrix, placed, chosen))
    np.testing.assert_array_equal(model.encode(TEXT), before)


def test_a_template_has_its_own_copies() -> None:
    model = st_reba.build("mini", "echo", template="echo", pooling="mean")
    assert copies_of(model) == (2, False) and copies_of(st_reba.build("mini", "reba", repeats=3)) == (3, True)
    inside = look(model, TEXT, 2)
    pieces = ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None)
    placed, _, matrix = oracle("mini", TEXT, pieces)
    assert inside.copies == tuple(placed.copy_of)
    assert_close(inside.rows, reba_weights(matrix, placed))


def test_attention_is_that_of_the_copies() -> None:
    """The maps and the weights are of one input: the text as often as was asked for, behind the model's prompt."""
    model = st_reba.build("mini", prompts={"query": "query: "}, default_prompt_name="query")
    inside = look(model, "天气", 3)
    assert len(inside.maps.layers) == len(inside.sinks) == 6
    assert inside.copies[-6:] == (1, 1, 2, 2, 3, 3) and "".join(inside.tokens[1:-6]) == "query:␣"
    assert all(layer.matrix.shape == (len(inside.copies),) * 2 for layer in inside.maps.layers)
    assert inside.sinks[0].sink == pytest.approx(inside.maps.layers[0].matrix[1:, 0].mean(), abs=1e-6)


def test_a_layer_that_runs_twice() -> None:
    model = st_reba.build("mini", "nosink", setting="extra-bidir", k=2)
    inside = look(model, "天气", 1)
    assert passes_of(model) == len(inside.maps.layers) == 8 and passes_of(st_reba.build("mini")) == 6


def test_what_cannot_be_looked_at() -> None:
    assert not can_look(st_reba.build("mini", "classical", stages=["ensemble"]))
    plain = SentenceTransformer(modules=[Transformer(str(EMBEDDED["mini"])), Pooling(192, "mean")], device="cpu")
    assert not can_look(plain) and can_look(st_reba.build("mini", "nosink", setting="mask0-bidir", k=2))


def test_similarities() -> None:
    """Cosines, though the vectors are not of length 1."""
    model = st_reba.build("mini", "reba", normalize=False)
    texts = ["天气很好", "a cat", "a cat sleeps"]
    vectors = [[float(x) for x in row] for row in model.encode(texts)]
    table = similarities(model, texts)
    for i, one in enumerate(vectors):
        for j, other in enumerate(vectors):
            product = sum(a * b for a, b in zip(one, other, strict=True))
            length = math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in other))
            assert table[i, j] == pytest.approx(product / length, abs=1e-6)


def test_ranked() -> None:
    """As a query and as documents, the best first; what ties stays in its order."""
    model = st_reba.build("mini", "echo:pooling=mean", prompts={"query": "query: ", "document": "passage: "})
    texts = ["Ships sail.", "a cat", "The cat sleeps on the sofa.", "a cat"]
    query, documents = model.encode_query("Where is the cat?"), model.encode_document(texts)
    scores = [float(sum(a * b for a, b in zip(query, row, strict=True))) for row in documents.astype(float)]
    best = sorted(range(4), key=lambda place: (-round(scores[place], 6), place))
    hits = ranked(model, "Where is the cat?", texts, k=3)
    assert [hit.text for hit in hits] == [texts[place] for place in best[:3]]
    np.testing.assert_allclose([hit.score for hit in hits], [scores[place] for place in best[:3]], atol=1e-6)


def test_shared_words() -> None:
    assert shared_words("猫在哪里", "小猫在睡觉") == [("小", False), ("猫", True), ("在", True), ("睡觉", False)]
    assert shared_words("art", "a party") == [("a party", False)]


def test_an_index_is_opened_with_the_model_that_built_it(tmp_path: Path) -> None:
    models = open_models(["mini", "mini echo:pooling=mean"])
    texts = ["The cat sleeps.", "Ships sail.", "银行提高了利率。"]
    st_reba.Index.build(models["mini echo:pooling=mean"], texts, tmp_path / "index", show_progress_bar=False).close()
    index = open_index(tmp_path / "index", models)
    hits = found_in(index, "cat")
    wanted = index.search("cat", k=3, model=models["mini echo:pooling=mean"])
    assert [(hit.score, hit.text) for hit in hits] == [(each.score, each.text) for each in wanted]
    # It was not saved anywhere, and no other model is it.
    with pytest.raises(ValueError, match="does not say where its model is"):
        open_index(tmp_path / "index", {"mini": models["mini"]})


def test_an_index_brings_its_own_model(tmp_path: Path) -> None:
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "model"))
    index = st_reba.Index.build(str(tmp_path / "model"), ["a cat"], tmp_path / "index", show_progress_bar=False)
    index.close()
    assert found_in(open_index(tmp_path / "index", open_models(["mini"])), "cat")[0].text == "a cat"


def test_names(tmp_path: Path) -> None:
    """A folder whose name has a space is a folder; a method stands behind a space."""
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "my model"))
    saved, short, alone = str(tmp_path / "my model"), "mini  echo-3:pooling=mean", "mini"
    models = list(open_models([saved, short, alone]).values())
    assert [str(st_reba.spec_of(model)) for model in models] == ["echo", "echo:pooling=mean,repeats=3", "reba"]


def test_a_name_of_the_zoo_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="qwen3-0.6b-reba"):
        open_models(["zoo:qwen3-0.6b-reab"])


def test_bounds() -> None:
    assert lines_of(" a \n\n b", least=1, most=2) == ["a", "b"]
    assert lines_of("长" * MOST_CHARACTERS, least=1, most=1) == ["长" * MOST_CHARACTERS]
    for text, key in (("\n", "too_few"), ("a\nb\nc", "too_many"), ("a\n" + "长" * (MOST_CHARACTERS + 1), "too_long")):
        with pytest.raises(Refused) as refused:
            lines_of(text, least=1, most=2)
        assert refused.value.key == key
    assert refused.value.values == {"number": 2, "count": MOST_CHARACTERS + 1, "most": MOST_CHARACTERS}


def test_bounds_inside() -> None:
    model = st_reba.build("mini", max_seq_length=41)
    assert len(look(model, "天" * 20, 2).tokens) == 41
    with pytest.raises(Refused) as refused:
        look(model, "天" * 21, 2)
    assert refused.value.key == "cut" and refused.value.values == {"count": 21, "kept": 20}
    with pytest.raises(Refused) as refused:
        look(st_reba.build("mini"), "天" * 96, 2)
    assert refused.value.key == "too_many_positions" and refused.value.values == {"count": 193, "most": MOST_POSITIONS}
    for word in ("狗", " "):
        with pytest.raises(Refused, match="no_word"):
            tokens_of(model, TEXT, word)
