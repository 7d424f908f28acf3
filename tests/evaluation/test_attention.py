"""Maps against transformers' own eager attention and the plans' oracle, shares against sums by hand, and figures."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import SINKS, TOKENIZERS, save
from matplotlib.image import imread
from oracle import loaded
from reference_nosink import Plan, run
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModel, DebertaV2Config

import st_reba
from st_reba import LayerPlan
from st_reba.bases import EMBEDDED
from st_reba.cli import main
from st_reba.evaluation import attention, figures
from st_reba.evaluation.attention import (
    LayerMap,
    Maps,
    SinkShare,
    attention_maps,
    draw_attention,
    markdown_table,
    sink_table,
    write_attention,
)
from st_reba.evaluation.figures import save_figure
from st_reba.modules import DecoderTransformer, scores

Base = Callable[..., str]
# More than two of the smallest blocks long.
TEXT = "他在银行取了钱，then went home. The bank of the river is steep."
CHINESE = ("今天天气很好，我们去公园散步吧。", "他在银行取了钱，然后回家了。", "意思意思就行了，你这是什么意思？")
ENGLISH = (
    "The bank of the river is steep.",
    "She put her money in the bank.",
    "A dog slept on the steps of the house.",
)
KEYS = {
    "inplace": [(0, 1), (1, 1)],
    "inter": [(0, 1), (1, 1), (1, 2)],
    "extra": [(0, 1), (1, 1), (1, 2)],
    "extend": [(0, 1), (1, 1), (1, 2), (1, 3)],
}


@cache
def model_of(base: str, method: str = "classical", **options: Any) -> SentenceTransformer:
    """A model that several tests look at, and none changes."""
    return st_reba.build(base, method, device="cpu", **options)


def eager(base: str, ids: list[int]) -> np.ndarray[Any, Any]:
    """[L, T, T]: what the model gives out itself, mean over heads."""
    with torch.no_grad():
        output = loaded(base)[0](torch.tensor([ids]), output_attentions=True)
    return torch.cat(output.attentions).mean(dim=1).numpy()


def ids_of(model: SentenceTransformer, text: str) -> list[int]:
    ids: list[int] = model[0].preprocess([text])["input_ids"][0].tolist()
    return ids


@pytest.mark.parametrize("name", ["mini", "llama", "gpt2", "mistral", "gemma2", "gpt_oss", "bloom", "falcon_alibi"])
def test_eager_attention(base: Base, name: str) -> None:
    model = model_of(base(name))
    maps = attention_maps(model, TEXT)
    wanted = eager(base(name), ids_of(model, TEXT))
    assert len(maps.layers) == model[0].depth and len(maps.tokens) == wanted.shape[1] > 16
    for index, (layer, matrix) in enumerate(zip(maps.layers, wanted, strict=True)):
        assert (layer.layer, layer.kind, layer.run) == (index, "forward", 1)
        np.testing.assert_allclose(layer.matrix, matrix, atol=1e-5)
        sums = layer.matrix.sum(axis=1)
        assert (sums < 0.99).any() if name in SINKS else np.allclose(sums, 1, atol=1e-5)


@pytest.mark.parametrize("numbers", [1, 20 * 4 * 33])
@pytest.mark.parametrize("setting", ["baseline", "mask0-bidir"])
def test_any_block_size(base: Base, setting: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k = None if setting == "baseline" else 1
    model = model_of(base("llama"), "nosink", setting=setting, k=k)
    whole = attention_maps(model, TEXT)
    monkeypatch.setattr(scores, "BLOCK_NUMBERS", numbers)
    assert len(whole.tokens) > 32
    for one, other in zip(whole.layers, attention_maps(model, TEXT).layers, strict=True):
        np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-6)


@pytest.mark.parametrize("kind", ["backward", "bidirectional", "nosink-forward", "nosink-bidirectional"])
@pytest.mark.parametrize("architecture", list(KEYS))
def test_plans(base: Base, architecture: Any, kind: Any) -> None:
    k, m = len(KEYS[architecture]) - 2 or 2, 2 if kind.startswith("nosink") else 1
    plan = LayerPlan(architecture, kind, k, m=m)
    model = st_reba.build(base("llama"), "classical", stages=[plan], device="cpu")
    maps = attention_maps(model, TEXT)
    converted = (kind,) * k if architecture in ("inplace", "extend") else (None,) * (2 - k) + (kind,) * k
    _, heads = run(loaded(base("llama"))[0], ids_of(model, TEXT), Plan(converted, architecture, m=m))
    wanted = dict(zip(KEYS[architecture], heads.mean(dim=1).numpy(), strict=True))
    assert {(layer.layer, layer.run) for layer in maps.layers} == set(wanted) and len(maps.layers) == len(wanted)
    for layer in maps.layers:
        matrix = wanted[layer.layer, layer.run]
        own = architecture != "inplace" and layer.run == 1
        assert layer.kind == ("forward" if own else f"{kind}(2)" if m == 2 else kind)
        np.testing.assert_allclose(layer.matrix, matrix, atol=1e-5)
        assert not layer.matrix[matrix == 0].any() and (matrix == 0).any() == (kind != "bidirectional" or own)


def test_further_passes_of_one_kind_are_told_apart() -> None:
    plan = LayerPlan("inter", layers={"backward": [4]}, variant="published")
    model = st_reba.build("mini", "classical", stages=[plan], device="cpu")
    maps = attention_maps(model, "hi there")
    assert [str(layer) for layer in maps.layers[-4:]] == [
        "layer 4, forward",
        "layer 4 (pass 2), backward",
        "layer 5, forward",
        "layer 5 (pass 2), forward",
    ]


def test_copies_and_template() -> None:
    model = st_reba.build("mini", "echo", template="a: {text} b: {text}", device="cpu")
    tokens = attention_maps(model, "天").tokens
    assert tokens[0] == "<s>" and tokens.count("天") == 2 and ":" in "".join(tokens)


def test_prompt_and_task() -> None:
    template = {"query": "问：{text}", "document": "{text}"}
    model = st_reba.build("mini", "classical", template=template, prompts={"p": "前"}, device="cpu")
    assert attention_maps(model, "天").tokens == ("<s>", "天")
    assert attention_maps(model, "天", task="query").tokens == ("<s>", "问", ":", "天")
    assert attention_maps(model, "天", prompt="前").tokens == ("<s>", "前", "天")
    model.default_prompt_name = "p"
    assert attention_maps(model, "天").tokens == ("<s>", "前", "天")
    assert attention_maps(model, "天", prompt="后").tokens == ("<s>", "后", "天")


def test_adopted_model_whose_tokenizer_pads() -> None:
    plain = Transformer(str(EMBEDDED["mini"]))
    inner = DecoderTransformer.adopt(plain, [LayerPlan(kind="nosink-bidirectional", k="all")])
    model = SentenceTransformer(modules=[inner, Pooling(192, "mean")], device="cpu")
    alone = attention_maps(model, TEXT)
    inner.processing_kwargs = {"text": {"pad_to_multiple_of": 64}}
    features = inner.preprocess([TEXT])
    assert features["input_ids"].shape[1] == 64 and "copy_ids" not in features
    padded = attention_maps(model, TEXT)
    assert padded.tokens == alone.tokens and len(alone.tokens) < 64
    for one, other in zip(alone.layers, padded.layers, strict=True):
        np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_backbone_that_looks_both_ways(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["cls_sep"]()
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    AutoModel.from_config(DebertaV2Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    maps = attention_maps(model_of(str(tmp_path)), "hi there")
    assert [str(layer) for layer in maps.layers] == ["layer 0, bidirectional", "layer 1, bidirectional"]


def test_vectors_do_not_change() -> None:
    model = model_of("mini")
    before = model.encode(TEXT)
    attention_maps(model, TEXT)
    np.testing.assert_allclose(model.encode(TEXT), before, atol=1e-6)


def test_tokens_are_readable() -> None:
    model = model_of("mini")
    tokens = attention_maps(model, "银行 a\n龘").tokens
    assert tokens == ("<s>", "银行", "a", "\\n", "<0xE9>", "<0xBE>", "<0x98>")
    assert "\u2423" in attention_maps(model, "  银").tokens


def test_parts_of_characters_in_a_byte_level_vocabulary(base: Base) -> None:
    model = model_of(base("llama"))
    assert attention_maps(model, "龘").tokens == ("<s>", *(f"#{each}" for each in ids_of(model, "龘")[1:]))


def test_space_that_decodes_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mini")
    # As SentencePiece's own decoders do with the space before a first word.
    monkeypatch.setattr(type(model[0].text_tokenizer), "decode", lambda self, ids: "")
    assert attention_maps(model, "  银").tokens[:2] == ("<s>", "\u2423")


MATRIX = np.array(
    [[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0.5, 0.125, 0.375, 0], [0.25, 0.25, 0.375, 0.125]], dtype=np.float32
)
MAPS = Maps(("<s>", "a", "b", "c"), (LayerMap(0, "forward", MATRIX), LayerMap(0, "backward", MATRIX.T.copy(), 2)))


def test_shares_by_hand() -> None:
    forward, backward = sink_table([MAPS])
    assert forward.sink == forward.top_share == pytest.approx((0.75 + 0.5 + 0.25) / 3)
    assert forward.even == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert forward.itself == pytest.approx((0.25 + 0.375 + 0.125) / 3)
    assert (forward.top_position, forward.top_token) == (0, "<s>")
    assert (backward.run, backward.sink, backward.even) == (2, 0.0, 0.0)
    assert (backward.top_position, backward.top_share) == (3, pytest.approx((0.25 + 0.375 + 0.125) / 3))
    two = sink_table([MAPS], 2)[0]
    assert "on the first 2 tokens" in markdown_table([two], 2)
    assert two.sink == pytest.approx((0.625 + 0.5) / 2) and two.even == pytest.approx((2 / 3 + 2 / 4) / 2)
    assert (two.top_position, two.top_share) == (0, pytest.approx(0.375))


def test_table_is_the_mean_over_texts() -> None:
    model = model_of("mini")
    maps = [attention_maps(model, text) for text in (*CHINESE, *ENGLISH)]
    alone = [sink_table([each]) for each in maps]
    for row, ones in zip(sink_table(iter(maps)), zip(*alone, strict=True), strict=True):
        for name in ("sink", "even", "itself"):
            assert getattr(row, name) == pytest.approx(np.mean([getattr(one, name) for one in ones]))
        # The first token is the same in all texts, and gets the most in all layers.
        assert (row.top_position, row.top_token, row.top_share) == (0, "<s>", row.sink)


def test_token_that_differs_is_not_named() -> None:
    # The last position has it all, in texts of two and of three tokens.
    last = [np.eye(length, dtype=np.float32)[[length - 1] * length] for length in (2, 3, 3)]
    texts = [("x", "y"), ("x", "y", "z"), ("x", "y", "w")]
    made = [Maps(tokens, (LayerMap(0, "bidirectional", matrix),)) for tokens, matrix in zip(texts, last, strict=True)]
    (row,) = sink_table(made)
    assert (row.top_position, row.top_token, row.top_share) == (2, "", pytest.approx(2 / 3))
    assert "| 2 | 0.667 |" in markdown_table([row])


@pytest.mark.parametrize("texts", [CHINESE, ENGLISH])
def test_sink_of_mini(texts: tuple[str, ...]) -> None:
    """The paper's findings, on a model that was trained."""

    def table(setting: str, tokens: int = 1, **options: Any) -> list[SinkShare]:
        model = model_of("mini", "nosink", setting=setting, **options)
        return sink_table((attention_maps(model, text) for text in texts), tokens)

    baseline = table("baseline")
    assert all(row.top_position == 0 for row in baseline)
    assert all(baseline[layer].sink > 1.5 * baseline[layer].even for layer in (1, 2, 4))
    # It persists where layers look both ways, and is gone where they do not see the first token.
    assert all(row.sink > 1.5 * row.even for row in table("inplace-bidir", k="all"))
    for setting in ("mask0-bidir", "inplace-back"):
        assert all(row.sink == 0 for row in table(setting, k="all"))
    mixed = table("mask0-bidir", k=2)
    assert [row.sink for row in mixed[:4]] == pytest.approx([row.sink for row in baseline[:4]])
    assert [row.sink for row in mixed[4:]] == [0, 0]
    # Where all layers mask it, it moves to the second token; where the top half does, it does not.
    moved, gone = table("mask0-all", 2, k=3)[4], table("mask0-bidir", 2, k=3)[4]
    assert moved.sink > 1.5 * moved.even and gone.sink < 1.2 * gone.even


def pixels(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(imread(path))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_drawing(tmp_path: Path, scale: Any) -> None:
    save_figure(draw_attention(MAPS, scale), tmp_path / "a.png")
    image = pixels(tmp_path / "a.png")
    assert min(image.shape[:2]) > 200
    # The scale's top: the one entry of 1 in each map, and the end of the colour bar.
    assert (np.abs(image[..., :3] - np.array([253, 231, 37]) / 255).max(axis=-1) < 0.02).sum() > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_drawing_names_tokens_or_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each character is taken from the first font that has it: here one that comes with matplotlib."""
    monkeypatch.setattr(figures, "FONTS", ("No Such Font", "DejaVu Sans", "STIXGeneral"))

    def labels(*tokens: str) -> list[str]:
        matrix = np.eye(len(tokens), dtype=np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            maps = Maps(tokens, (LayerMap(0, "forward", matrix), LayerMap(1, "forward", matrix)))
            figure = draw_attention(maps)
            save_figure(figure, tmp_path / "a.png")
        left, right = figure.axes[:2]
        shown = [axes.yaxis.get_tick_params()["labelleft"] for axes in (left, right)]
        assert shown == [True, False]
        # The outer ones are named.
        assert [left.get_ylabel(), right.get_ylabel(), left.get_xlabel()] == ["query", "", "key"]
        return [label.get_text() for label in left.get_yticklabels()]

    assert labels("<s>", "$x$", "a" * 13) == ["<s>", "$x$", "a" * 11 + "\u2026"]
    assert labels("<s>", "\u2a8f") == ["<s>", "\u2a8f"]
    assert labels(*["a"] * 25) != ["a"] * 25


def test_tokens_below_a_map_stand_upright_and_apart() -> None:
    tokens = tuple(["word number"] * 20)
    layers = tuple(LayerMap(number, "forward", np.eye(20, dtype=np.float32)) for number in range(4))
    figure = draw_attention(Maps(tokens, layers))
    figure.draw_without_rendering()
    assert [label.get_rotation() for label in figure.axes[2].get_xticklabels()] == [90.0] * 20
    assert [label.get_rotation() for label in figure.axes[2].get_yticklabels()] == [0.0] * 20
    for axes in figure.axes[:4]:
        box = axes.get_window_extent()
        assert box.height == pytest.approx(box.width) == pytest.approx(20 * 0.16 * figure.dpi, rel=0.02)


def test_column_of_one_token_is_seen_in_the_longest_text(tmp_path: Path) -> None:
    matrix = np.full((512, 512), 1e-6, dtype=np.float32)
    matrix[:, 0] = 1
    maps = Maps(("a",) * 512, (LayerMap(0, "bidirectional", matrix),))
    save_figure(draw_attention(maps), tmp_path / "a.png")
    image = pixels(tmp_path / "a.png")[..., :3]
    image = image[:, : image.shape[1] // 2]
    yellow = np.abs(image - np.array([253, 231, 37]) / 255).max(axis=-1) < 0.02
    assert yellow.sum() > 512


def test_the_command(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run of the model gives figure, table and JSON; a second command replaces the first one's files."""
    runs: list[str] = []
    run = attention.attention_maps
    monkeypatch.setattr(
        attention, "attention_maps", lambda *given, **options: (runs.append("run"), run(*given, **options))[1]
    )
    out = tmp_path / "new" / "maps"
    arguments = ["attention", base("llama"), "a | `b`", "--setting", "inter-back", "--k", "1", "--out", str(out)]
    assert main(arguments) == 0
    plan, table, tokens, files = capsys.readouterr().out.split("\n\n")
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(runs) == 2
    assert sorted(path.name for path in out.iterdir()) == ["attention.csv", "attention.png"]
    rows = list(csv.DictReader((out / "attention.csv").open(encoding="utf-8", newline="")))
    model = st_reba.build(base("llama"), "nosink", setting="inter-back", k=1, device="cpu")
    maps = run(model, "a | `b`")
    wanted = sink_table([maps])
    assert shown == {"tokens": list(maps.tokens), "layers": [asdict(row) for row in wanted]}
    assert [row["kind"] for row in rows] == ["forward", "forward", "backward"]
    assert [float(row["sink"]) for row in rows] == [row.sink for row in wanted]
    assert table == markdown_table(wanted) and "| 1 (pass 2) | backward | 0 | 0 |" in table
    assert tokens.startswith("Tokens: 0 `<s>`, 1 `a`, 2") and "`\\|`" in tokens and "`` ` ``" in tokens
    assert "1 forward → 1 forward + backward" in plan and files.count("attention") == 2


def test_the_command_on_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A saved one keeps its own layers."""
    monkeypatch.setattr(attention, "save_figure", lambda figure, path: None)
    saved, out = str(tmp_path / "saved"), ["--out", str(tmp_path / "maps"), "--json"]
    st_reba.build("mini", "nosink", setting="mask0-bidir", k=2).save_pretrained(saved)
    for model, kind in (("mini", "forward"), (saved, "nosink-bidirectional")):
        assert main(["attention", model, "天气很好", *out]) == 0
        assert json.loads(capsys.readouterr().out)["layers"][-1]["kind"] == kind
    assert main(["attention", saved, "天气很好", "--k", "1", *out]) == 2
    assert "--k 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("天" * 600, {}, "512 at most.*Shorten"),
        ("天", {"m": 2}, "2 tokens.*first 2.*longer"),
        ("天", {"m": 0}, "m=0"),
        ("天气", {"scale": "cubic"}, "scale='cubic'.*linear.*log"),
        (["天气"], {}, "list.*one text"),
    ],
)
def test_refused(text: Any, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = model_of("mini")
    with pytest.raises(ValueError, match=words):
        write_attention(attention_maps(model, text), tmp_path / "maps", **options)
    assert not (tmp_path / "maps").exists()


def test_refused_texts_and_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mini")
    with pytest.raises(ValueError, match="no texts"):
        sink_table([])
    assert attention_maps(model, "").tokens[-1] == "</s>"
    monkeypatch.setattr(attention, "MAX_TOKENS", 8)
    with pytest.raises(ValueError, match=r"9 tokens.*model.max_seq_length = 8"):
        attention_maps(model, "天" * 8)
    plain = SentenceTransformer(modules=[Transformer(str(EMBEDDED["mini"])), Pooling(192, "mean")], device="cpu")
    with pytest.raises(ValueError, match=r"not Transformer.*st_reba.build"):
        attention_maps(plain, "天气")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'st-reba\[evaluation\]'"):
        write_attention(MAPS, tmp_path / "maps")
    assert sink_table([MAPS]) and not list(tmp_path.iterdir())


def test_saved_model(base: Base, tmp_path: Path) -> None:
    """A folder of another architecture through save and load."""
    folder = save("gpt2", tmp_path / "base", "plain")
    st_reba.build(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    maps = attention_maps(SentenceTransformer(str(tmp_path / "saved"), device="cpu"), "ab")
    assert len(maps.layers) == 2 and len(maps.tokens) % 2 == 0
