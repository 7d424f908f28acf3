"""Image-text models embed text as their text tower does, run alone by transformers' eager attention.

The vision tower beside it is as deep as the text tower and looks both ways, so that one cannot pass for the other.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import architectures
import pytest
import reference
import torch
from architectures import POSITIONS, TOKENIZERS
from oracle import TEXTS, assert_close
from pipelines import build, encoded
from reference import Layout
from reference_nosink import hooked, plan
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

DEPTH, WINDOW = 3, 6
_NO_IDS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": DEPTH, "num_attention_heads": 4}
_GROUPS = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": POSITIONS}
_TEXT: dict[str, Any] = {**_SIZES, **_GROUPS, "vocab_size": 544, **_NO_IDS}
_VISION: dict[str, Any] = {**_SIZES, "image_size": 16, "patch_size": 4}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": WINDOW}
_CLIP = {**_VISION, "model_type": "clip_vision_model"}
_FALCON = {"model_type": "falcon", "multi_query": False, "new_decoder_architecture": False, "alibi": False}
# Text tower, vision tower, image processor.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gemma3": ({**_TEXT, **_ALTERNATING, "query_pre_attn_scalar": 8}, _VISION, "Gemma3ImageProcessor"),
    "llava": ({**_TEXT, "model_type": "llama"}, _CLIP, "CLIPImageProcessor"),
    # A decoder that calls no attention interface, beside a vision tower that does.
    "llava_falcon": ({**_SIZES, **_FALCON, "vocab_size": 544, **_NO_IDS}, _CLIP, "CLIPImageProcessor"),
}
# Further tokens that a processor asks its tokenizer for.
_TOKENS = {"gemma3": {"image_token": "<image_soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"}}
PLAN: dict[str, Any] = {"setting": "mask0&bidir", "k": 2, "k0": 1}
Base = Callable[[str], str]


def save(name: str, folder: Path) -> str:
    """A tiny random model with its processor's files, as its repositories have them."""
    (text, vision, processor), model_type = MODELS[name], name.removesuffix("_falcon")
    parts = {"text_config": dict(text), "vision_config": dict(vision)}
    config: Any = AutoConfig.for_model(model_type, **parts, mm_tokens_per_image=4)
    # The ids that stand for images lie beyond the small vocabulary by default, and beyond the text's tokens here.
    for place in ("image_token_id", "image_token_index"):
        if getattr(config, place, None) is not None:
            setattr(config, place, 530)
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32)
    architectures._fill(model, zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    tokenizer = TOKENIZERS["bos"]()
    tokens = _TOKENS.get(name, {})
    tokenizer.add_tokens([*tokens.values(), "<image>"], special_tokens=True)
    tokenizer.model_max_length = 2 * POSITIONS  # more than the text tower can
    tokenizer.save_pretrained(folder)
    image = {"image_processor_type": processor, "processor_class": PROCESSOR_MAPPING_NAMES[model_type]}
    (folder / "preprocessor_config.json").write_text(json.dumps({**image, "image_seq_length": 4}))
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**written, "extra_special_tokens": tokens, **tokens}))
    return str(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return lru_cache(lambda name: save(name, tmp_path_factory.mktemp(name)))


@lru_cache(maxsize=4)
def tower(path: str) -> PreTrainedModel:
    """The text tower by itself."""
    whole = AutoModel.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    return reference.as_double(whole.get_decoder())


@lru_cache(maxsize=128)
def layout(path: str, text: str, pieces: tuple[str | None, ...]) -> Layout:
    return reference.layout(AutoTokenizer.from_pretrained(path), text, list(pieces))


@pytest.mark.parametrize("name", MODELS)
def test_methods(base: Base, name: str, tmp_path: Path) -> None:
    path = base(name)
    echo, reba = build(path, "echo", pooling="mean"), build(path)
    assert name == "llava_falcon" or echo.max_seq_length == POSITIONS
    for text, by_echo, by_reba in zip(TEXTS, encoded(echo), encoded(reba), strict=True):
        placed = layout(path, text, (None, None))
        hidden, attention = reference.hidden_and_attention(tower(path), placed.ids)
        assert_close(by_echo, reference.echo(hidden, placed, "mean"))
        assert_close(by_reba, reference.reba(hidden, reference.symmetrized_max(attention), placed, "last"))
    reba.save_pretrained(str(tmp_path))
    assert torch.equal(encoded(SentenceTransformer(str(tmp_path), device="cpu")), encoded(reba))


@pytest.mark.parametrize("setting", ["mask0&bidir", "inter-bidir", "extra-bidir", "extend-bidir"])
@pytest.mark.parametrize("name", ["gemma3", "llava"])
def test_settings(base: Base, name: str, setting: str) -> None:
    """Masks in place, and second runs of the text tower's layers, not the vision tower's."""
    path = base(name)
    types = getattr(tower(path).config, "layer_types", None) or ["full_attention"] * DEPTH
    windows = [WINDOW if kind == "sliding_attention" else None for kind in types]
    inplace = setting == "mask0&bidir"
    model = build(path, "nosink", **PLAN) if inplace else build(path, "nosink", setting=setting, k=2)
    kind: Any = "inplace" if inplace else setting[:-6]
    wanted = plan(DEPTH, kind, "bidirectional", 2, 1 if inplace else 0)
    for text, got in zip(TEXTS, encoded(model), strict=True):
        placed = layout(path, text, (None,))
        hidden, _ = hooked(tower(path), placed.ids, wanted, windows)
        # Two passes through the last layer make this float32's rounding large.
        assert_close(got, reference.classical(hidden, placed, "mean"), 1e-4 if "extend" in setting else 1e-5)


def test_what_is_refused(base: Base) -> None:
    """Masks of a decoder without the interface, and layers that are cut beside a tower."""
    with pytest.raises(ValueError, match="attention interface"):
        build(base("llava_falcon"), "nosink", **PLAN)
    with pytest.raises(ValueError, match="towers beside its decoder"):
        build(base("llava"), layer=1)


def test_a_processor_without_a_tokenizer(tmp_path: Path) -> None:
    AutoModel.from_config(AutoConfig.for_model("vit", **_VISION)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    with pytest.raises(ValueError, match="tokenizer"):
        build(str(tmp_path), "classical")
