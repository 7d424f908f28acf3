"""Chunked ReBA against its oracle, what runs for it, and what is refused."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from reference import Layout, hidden_and_attention, layout, symmetrized_max
from reference_chunked import Run, chunked_pooled, chunked_tokens, cut
from sentence_transformers import SentenceTransformer
from torch import Tensor

import st_reba
from st_reba import ChunkedReBAPooling, RepeatTransformer, cli, encode_words
from st_reba.modules import chunked
from st_reba.modules.capture import CaptureSpec

Base = Callable[..., str]
NAMES = ["llama", "gpt2", "mistral", "gemma2", "falcon", "mini", "stories260K"]
SIDES = ["left", "right"]
ALL = (*TEXTS, "The bank of the river is steep. 他在银行取了钱。 She put her money there.")
MODULES = Path(st_reba.__file__).parent / "modules"


@lru_cache(maxsize=4096)
def run(base: str, ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    hidden, attention = hidden_and_attention(double(base), ids)
    return hidden, symmetrized_max(attention)


def placed(base: str, text: str, pieces: tuple[str | None, ...] = (None,)) -> Layout:
    return layout(loaded(base)[1], text, list(pieces))


def wanted(
    base: str, text: str, chunk: int, k: int = 2, pieces: tuple[str | None, ...] = (None,), **kw: bool
) -> Tensor:
    """The oracle's e_i."""
    runs: Run = partial(run, base)
    return chunked_tokens(runs, placed(base, text, pieces), chunk, k, **kw)


def tokens(model: SentenceTransformer, texts: tuple[str, ...] = ALL, **kw: Any) -> list[Tensor]:
    return list(model.encode(list(texts), batch_size=len(texts), output_value="token_embeddings", **kw))


def sentences(model: SentenceTransformer, *, batched: bool = True, **kw: Any) -> list[Tensor]:
    if batched:
        return list(model.encode(list(ALL), batch_size=len(ALL), convert_to_tensor=True, **kw))
    return [model.encode(text, convert_to_tensor=True, **kw) for text in ALL]


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shape [B, T] of every forward pass from here on."""
    shapes: list[tuple[int, int]] = []
    forward = RepeatTransformer.forward

    def noted(self: RepeatTransformer, features: dict[str, Any], **kw: Any) -> dict[str, Any]:
        shapes.append(tuple(features["input_ids"].shape))
        return forward(self, features, **kw)

    monkeypatch.setattr(RepeatTransformer, "forward", noted)
    return shapes


# Numbers


@pytest.mark.parametrize("chunk", slow_but([1, 3, 8, 80], 3, 80))
@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2"))
def test_exact(base: Base, name: str, chunk: int) -> None:
    """last, mean and token vectors; both padding sides; alone and in a batch of mixed lengths."""
    path = base(name)
    oracle = [wanted(path, text, chunk) for text in ALL]
    counts = {math.ceil(len(one) / chunk) for one in oracle}
    assert counts == {1} if chunk == 80 else max(counts) > 3 <= len(counts)
    for side in SIDES:
        for pooling in ("last", "mean"):
            model = st_reba.build(path, pooling=pooling, chunk=chunk, padding_side=side, normalize=False)
            for batched in (True, False):
                for got, one in zip(sentences(model, batched=batched), oracle, strict=True):
                    assert_close(got, chunked_pooled(one, pooling))
            for got, one in zip(tokens(model), oracle, strict=True):
                assert_close(got, one)


@pytest.mark.parametrize("tokenizer", slow_but(["plain", "bos_eos", "cls_sep"], "cls_sep"))
@pytest.mark.parametrize(
    "options", [{"k": 1}, {"k": 3}, {"include_special": True}, {"normalize_weights": True}], ids=lambda each: str(each)
)
def test_options(base: Base, tokenizer: str, options: dict[str, Any]) -> None:
    path = base("llama", tokenizer)
    oracle = [wanted(path, text, 5, **options) for text in ALL]
    given = {"repeats" if name == "k" else name: value for name, value in options.items()}
    for side in SIDES:
        for pooling in ("last", "mean"):
            model = st_reba.build(path, pooling=pooling, chunk=5, padding_side=side, normalize=False, **given)
            for got, one in zip(sentences(model), oracle, strict=True):
                assert_close(got, chunked_pooled(one, pooling))
        for got, one in zip(tokens(model), oracle, strict=True):
            assert_close(got, one)


def test_prompt_and_template_stand_around_each_piece(base: Base) -> None:
    path = base("qwen2", "bos_eos")
    for options, call, pieces in (
        ({}, {"prompt": "Query: "}, ("Query: ", None)),
        ({"template": "Find: {text} End"}, {}, ("Find: ", None, " End")),
        ({"template": "{instruction}: {text}"}, {"prompt": "Find"}, ("Find: ", None)),
        ({"template": "{instruction}: {text}", "instruction": "Say"}, {}, ("Say: ", None)),
    ):
        model = st_reba.build(path, pooling="mean", chunk=4, normalize=False, **options)
        for text, got, one in zip(ALL, sentences(model, **call), tokens(model, **call), strict=True):
            oracle = wanted(path, text, 4, pieces=pieces)
            assert_close(got, chunked_pooled(oracle, "mean"))
            assert_close(one, oracle)


@pytest.mark.slow
def test_one_piece_is_plain_reba(base: Base) -> None:
    """A causal decoder's copy 1 sees what the text alone sees, so that v'_i = v_i, and ReBA-2 comes out."""
    for name in NAMES:
        path = base(name)
        for pooling in ("last", "mean"):
            plain = st_reba.build(path, pooling=pooling, normalize=False)
            model = st_reba.build(path, pooling=pooling, chunk=80, normalize=False)
            for got, one in zip(sentences(model), sentences(plain), strict=True):
                assert_close(got, one.double())


@pytest.mark.parametrize("setting", ["inplace-bidir", "mask0-bidir", "inter-back"])
def test_one_piece_of_a_converted_model(base: Base, setting: str) -> None:
    """Where layers look ahead, ReBA-2 comes out but for the diagonal, which weighs v_i of the first pass, not v'_i."""
    path = base("llama")
    plan = {"setting": setting, "k": 1}
    plain = st_reba.build(path, normalize=False, **plan)
    model = st_reba.build(path, chunk=80, normalize=False, **plan)
    for text, got, one in zip(ALL, tokens(model), tokens(plain), strict=True):
        with torch.inference_mode():
            repeated = plain[0](plain[0].preprocess([text]), capture=CaptureSpec("copy"))
            alone = model[0](model[0].preprocess([text]))
        here = (repeated["copy_ids"][0] == 1).nonzero()[:, 0]
        diagonal = repeated["backward_attention"][0, torch.arange(len(here)), here]
        change = alone["token_embeddings"][0, alone["copy_ids"][0] == 1] - repeated["token_embeddings"][0, here]
        assert change.abs().max() > 0.01
        assert_close(got, (one + diagonal[:, None] * change).double())


@pytest.mark.parametrize("chunk", slow_but([3, 20], 3))
def test_bfloat16(base: Base, chunk: int) -> None:
    for pooling in ("last", "mean"):
        exact = torch.stack(sentences(st_reba.build("mini", pooling=pooling, chunk=chunk)))
        model = st_reba.build("mini", pooling=pooling, chunk=chunk, dtype="bfloat16")
        together = torch.stack(sentences(model)).float()
        alone = torch.stack(sentences(model, batched=False)).float()
        assert (1 - torch.cosine_similarity(exact, together)).max() <= 1e-3
        assert (1 - torch.cosine_similarity(together, alone)).max() <= 1e-3


@pytest.mark.slow
def test_words(base: Base) -> None:
    """A word is the mean of its e_i, in one piece or across two."""
    path = base("mini")
    text = ALL[-1]
    offsets = loaded(path)[1](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    items, oracles = [], []
    for chunk in (1, 4, 80):
        spread = set()
        for normalize in (False, True):
            oracle = wanted(path, text, chunk, normalize_weights=normalize)
            bounds = [piece.start for piece in cut(len(oracle), chunk)]
            items, oracles = [], []
            for first, last in ((0, 1), (2, 6), (1, 9), (len(offsets) - 2, len(offsets))):
                items.append((text, (offsets[first][0], offsets[last - 1][1])))
                oracles.append(oracle[first:last].mean(dim=0))
                spread.add(sum(first < start < last for start in bounds))
            for pooling, side in zip(("last", "mean"), SIDES, strict=True):
                model = st_reba.build(path, pooling=pooling, chunk=chunk, padding_side=side)
                for batch_size in (1, 4):
                    vectors = encode_words(model, items, batch_size=batch_size, normalize=normalize)
                    for got, one in zip(vectors, oracles, strict=True):
                        assert_close(got, one)
        assert spread >= ({0} if chunk == 80 else {0, 1})


def test_a_text_that_is_not_finite(base: Base, tmp_path: Path) -> None:
    """It is named, or a zero vector as a whole, wherever the fault is: in its own run or in a piece's alone."""
    path = base("gpt2", "plain")
    for pooling in ("last", "mean"):
        model = st_reba.build(path, pooling=pooling, chunk=3, normalize=False, non_finite="zeros")
        before, own = sentences(model), tokens(model)
        with torch.no_grad():
            model[0].model.wte.weight[model[0].content([ALL[3]])["input_ids"][0][-1]] = float("nan")
        for index, (got, one) in enumerate(zip(sentences(model), before, strict=True)):
            assert bool(got.any()) == (index != 3) and (index == 3 or torch.equal(got, one))
        for index, (got, one) in enumerate(zip(tokens(model), own, strict=True)):
            assert bool(got.any()) == (index != 3) and (index == 3 or torch.equal(got, one))
        model[0].non_finite = "error"
        with pytest.raises(ValueError, match="NaN or infinity.*'hi'"):
            sentences(model)
        # Beyond the positions of the text's own run, within those of its only piece.
        model = st_reba.build(path, pooling=pooling, chunk=80, normalize=False, non_finite="zeros")
        length = len(model[0].content([ALL[2]])["input_ids"][0])
        with torch.no_grad():
            model[0].model.wpe.weight[length] = float("nan")
        assert not model.encode(ALL[2]).any() and not tokens(model, (ALL[2],))[0].any()
        assert bool(model.encode("A").any())


# What runs


def test_cuts() -> None:
    """As few pieces as can be, of sizes that differ by one at most, the last among the largest."""
    for count in range(1, 60):
        for chunk in (1, 2, 3, 7, 8, 59, 100):
            bounds = chunked.cuts(count, chunk)
            sizes = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
            assert bounds[0] == 0 and bounds[-1] == count and len(sizes) == math.ceil(count / chunk)
            assert chunk >= max(sizes) == sizes[-1] <= min(sizes) + 1


def test_only_what_is_needed_runs(lengths: list[tuple[int, int]]) -> None:
    """last and words run the pieces that they need; mean runs all; nobody runs the text twice."""
    last, mean = (st_reba.build("mini", pooling=pooling, chunk=10) for pooling in ("last", "mean"))
    text = "银行的利率又下调了，投资者很担心。" * 20
    count = len(mean[0].content([text])["input_ids"][0])
    sizes = [len(piece) for piece in cut(count, 10)]
    lengths.clear()
    last.encode(text)
    assert lengths == [(1, count + 1), (1, 2 * sizes[-1] + 1)]
    lengths.clear()
    mean.encode(text)
    assert lengths == [(1, count + 1), (len(sizes), 2 * max(sizes) + 1)]
    lengths.clear()
    encode_words(mean, [(text, (0, 2)), (text, (0, 1))])
    assert lengths == [(2, count + 1), (2, 2 * sizes[0] + 1)]


def test_positions_of_a_pass_are_bounded(monkeypatch: pytest.MonkeyPatch, lengths: list[tuple[int, int]]) -> None:
    """Pieces run in batches of at most so many positions, or one by one, the longest first, to equal effect."""
    model = st_reba.build("mini", pooling="mean", chunk=7, normalize=False)
    usual = sentences(model), tokens(model)
    for bound in (1, 40):
        monkeypatch.setattr(chunked, "POSITIONS", bound)
        lengths.clear()
        for got, one in zip(sentences(model), usual[0], strict=True):
            assert_close(got, one.double())
        passes = lengths[1:]
        assert passes == sorted(passes, key=lambda shape: -shape[1])
        assert all(rows == 1 or rows * positions <= bound for rows, positions in passes)
        assert bound == 1 or max(rows for rows, _ in passes) == 40 // 11
        for got, one in zip(tokens(model), usual[1], strict=True):
            assert_close(got, one.double())


def test_long_texts_keep_their_tokens() -> None:
    """max_seq_length bounds one copy of the text, not two."""
    model = st_reba.build("mini", pooling="mean", chunk=16, max_seq_length=101)
    assert model[0].budget() == 100
    ids = model[0].preprocess(["cat " * 300])["copy_ids"]
    assert ids.shape == (1, 101) and int(ids.sum()) == 100
    word = "cat " * 35
    assert not np.allclose(model.encode(word + "bank " * 5), model.encode(word + "fish " * 5), atol=1e-4)


def test_copies_of_a_model(base: Base) -> None:
    """A deep copy runs its own pieces; training reaches the weights through both passes."""
    model = st_reba.build(base("llama"), pooling="mean", chunk=4)
    before = model.encode(list(ALL))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.zero_()
    np.testing.assert_array_equal(twin.encode(list(ALL)), before)
    twin.train()
    features = twin.preprocess(list(ALL))
    twin(features)["sentence_embedding"].sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in twin.parameters())


# Saving, commands


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_saved_and_loaded(tmp_path: Path, pooling: str) -> None:
    model = st_reba.build("mini", pooling=pooling, chunk=6, repeats=3, include_special=True, normalize_weights=True)
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert again[1].get_config_dict() == {
        "embedding_dimension": 192,
        "chunk": 6,
        "pooling": pooling,
        "repeats": 3,
        "include_special": True,
        "normalize_weights": True,
    }
    np.testing.assert_array_equal(again.encode(list(ALL)), model.encode(list(ALL)))
    assert all(map(torch.equal, tokens(again), tokens(model)))
    item = (ALL[-1], (4, 8))
    np.testing.assert_array_equal(encode_words(again, [item]), encode_words(model, [item]))


@pytest.mark.slow
def test_vendored(tmp_path: Path) -> None:
    """The module runs from flat copies in the repository, without st_reba installed."""
    model = st_reba.build("mini", pooling="mean", chunk=6)
    model.save_pretrained(str(tmp_path / "model"))
    lines = ["from .repeat import RepeatTransformer\n", "from .chunked import ChunkedReBAPooling\n"]
    for file in MODULES.glob("[!_]*.py"):
        shutil.copy(file, tmp_path / "model")
        # Every module by its name: older releases of transformers copy only what this file itself imports.
        lines.append(f"from .{file.stem} import __doc__ as _\n")
    (tmp_path / "model" / "st_reba.py").write_text("".join(lines), encoding="utf-8")
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer('model', trust_remote_code=True, device='cpu')\n"
        f"print(json.dumps(model.encode({list(ALL)!r}).tolist()))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    vectors = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(vectors, model.encode(list(ALL)), atol=1e-6, rtol=0)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    assert cli.main(["build", "mini", str(out), "--chunk", "100", "--pooling", "mean"]) == 0
    capsys.readouterr()
    assert cli.main(["info", str(out), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["method"], about["chunk"], about["copies"], about["tokens_per_copy"]) == ("reba", 100, 2, 1023)
    model = st_reba.build("mini", pooling="mean", chunk=100)
    np.testing.assert_allclose(
        SentenceTransformer(str(out), device="cpu").encode(list(ALL)), model.encode(list(ALL)), atol=1e-4
    )


def test_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base: mini\nchunk: 30\npooling: mean\n", encoding="utf-8")
    model: Any = st_reba.build(recipe)
    assert isinstance(model[1], ChunkedReBAPooling) and model[1].chunk == 30
    assert st_reba.build(recipe, chunk=40)[1].chunk == 40


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, ["chunk=0", "1"]),
        ({"chunk": True}, ["chunk=True", "whole number"]),
        ({"chunk": 2.0}, ["chunk=2.0", "whole number"]),
        ({"chunk": 8, "repeats": 0}, ["repeats=0"]),
        ({"chunk": 8, "include_special": "yes"}, ["include_special='yes'"]),
        ({"chunk": 8, "method": "echo"}, ["chunk=8", "method='reba'", "'echo'"]),
        ({"chunk": 8, "method": "nosink", "setting": "mask0-bidir", "k": 1}, ["chunk=8", "'nosink'"]),
        ({"chunk": 8, "variant": "published"}, ["chunk=8", "variant='paper'", "'published'"]),
        ({"chunk": 8, "separator": " "}, ["chunk=8", "separator=''", "' '"]),
        ({"chunk": 8, "compute_matched": True}, ["chunk=8", "compute_matched=False"]),
        ({"chunk": 8, "span": "all"}, ["span='all'", "reba"]),
        ({"chunk": 8, "pooling": "cls"}, ["pooling='cls'", "last", "mean"]),
        ({"chunk": 8, "template": "echo"}, ["chunk=8", "template='echo'", "2 copies", "one {text} slot"]),
        ({"chunk": 512}, ["chunk=512", "1025", "max_seq_length=1024", "chunk=511"]),
        ({"chunk": 50, "repeats": 3, "max_seq_length": 100}, ["chunk=50", "3 copies", "151", "chunk=33"]),
        ({"chunk": 1, "repeats": 9, "max_seq_length": 8}, ["chunk=1", "10 positions", "Shorten"]),
        ({"chunk": 8, "max_seq_length": 1}, ["max_seq_length=1", "room"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build("mini", **options)
    assert [word for word in words if word not in str(error.value)] == []


def test_the_largest_piece_fits() -> None:
    model = st_reba.build("mini", chunk=511, pooling="mean")
    assert model.encode("cat " * 900).shape == (192,)
    with pytest.raises(ValueError, match="chunk=511: 2 copies .* 6 special.* 1028 positions.*max_seq_length=1024"):
        model.encode("cat", prompt="cat cat ")
    model.max_seq_length = 100
    with pytest.raises(ValueError, match="chunk=511.*max_seq_length=100.*chunk=49 or less"):
        model.encode("cat")


def test_pipelines_that_do_not_fit(base: Base) -> None:
    source = st_reba.build("mini", "classical")[0]
    twice = st_reba.build("mini")[0]
    for first, match in ((torch.nn.Identity(), "starts with Identity"), (twice, "repeats=2: 2 copies.*repeats=1")):
        with pytest.raises(ValueError, match=match):
            SentenceTransformer(modules=[first, ChunkedReBAPooling(192, 8)], device="cpu")
    with pytest.raises(ValueError, match="embedding_dimension=100.*192"):
        SentenceTransformer(modules=[source, ChunkedReBAPooling(100, 8)], device="cpu").encode("hi")
    features = source({name: value for name, value in source.preprocess(["hi"]).items()})
    with pytest.raises(ValueError, match="RepeatTransformer in front.*together"):
        ChunkedReBAPooling(192, 8)(features)
    with pytest.raises(ValueError, match="pooling='cls'"):
        ChunkedReBAPooling(192, 8, "cls")  # type: ignore[arg-type]


def test_backbones_without_backward_attention(base: Base) -> None:
    """The checks of ReBA hold for pieces: capturing must observe the model, not change it."""
    with pytest.raises(ValueError, match="hidden states change by"):
        st_reba.build(base("falcon_alibi"), chunk=8)
