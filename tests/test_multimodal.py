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

import pytest
import reference
import torch
from architectures import POSITIONS, TOKENIZERS
from architectures import random_model as made
from oracle import TEXTS, assert_close, double, tokenizer_of
from pipelines import build, encoded
from reference_nosink import Plan, hooked, plan
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

DEPTH, WINDOW = 3, 6
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": DEPTH, "num_attention_heads": 4}
_TEXT = {**_SIZES, "vocab_size": 544, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))}
_GROUPS = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": POSITIONS}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": WINDOW}
_FALCON = {"model_type": "falcon", "multi_query": False, "new_decoder_architecture": False, "alibi": False}
_VISION = {**_SIZES, "image_size": 16, "patch_size": 4}
_CLIP = {**_VISION, "model_type": "clip_vision_model"}
# Text tower, vision tower, image processor.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gemma3": ({**_GROUPS, **_WINDOWS, "query_pre_attn_scalar": 8}, _VISION, "Gemma3ImageProcessor"),
    "llava": ({**_GROUPS, "model_type": "llama"}, _CLIP, "CLIPImageProcessor"),
    # A decoder that calls no attention interface, beside a vision tower that does.
    "llava_falcon": ({**_TEXT, **_FALCON}, _CLIP, "CLIPImageProcessor"),
}
Base = Callable[[str], str]


def save(name: str, folder: Path) -> str:
    """A tiny random model with its processor's files, as its repositories have them."""
    (text, vision, processor), model_type = MODELS[name], name.removesuffix("_falcon")
    # The ids that stand for images lie beyond the small vocabulary by default, and beyond the text's tokens here.
    images = {"image_token_id": 530, "image_token_index": 530, "mm_tokens_per_image": 4}
    config: Any = AutoConfig.for_model(model_type, text_config=dict(text), vision_config=dict(vision), **images)
    made(config, zlib.crc32(name.encode())).save_pretrained(folder)
    # What gemma3's processor asks its tokenizer for.
    tokens = {f"{each}_token": f"<{each}>" for each in ("image", "boi", "eoi") if name == "gemma3"}
    tokenizer = TOKENIZERS["bos"]()
    tokenizer.add_tokens(["<image>", *tokens.values()], special_tokens=True)
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


@pytest.mark.parametrize("name", MODELS)
def test_methods(base: Base, name: str, tmp_path: Path) -> None:
    path = base(name)
    echo, reba = build(path, "echo", pooling="mean"), build(path)
    assert name == "llava_falcon" or echo.max_seq_length == POSITIONS
    for text, by_echo, by_reba in zip(TEXTS, encoded(echo), encoded(reba), strict=True):
        placed = reference.layout(tokenizer_of(path), text, (None, None))
        hidden, attention = reference.hidden_and_attention(double(path).get_decoder(), placed.ids)
        assert_close(by_echo, reference.echo(hidden, placed, "mean"))
        assert_close(by_reba, reference.reba(hidden, reference.symmetrized_max(attention), placed, "last"))
    reba.save_pretrained(str(tmp_path))
    assert torch.equal(encoded(SentenceTransformer(str(tmp_path), device="cpu")), encoded(reba))


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"setting": "mask0&bidir", "k0": 1}, plan(DEPTH, k=2, k0=1)),
        *(({"setting": f"{kind}-bidir"}, plan(DEPTH, kind, k=2)) for kind in ("inter", "extra", "extend")),
    ],
)
@pytest.mark.parametrize(("name", "windows"), [("gemma3", [WINDOW, None, WINDOW]), ("llava", [None] * DEPTH)])
def test_settings(base: Base, name: str, windows: list[Any], setting: dict[str, Any], wanted: Plan) -> None:
    """Masks in place, and second runs of the text tower's layers, not the vision tower's."""
    # Two passes through the last layer make this float32's rounding large.
    tolerance = 1e-4 if wanted.architecture == "extend" else 1e-5
    for text, got in zip(TEXTS, encoded(build(base(name), "nosink", k=2, **setting)), strict=True):
        placed = reference.layout(tokenizer_of(base(name)), text, (None,))
        hidden, _ = hooked(double(base(name)).get_decoder(), placed.ids, wanted, windows)
        assert_close(got, reference.classical(hidden, placed, "mean"), tolerance)


def test_what_is_refused(base: Base, tmp_path: Path) -> None:
    """Masks of a decoder without the interface, layers cut beside a tower, and a processor without a tokenizer."""
    AutoModel.from_config(AutoConfig.for_model("vit", **_VISION)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    for path, options, says in (
        (base("llava_falcon"), {"method": "nosink", "setting": "mask0-bidir", "k": 1}, "attention interface"),
        (base("llava"), {"layer": 1}, "towers beside its decoder"),
        (str(tmp_path), {"method": "classical"}, "tokenizer"),
    ):
        with pytest.raises(ValueError, match=says):
            build(path, **options)
