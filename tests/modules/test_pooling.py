"""ReBAPooling among other modules: what it hands on, what it needs in front, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reference
import torch
from oracle import TEXTS, assert_close, oracle
from pipelines import encoded, features_of, pipeline, transformer
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from st_reba import ChunkedReBAPooling, DecoderTransformer, ReBAPooling

Base = Callable[..., str]


@pytest.fixture(scope="module")
def model(base: Base) -> SentenceTransformer:
    return pipeline(base("llama", "bos_eos"), normalize=True)


# Token vectors on demand


def test_output_values(base: Base, model: SentenceTransformer) -> None:
    """All of ``encode``'s forms have the token vectors."""
    everything = model.encode(list(TEXTS), output_value=None)
    tokens = model.encode(list(TEXTS), output_value="token_embeddings")
    for each, one, vector in zip(everything, tokens, encoded(model), strict=True):
        assert torch.equal(each["token_embeddings"][: len(one)], one)
        assert_close(each["sentence_embedding"], vector.double())


def test_defaults() -> None:
    plain = {"variant": "paper", "include_special": False, "normalize_weights": False}
    assert ReBAPooling(4).get_config_dict() == {"embedding_dimension": 4, "pooling": "last", **plain}


def test_span_embeddings(base: Base) -> None:
    """The mean of a span's e_i, or in the published code its rows together."""
    path = base("llama", "bos_eos")
    spans = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool()
    texts = ("The bank", "hi")
    for variant, normalize in (("paper", False), ("paper", True), ("published", False)):
        made: Any = pipeline(path, variant=variant)
        with torch.inference_mode():
            given = made[0](features_of(made, texts), watch=[made[1].token_capture])
            got = made[1].span_embeddings(given, spans[:, : max(n for _, n, _ in given["places"])], normalize=normalize)
        for text, row, vector in zip(texts, spans, got, strict=True):
            placed, hidden, fused = oracle(path, text, (None, None))
            inside = [index for index in range(placed.n) if index < len(row) and row[index]]
            assert inside
            if variant == "published":
                assert_close(vector, reference.published_word(hidden, fused, placed, inside))
            else:
                assert_close(vector, reference.reba_word(hidden, fused, placed, inside, normalize_weights=normalize))


# What does not fit


def test_pipelines_that_do_not_fit(base: Base) -> None:
    path = base("llama", "bos_eos")
    for first, message in (
        (Transformer(path), "the pipeline starts with Transformer. Put st_reba.RepeatTransformer in front"),
        (torch.nn.Identity(), "starts with Identity"),
        # It knows no copies.
        (DecoderTransformer(path), "starts with DecoderTransformer"),
    ):
        for pooling in (ReBAPooling(32), ChunkedReBAPooling(32, 8)):
            with pytest.raises(ValueError, match=message.split(".")[0]):
                SentenceTransformer(modules=[first, pooling], device="cpu")
    with pytest.raises(ValueError, match="embedding_dimension=100, but the hidden states have 32"):
        SentenceTransformer(modules=[transformer(path), ReBAPooling(100)], device="cpu").encode("hi")
    with pytest.raises(ValueError, match="no pooling follows RepeatTransformer"):
        SentenceTransformer(modules=[transformer(path), Normalize()], device="cpu")


def test_a_module_that_asked_for_nothing(base: Base) -> None:
    """One that was appended to a ready model, or whose neighbour serves another model since."""
    first = transformer(base("llama"))
    features = first(dict(first.preprocess(["hi"])))
    with pytest.raises(ValueError, match="no 'backward_attention'.*hand both to SentenceTransformer"):
        ReBAPooling(32)(features)
    with pytest.raises(ValueError, match="knows no module in front"):
        _ = ReBAPooling(32).source
    last = SentenceTransformer(modules=[first, ReBAPooling(32)], device="cpu")
    mean = SentenceTransformer(modules=[first, ReBAPooling(32, "mean")], device="cpu")
    mean.encode("hi")
    with pytest.raises(ValueError, match="RepeatTransformer captured .*copy.* it serves another model too"):
        last.encode("hi")


def test_a_plain_pooling_after_a_capture(base: Base) -> None:
    """A module that served ReBA before computes for Echo what it always did."""
    path = base("llama")
    first: Any = transformer(path, "echo")
    SentenceTransformer(modules=[first, ReBAPooling(32)], device="cpu").encode("hi")
    echo = SentenceTransformer(modules=[first, Pooling(32, "mean")], device="cpu")
    np.testing.assert_allclose(encoded(echo), encoded(pipeline(path, "echo", pooling="mean")), atol=1e-5)


HUGE: Any = [0, -1, 10**9, True, 32.0, "32", None, float("inf")]


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        *((ReBAPooling, {"embedding_dimension": value}, "embedding_dimension") for value in HUGE),
        *((ReBAPooling, {"pooling": value}, "pooling") for value in ("cls", "Last", None, 3, ["last"], "x" * 60_000)),
        *((ReBAPooling, {"variant": value}, "variant") for value in ("code", None, 3)),
        *((ReBAPooling, {name: 1}, name) for name in ("include_special", "normalize_weights")),
        *((ChunkedReBAPooling, {"chunk": value}, "chunk") for value in (0, -1, 1 << 25, True, 2.0, "8", None)),
        *((ChunkedReBAPooling, {"chunk": 8, "repeats": value}, "repeats") for value in (0, 65, 2.0, None)),
        *((ChunkedReBAPooling, {"chunk": 8, "pooling": value}, "pooling") for value in ("cls", None)),
        (ChunkedReBAPooling, {"chunk": 8, "include_special": "yes"}, "include_special"),
    ],
    ids=lambda each: repr(each)[:50],
)
def test_hostile_values(kind: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as caught:
        kind(**{"embedding_dimension": 32, **options})
    assert named in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600
