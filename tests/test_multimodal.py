"""Image-text models embed text as their text tower does, run alone by transformers' eager attention.

The vision tower beside it is as deep as the text tower and looks both ways, so that one cannot pass
for the other.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import reference
import torch
from architectures import POSITIONS, TOKENIZERS, random_model
from oracle import TEXTS, assert_close, float64_model, tokenizer_of
from pipelines import build, encoded, save_and_load
from reference_nosink import Plan, hooked, plan_upper_layers
from transformers import AutoConfig, AutoModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

DEPTH = 3
WINDOW = 6
# The ids that stand for images lie beyond the small vocabulary by default, and beyond the text's
# tokens here.
IMAGE_TOKEN = 530
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
}
TEXT_TOWER = {
    **SIZES,
    "vocab_size": 544,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED_TOWER = {
    **TEXT_TOWER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
}
GEMMA_TOWER = {
    **GROUPED_TOWER,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 8,
}
LLAMA_TOWER = {**GROUPED_TOWER, "model_type": "llama"}
# It calls no attention interface, beside a vision tower that does.
FALCON_TOWER = {
    **TEXT_TOWER,
    "model_type": "falcon",
    "multi_query": False,
    "new_decoder_architecture": False,
    "alibi": False,
}
VISION_TOWER = {**SIZES, "image_size": 16, "patch_size": 4}
CLIP_TOWER = {**VISION_TOWER, "model_type": "clip_vision_model"}
Settings = dict[str, Any]


class ImageTextModel(NamedTuple):
    """What a tiny model is made of."""

    model_type: str
    text_tower: Settings
    vision_tower: Settings
    image_processor: str
    image_tokens: tuple[str, ...] = ()


MODELS = {
    # Its processor asks the tokenizer for these tokens.
    "gemma3": ImageTextModel(
        "gemma3", GEMMA_TOWER, VISION_TOWER, "Gemma3ImageProcessor", ("image", "boi", "eoi")
    ),
    "llava": ImageTextModel("llava", LLAMA_TOWER, CLIP_TOWER, "CLIPImageProcessor"),
    "llava_falcon": ImageTextModel("llava", FALCON_TOWER, CLIP_TOWER, "CLIPImageProcessor"),
}
BaseFolder = Callable[[str], str]


def save(name: str, folder: Path) -> str:
    """A tiny random model with its processor's files, as its repositories have them."""
    parts = MODELS[name]
    config: Any = AutoConfig.for_model(
        parts.model_type,
        text_config=dict(parts.text_tower),
        vision_config=dict(parts.vision_tower),
        image_token_id=IMAGE_TOKEN,
        image_token_index=IMAGE_TOKEN,
        mm_tokens_per_image=4,
    )
    random_model(config, zlib.crc32(name.encode())).save_pretrained(folder)
    image_tokens = {f"{token}_token": f"<{token}>" for token in parts.image_tokens}
    tokenizer = TOKENIZERS["bos"]()
    tokenizer.add_tokens(["<image>", *image_tokens.values()], special_tokens=True)
    tokenizer.model_max_length = 2 * POSITIONS  # more than the text tower can
    tokenizer.save_pretrained(folder)
    preprocessor = {
        "image_processor_type": parts.image_processor,
        "processor_class": PROCESSOR_MAPPING_NAMES[parts.model_type],
        "image_seq_length": 4,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    tokenizer_file = folder / "tokenizer_config.json"
    tokenizer_config = json.loads(tokenizer_file.read_text())
    tokenizer_config |= {"extra_special_tokens": image_tokens, **image_tokens}
    tokenizer_file.write_text(json.dumps(tokenizer_config))
    return str(folder)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> BaseFolder:
    return lru_cache(lambda name: save(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("name", MODELS)
def test_echo_and_reba_read_the_text_tower(base_folder: BaseFolder, name: str) -> None:
    path = base_folder(name)
    echo_vectors = encoded(build(path, "echo", pooling="mean"))
    reba_vectors = encoded(build(path))
    for text, echo_vector, reba_vector in zip(TEXTS, echo_vectors, reba_vectors, strict=True):
        layout = reference.lay_out(tokenizer_of(path), text, (None, None))
        decoder = float64_model(path).get_decoder()
        hidden_states, attention = reference.hidden_and_attention(decoder, layout.ids)
        assert_close(echo_vector, reference.echo(hidden_states, layout, "mean"))
        symmetrized = reference.symmetrized_max(attention)
        assert_close(reba_vector, reference.reba(hidden_states, symmetrized, layout, "last"))


@pytest.mark.parametrize("name", ["gemma3", "llava"])
def test_a_text_is_no_longer_than_the_text_tower_reads(base_folder: BaseFolder, name: str) -> None:
    assert build(base_folder(name), "echo").max_seq_length == POSITIONS


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_give_the_same_vectors(
    base_folder: BaseFolder, name: str, tmp_path: Path
) -> None:
    model = build(base_folder(name))
    assert torch.equal(encoded(save_and_load(model, tmp_path)), encoded(model))


@pytest.mark.parametrize(
    ("options", "layer_plan"),
    [
        ({"setting": "mask0&bidir", "k0": 1}, plan_upper_layers(DEPTH, k=2, k0=1)),
        ({"setting": "inter-bidir"}, plan_upper_layers(DEPTH, "inter", k=2)),
        ({"setting": "extra-bidir"}, plan_upper_layers(DEPTH, "extra", k=2)),
        ({"setting": "extend-bidir"}, plan_upper_layers(DEPTH, "extend", k=2)),
    ],
)
@pytest.mark.parametrize(
    ("name", "windows"), [("gemma3", [WINDOW, None, WINDOW]), ("llava", [None] * DEPTH)]
)
def test_settings_change_the_layers_of_the_text_tower(
    base_folder: BaseFolder,
    name: str,
    windows: list[int | None],
    options: Settings,
    layer_plan: Plan,
) -> None:
    """Masks in place, and second runs."""
    path = base_folder(name)
    # Two passes through the last layer make this float32's rounding large.
    tolerance = 1e-4 if layer_plan.architecture == "extend" else 1e-5
    vectors = encoded(build(path, "nosink", k=2, **options))
    for text, vector in zip(TEXTS, vectors, strict=True):
        layout = reference.lay_out(tokenizer_of(path), text, (None,))
        hidden_states, _ = hooked(
            float64_model(path).get_decoder(), layout.ids, layer_plan, windows
        )
        assert_close(vector, reference.classical(hidden_states, layout, "mean"), tolerance)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        (
            "llava_falcon",
            {"method": "nosink", "setting": "mask0-bidir", "k": 1},
            "attention interface",
        ),
        ("llava", {"layer": 1}, "towers besides its decoder"),
    ],
)
def test_what_towers_cannot_do_is_refused(
    base_folder: BaseFolder,
    name: str,
    options: Settings,
    problem: str,
) -> None:
    with pytest.raises(ValueError, match=problem):
        build(base_folder(name), **options)


def test_a_processor_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("vit", **VISION_TOWER)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    preprocessor = {"image_processor_type": "ViTImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    with pytest.raises(ValueError, match="tokenizer"):
        build(str(tmp_path), "classical")
