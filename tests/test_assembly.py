"""Putting a model together: of a backbone alone, and of a sentence-transformers model that keeps what is its own."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, save
from marks import slow_but
from oracle import TEXTS
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    StaticEmbedding,
    Transformer,
    WeightedLayerPooling,
)
from transformers import AutoConfig, masking_utils

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.describe import describe

PROMPTS = {"query": "Instruct: find the answer.\nQuery: ", "document": ""}
POOLINGS = ["lasttoken", "mean", "cls", "weightedmean"]


# A sentence-transformers model as the base: its input, prompts, end token and pooling stay its own


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., str]:
    """``repository(architecture, pooling)``: a plain ST model as such embedders are published."""

    def make(name: str = "llama", pooling: str = "lasttoken", causal: bool = True, **options: Any) -> str:
        tokenizer = TOKENIZERS["bos_eos"]()
        tokenizer.pad_token = tokenizer.eos_token
        base = save(name, tmp_path / "base", tokenizer)
        if not causal:
            config = AutoConfig.from_pretrained(base)
            config.is_causal = False
            config.save_pretrained(base)
        torch.manual_seed(0)
        modules = [
            Transformer(str(base), max_seq_length=20),
            Pooling(32, pooling, **options),
            Dense(32, 16),
            Normalize(),
        ]
        model = SentenceTransformer(
            modules=modules, prompts=PROMPTS, default_prompt_name=None, similarity_fn_name="dot", device="cpu"
        )
        model.save_pretrained(str(tmp_path / "repository"))
        return str(tmp_path / "repository")

    return make


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", slow_but(["llama", "qwen2", "mistral"], "llama"))
def test_unconverted_it_is_the_same_model(repository: Callable[..., str], name: str, pooling: str) -> None:
    path = repository(name, pooling)
    plain = SentenceTransformer(path, device="cpu")
    built = st_reba.build(path, "nosink", setting="baseline")
    for encode in ("encode", "encode_query", "encode_document"):
        wanted = getattr(plain, encode)(list(TEXTS), batch_size=2)
        np.testing.assert_allclose(getattr(built, encode)(list(TEXTS), batch_size=2), wanted, atol=2e-6, rtol=0)
    assert built.prompts == plain.prompts and built.similarity_fn_name == "dot"
    assert built.max_seq_length == plain.max_seq_length == 20
    assert [type(module) for module in built][1:] == [type(module) for module in plain][1:]


@pytest.mark.parametrize("setting", ["mask0-bidir", "inplace-bidir", "mask0&bidir"])
def test_every_layer_by_default(repository: Callable[..., str], setting: str, tmp_path: Path) -> None:
    """k = L, and the vector is that of the backbone run by hand, pooled at the end token as before."""
    path = repository()
    number = {"k0": 1} if "&" in setting else {}
    built = st_reba.build(path, "nosink", setting=setting, **number)
    assert built[0].stage("nosink").k == "all" and len(built[0].stack.kinds) == 2
    assert all("bidirectional" in kind for kind in built[0].stack.kinds)
    assert st_reba.build(path, "nosink", setting=setting, k=1, **number)[0].stage("nosink").k == 1
    alone = st_reba.build(
        str(tmp_path / "base"), "nosink", setting=setting, k=2, pooling="last", span="end", normalize=False, **number
    )
    with torch.inference_mode():
        for text in ("今天天气", "hi"):
            hidden = torch.from_numpy(alone.encode(text))[None]
            wanted = built[3]({"sentence_embedding": built[2]({"sentence_embedding": hidden})["sentence_embedding"]})
            np.testing.assert_allclose(built.encode(text), wanted["sentence_embedding"][0], atol=2e-6, rtol=0)


def test_already_bidirectional(repository: Callable[..., str]) -> None:
    """A base whose configuration says that it looks both ways: bidirectional changes nothing, nosink does."""
    if "is_causal" not in inspect.getsource(masking_utils.create_causal_mask).replace("is_causal_skip", ""):
        pytest.skip("this release of transformers cannot turn a decoder's causal mask off")
    path = repository(causal=False)
    plain = SentenceTransformer(path, device="cpu").encode(list(TEXTS))
    built = st_reba.build(path, "nosink", setting="inplace-bidir")
    np.testing.assert_allclose(built.encode(list(TEXTS)), plain, atol=2e-6, rtol=0)
    masked = st_reba.build(path, "nosink", setting="mask0-bidir").encode(list(TEXTS))
    assert np.abs(masked - plain).max() > 1e-2
    with pytest.raises(ValueError, match="LlamaModel looks both ways already.*k='all'"):
        st_reba.build(path, "nosink", setting="mask0-bidir", k=1)
    with pytest.raises(ValueError, match="looks both ways already"):
        st_reba.build(path, "nosink", setting="inplace-back")


def test_saved_and_loaded(repository: Callable[..., str], tmp_path: Path) -> None:
    built = st_reba.build(repository(), "nosink", setting="mask0&bidir", k0=1)
    built.save_pretrained(str(tmp_path / "converted"))
    loaded = SentenceTransformer(str(tmp_path / "converted"), device="cpu")
    assert type(loaded[0]) is st_reba.DecoderTransformer and loaded[0].stack == built[0].stack
    for encode in ("encode", "encode_query"):
        np.testing.assert_array_equal(getattr(loaded, encode)(list(TEXTS)), getattr(built, encode)(list(TEXTS)))
    shown = describe(tmp_path / "converted")
    assert shown.layers == "1 bidirectional → 1 nosink-bidirectional"
    assert (shown.copies, shown.base) == (1, "repository")
    assert shown.prompts == {"query": PROMPTS["query"]} and shown.dimension == 16
    with pytest.raises(ValueError, match="is a saved embedder"):
        st_reba.build(tmp_path / "converted", "nosink", setting="baseline")


def test_what_would_be_lost_is_refused(tmp_path: Path) -> None:
    """Modules that need more of the backbone than its last hidden states, and classes with a forward of their own."""
    base = str(save("llama", tmp_path / "base", "bos_eos"))
    first = Transformer(base, config_kwargs={"output_hidden_states": True})
    SentenceTransformer(
        modules=[first, WeightedLayerPooling(32, num_hidden_layers=2, layer_start=1), Pooling(32)], device="cpu"
    ).save_pretrained(str(tmp_path / "weighted"))
    with pytest.raises(ValueError, match="WeightedLayerPooling reads the hidden states of every layer.*pooling="):
        st_reba.build(str(tmp_path / "weighted"), "nosink", setting="baseline")
    SentenceTransformer(modules=[StaticEmbedding(TOKENIZERS["plain"]().backend_tokenizer, embedding_dim=8)]).save(
        str(tmp_path / "static")
    )
    with pytest.raises(ValueError, match="starts with StaticEmbedding"):
        st_reba.build(str(tmp_path / "static"), "nosink", setting="baseline")


def test_several_poolings(repository: Callable[..., str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = save("llama", tmp_path / "other", "bos_eos")
    modules = [Transformer(str(base)), Pooling(32, ("cls", "mean"))]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "two"))
    st_reba.build(str(tmp_path / "two"), "nosink", setting="inplace-bidir").save_pretrained(str(tmp_path / "out"))
    shown = describe(tmp_path / "out")
    assert shown.dimension == 64


def test_extend_needs_a_number(repository: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="setting='extend-back' needs k"):
        st_reba.build(repository(), "nosink", setting="extend-back")


def test_backbone_alone(repository: Callable[..., str]) -> None:
    """With a pooling of one's own only the backbone is taken."""
    built = st_reba.build(repository(), "nosink", setting="mask0-bidir", k=1, pooling="mean")
    assert type(built[0]) is st_reba.NoSinkTransformer and built.get_embedding_dimension() == 32


@pytest.mark.parametrize(
    "option",
    [
        {"template": "Say: {text}"},
        {"span": "end"},
        {"normalize": False},
        {"instruction": "x"},
        {"tokenizer": "mini"},
        {"stages": [st_reba.ReadLayers(1)]},
    ],
)
def test_options_that_would_do_nothing(repository: Callable[..., str], option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="(?s)=.*own input and pooling are kept"):
        st_reba.build(repository(), "nosink", setting="baseline", **option)


# A backbone alone


def test_vectors_that_would_all_be_zero_are_refused() -> None:
    """Templates that differ behind the text alone, of which one is taken away from the other."""
    ensemble = st_reba.Ensemble(["{text} {text} a", "{text} {text} b"], weights=[1, -1])
    with pytest.raises(ValueError, match="add up to zero"):
        st_reba.build("mini", "echo", stages=[ensemble])


def test_a_saved_embedder_is_no_base(tmp_path: Path) -> None:
    st_reba.build("mini", check=False).save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="is a saved embedder, whose method and pooling would be lost"):
        st_reba.build(tmp_path, "echo")


def test_modules_by_hand_are_what_build_makes() -> None:
    transformer = st_reba.RepeatTransformer(str(EMBEDDED["mini"]), repeats=2)
    hand = SentenceTransformer(modules=[transformer, st_reba.ReBAPooling(192, "mean"), Normalize()], device="cpu")
    built = st_reba.build("mini", "reba", pooling="mean")
    assert np.array_equal(hand.encode(list(TEXTS)), built.encode(list(TEXTS)))


@pytest.mark.parametrize("base", ["no-such-model", "Mini", "", "./nowhere"])
def test_missing_base(base: str) -> None:
    with pytest.raises(OSError, match="mini") as error:
        st_reba.build(base)
    assert f"base={base!r}" in str(error.value)


def test_base_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="is a file.*folder"):
        st_reba.build(file)
    with pytest.raises((OSError, ValueError)) as error:
        st_reba.build(tmp_path)
    assert f"base={str(tmp_path)!r}" in str(error.value) and "config.json" in str(error.value)


def test_normalize() -> None:
    plain, scaled = st_reba.build("mini", normalize=False), st_reba.build("mini", normalize=True)
    assert [isinstance(module, Normalize) for module in scaled] == [False, False, True]
    assert not any(isinstance(module, Normalize) for module in plain)
    raw = plain.encode(list(TEXTS))
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(scaled.encode(list(TEXTS)), raw / lengths, atol=1e-5)


def test_dtype() -> None:
    stored = torch.bfloat16
    assert st_reba.build("mini", device="cpu").dtype == torch.float32
    for dtype in ("bfloat16", torch.bfloat16, "auto"):
        half = st_reba.build("mini", dtype=dtype)
        assert half.dtype == stored
    one, other = half.encode(list(TEXTS)), st_reba.build("mini").encode(list(TEXTS))
    assert one.dtype == other.dtype == np.float32
    cosines = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.999


def test_base_is_recorded_without_its_path(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EMBEDDED["mini"], tmp_path / "somewhere" / "my base"))
    from_path: Any = st_reba.build(folder)
    assert from_path[0].base_model == "my base"
    assert str(tmp_path) not in str(from_path[0].get_config_dict())
    mini: Any = st_reba.build("mini")
    assert mini[0].base_model == "mini"
    assert np.array_equal(from_path.encode(list(TEXTS)), mini.encode(list(TEXTS)))
