"""Image-text models embed text as their text tower does, run alone by transformers' eager attention.

The vision tower beside it is as deep as the text tower and looks both ways, so that one cannot pass for the other.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import architectures
import pytest
import reference
import torch
import transformers
from architectures import POSITIONS, TOKENIZERS
from marks import slow_but
from oracle import TEXTS, assert_close
from reference import Layout
from reference_nosink import hooked, plan
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

import st_reba
from st_reba import LayerPlan
from st_reba.modules.backbone import Backbone
from st_reba.modules.layer_list import layers_of

DEPTH = 3
WINDOW = 6
_NO_IDS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "vocab_size": 544,
    **_NO_IDS,
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
_ALTERNATING = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}
_QWEN_TEXT = {
    **_TEXT,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0},
}
_QWEN_VISION: dict[str, Any] = {
    "depth": DEPTH,
    "hidden_size": 32,
    "embed_dim": 32,
    "num_heads": 4,
    "intermediate_size": 48,
    "patch_size": 4,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [1],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1, 2],
}
_CLIP = {**_VISION, "model_type": "clip_vision_model"}
_QWEN = (_QWEN_TEXT, _QWEN_VISION, {}, "Qwen2VLImageProcessor")
# Text tower, vision tower, the rest of the configuration, image processor.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], str]] = {
    "gemma3": (
        {**_TEXT, **_ALTERNATING, "query_pre_attn_scalar": 8},
        _VISION,
        {"mm_tokens_per_image": 4},
        "Gemma3ImageProcessor",
    ),
    # Its vision layers know their layer_idx too.
    "gemma4": (
        {**_TEXT, **_ALTERNATING, "pad_token_id": 0, "hidden_size_per_layer_input": 0, "global_head_dim": 8},
        _VISION,
        {"audio_config": None},
        "Gemma4ImageProcessor",
    ),
    "idefics2": (
        {**_TEXT, "model_type": "mistral", "sliding_window": None},
        _VISION,
        {"perceiver_config": {"hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": DEPTH}},
        "Idefics2ImageProcessor",
    ),
    "idefics3": ({**_TEXT, "model_type": "llama"}, _VISION, {}, "Idefics3ImageProcessor"),
    "internvl": (
        {**_TEXT, "model_type": "qwen2"},
        {**_VISION, "image_size": [16, 16], "patch_size": [4, 4]},
        {},
        "GotOcr2ImageProcessor",
    ),
    "llava": ({**_TEXT, "model_type": "llama"}, _CLIP, {}, "CLIPImageProcessor"),
    "llava_next": ({**_TEXT, "model_type": "qwen2"}, _CLIP, {}, "LlavaNextImageProcessor"),
    "mistral3": (
        {**_TEXT, "model_type": "mistral", "sliding_window": WINDOW},
        {**_VISION, "model_type": "pixtral", "head_dim": 8},
        {},
        "PixtralImageProcessor",
    ),
    # Its vision tower calls no attention interface.
    "got_ocr2": (
        {**_TEXT, "model_type": "qwen2"},
        {**_VISION, "output_channels": 32, "mlp_dim": 48, "global_attn_indexes": [1]},
        {},
        "GotOcr2ImageProcessor",
    ),
    "ovis2": (
        {**_TEXT, "model_type": "qwen2"},
        {**_VISION, "vocab_size": 64, "num_visual_indicator_tokens": 5},
        {},
        "Ovis2ImageProcessor",
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], str]] = {
    "blip-2": (
        {
            "model_type": "opt",
            **{name: _TEXT[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")},
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": POSITIONS,
            **_NO_IDS,
        },
        _VISION,
        {"qformer_config": {"hidden_size": 32, "num_hidden_layers": DEPTH, "num_attention_heads": 4}},
        "BlipImageProcessor",
    ),
    "llama4": (
        {**_TEXT, "num_local_experts": 2, "intermediate_size_mlp": 48, "pad_token_id": 0},
        {**_VISION, "intermediate_size": 128, "vision_output_dim": 32, "projector_input_dim": 32},
        {"pad_token_id": 0},
        "Llama4ImageProcessor",
    ),
    "mllama": (
        {**_TEXT, "cross_attention_layers": [1], "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": DEPTH,
            "num_global_layers": DEPTH,
            "attention_heads": 4,
            "image_size": 16,
            "patch_size": 4,
            "intermediate_layers_indices": [0, 1],
            "vision_output_dim": 96,
        },
        {},
        "MllamaImageProcessor",
    ),
    "paligemma": (
        {**_TEXT, "model_type": "gemma"},
        {**_VISION, "model_type": "siglip_vision_model", "projection_dim": 32},
        {"projection_dim": 32},
        "SiglipImageProcessor",
    ),
    # A decoder that calls no attention interface, beside a vision tower that does.
    "llava_falcon": (
        {
            "model_type": "falcon",
            "hidden_size": 32,
            "num_hidden_layers": DEPTH,
            "num_attention_heads": 4,
            "vocab_size": 544,
            "multi_query": False,
            "new_decoder_architecture": False,
            "alibi": False,
            **_NO_IDS,
        },
        _CLIP,
        {},
        "CLIPImageProcessor",
    ),
}
# Further tokens that a processor asks its tokenizer for.
_TOKENS = {
    "gemma3": {"image_token": "<image_soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    "mistral3": {"image_token": "[IMG]", "break_token": "[IMG_BREAK]", "end_token": "[IMG_END]"},
}
_TAIL = [("image", "video", "audio"), ("token_id", "token_index")]
PLAN = LayerPlan(k=2, k0=1)
Base = Callable[[str], str]


def _config(name: str) -> Any:
    text, vision, rest, _ = {**MODELS, **OTHERS}[name]
    config = AutoConfig.for_model(
        name.removesuffix("_falcon"), text_config=dict(text), vision_config=dict(vision or {}), **rest
    )
    # The ids that stand for images lie beyond the small vocabulary by default, and beyond the text's tokens here.
    for place, (kind, end) in enumerate((kind, end) for kind in _TAIL[0] for end in _TAIL[1]):
        if getattr(config, f"{kind}_{end}", None) is not None:
            setattr(config, f"{kind}_{end}", 530 + place)
    return config


def save(name: str, folder: Path) -> str:
    """A tiny random model with its processor's files, as its repositories have them."""
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModel.from_config(_config(name), attn_implementation="eager", dtype=torch.float32)
    architectures._fill(model, zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    tokenizer = TOKENIZERS["bos"]()
    tokens = _TOKENS.get(name, {})
    tokenizer.add_tokens([*tokens.values(), "<image>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    processor = PROCESSOR_MAPPING_NAMES[name.removesuffix("_falcon")]
    # Without the library that an image processor needs, the tokenizer is all that can be loaded.
    needs = {"gemma4", "internvl", "llama4", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"}
    if name in needs and find_spec("torchvision") is None:
        processor = "PreTrainedTokenizerFast"
    image = {"image_processor_type": {**MODELS, **OTHERS}[name][3], "processor_class": processor}
    (folder / "preprocessor_config.json").write_text(json.dumps({**image, "image_seq_length": 4}))
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**written, "extra_special_tokens": tokens, **tokens}))
    return str(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    made: dict[str, str] = {}

    def get(name: str) -> str:
        if name.removesuffix("_falcon") not in CONFIG_MAPPING:
            pytest.skip(f"transformers {transformers.__version__} has no {name}")
        if name not in made:
            made[name] = save(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@lru_cache(maxsize=4)
def tower(path: str) -> PreTrainedModel:
    """The text tower by itself."""
    whole = AutoModel.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    return reference.as_double(whole.get_decoder())


@lru_cache(maxsize=128)
def layout(path: str, text: str, pieces: tuple[str | None, ...]) -> Layout:
    return reference.layout(AutoTokenizer.from_pretrained(path), text, list(pieces))


def run(path: str, text: str, *pieces: str | None) -> tuple[Layout, Tensor, Tensor]:
    placed = layout(path, text, pieces)
    return placed, *reference.hidden_and_attention(tower(path), placed.ids)


def vectors(model: SentenceTransformer) -> list[Tensor]:
    return list(model.encode(list(TEXTS), batch_size=len(TEXTS), convert_to_tensor=True))


@pytest.mark.parametrize("name", slow_but(MODELS, "qwen2_5_vl"))
def test_methods(base: Base, name: str) -> None:
    path = base(name)
    classical = vectors(st_reba.build(path, "classical", pooling="mean", normalize=False))
    prompteol = vectors(st_reba.build(path, "prompteol", normalize=False))
    echo = vectors(st_reba.build(path, "echo", normalize=False))
    last, mean = (vectors(st_reba.build(path, pooling=pooling, normalize=False)) for pooling in ("last", "mean"))
    for row, text in enumerate(TEXTS):
        placed, hidden, _ = run(path, text, None)
        assert_close(classical[row], reference.classical(hidden, placed, "mean"))
        _, hidden, _ = run(path, text, 'This sentence: "', None, '" means in one word:"')
        assert_close(prompteol[row], reference.very_last(hidden))
        placed, hidden, attention = run(path, text, None, None)
        assert_close(echo[row], reference.echo(hidden, placed))
        fused = reference.symmetrized_max(attention)
        assert_close(last[row], reference.reba(hidden, fused, placed, "last"))
        assert_close(mean[row], reference.reba(hidden, fused, placed, "mean"))


@pytest.mark.parametrize("name", slow_but(MODELS, "qwen2_5_vl", "gemma3"))
def test_plans(base: Base, name: str) -> None:
    """Kinds in place, and second passes through the text tower's layers, not the vision tower's."""
    path = base(name)
    config = tower(path).config
    types = getattr(config, "layer_types", None) or ["full_attention"] * DEPTH
    everywhere = name == "mistral3"
    windows = [WINDOW if everywhere or kind == "sliding_attention" else None for kind in types]
    model = st_reba.build(path, "nosink", stages=[PLAN], normalize=False)
    for architecture in ("inplace", "inter", "extra", "extend"):
        model[0].rebind([LayerPlan(architecture=architecture, k=2, k0=1)])  # type: ignore[arg-type]
        wanted = plan(DEPTH, architecture, "bidirectional", 2, 1)  # type: ignore[arg-type]
        for text, got in zip(TEXTS, vectors(model), strict=True):
            placed = layout(path, text, (None,))
            hidden, _ = hooked(tower(path), placed.ids, wanted, windows)
            # Two passes through the last layer make this float32's rounding large.
            assert_close(got, reference.classical(hidden, placed, "mean"), 1e-4 if architecture == "extend" else 1e-5)


def test_vision_layers_that_know_their_index(base: Base) -> None:
    model = AutoModel.from_pretrained(base("gemma3"))
    vision = model.vision_tower.get_submodule(
        next(name for name, part in model.vision_tower.named_modules() if name.endswith("layers"))
    )
    assert len(vision) == DEPTH
    for index, layer in enumerate(vision):
        layer.layer_idx = index
    assert list(layers_of(Backbone(model))) == list(model.language_model.layers)


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "llava"])
def test_save_and_load(base: Base, name: str, tmp_path: Path) -> None:
    for method, options in (("reba", {}), ("nosink", {"setting": "inter-bidir", "k": 2})):
        model = st_reba.build(base(name), method, **options)
        folder = tmp_path / method
        model.save_pretrained(str(folder))
        loaded = SentenceTransformer(str(folder), model_kwargs={"dtype": torch.float32}, device="cpu")
        assert type(loaded[0].model) is type(model[0].model)
        assert type(loaded[0].processor) is type(model[0].processor)  # type: ignore[union-attr]
        assert torch.equal(torch.stack(vectors(loaded)), torch.stack(vectors(model)))


def test_positions_are_the_text_towers(base: Base, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The tokenizer sets no limit; the positions stand in the text tower's configuration alone."""
    path = Path(save("idefics3", tmp_path))
    written = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**written, "model_max_length": int(1e30)}))
    model = st_reba.build(path, "echo")
    assert model.max_seq_length == POSITIONS
    with caplog.at_level(logging.WARNING):
        model.encode("河 " * POSITIONS)
    assert f"max_seq_length={POSITIONS} holds no more" in caplog.text
    assert st_reba.build(path, "echo", max_seq_length=20).max_seq_length == 20


def test_a_decoder_without_the_interface(base: Base) -> None:
    """Hooks capture it, whatever the vision tower calls; a plan is refused by the decoder's name."""
    path = base("llava_falcon")
    for text, got in zip(TEXTS, vectors(st_reba.build(path, "reba", normalize=False)), strict=True):
        placed, hidden, attention = run(path, text, None, None)
        assert_close(got, reference.reba(hidden, reference.symmetrized_max(attention), placed, "last"))
    with pytest.raises(ValueError, match="FalconModel does not call transformers' attention interface"):
        st_reba.build(path, "nosink", stages=[PLAN])


@pytest.mark.parametrize(
    ("name", "message"),
    slow_but(
        [
            ("blip-2", "Blip2Model needs 'pixel_values' beside a text.*get_decoder"),
            ("llama4", "Llama4ForConditionalGeneration hands out no last hidden states.*get_decoder"),
        ],
        "blip-2",
        rows=True,
    ),
)
def test_remedy(base: Base, name: str, message: str, tmp_path: Path) -> None:
    """A model that cannot run on text alone is refused, and its text tower does run."""
    path = base(name)
    for method, options in (("classical", {}), ("reba", {}), ("nosink", {"stages": [PLAN]})):
        with pytest.raises(ValueError, match=message):
            st_reba.build(path, method, **options)
    AutoModel.from_pretrained(path).get_decoder().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(path).save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    for text, got in zip(TEXTS, vectors(st_reba.build(tmp_path, "echo", normalize=False)), strict=True):
        placed = layout(path, text, (None, None))
        assert_close(got, reference.echo(reference.hidden_and_attention(body, placed.ids)[0], placed))


def test_layers_that_only_images_run(base: Base) -> None:
    """Mllama leaves its cross-attention layers out where there is no image: exact, or refused."""
    path = base("mllama")
    for text, got in zip(TEXTS, vectors(st_reba.build(path, "echo", normalize=False)), strict=True):
        placed = layout(path, text, (None, None))
        ids = torch.tensor([placed.ids])
        with torch.no_grad():
            hidden = tower(path)(input_ids=ids, use_cache=False).last_hidden_state[0].double()
        assert_close(got, reference.echo(hidden, placed))
    with pytest.raises(ValueError, match="handed out the attention of 2 of its 3 attention layers"):
        st_reba.build(path)
    with pytest.raises(ValueError, match="layer 1 ran as bidirectional 0 times in place of 1"):
        st_reba.build(path, "nosink", stages=[PLAN])
    with pytest.raises(ValueError, match="layers were replaced or left out.*use another plan"):
        st_reba.build(path, "nosink", setting="inter-bidir", k=2, check=False).encode("hi")


def test_a_prefix_model(base: Base) -> None:
    """PaliGemma looks both ways by itself: it runs so, and is refused where the method needs a causal decoder.

    Some versions of transformers give a text its causal mask as soon as there is padding, and only then.
    """
    path = base("paligemma")
    whole = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        alone = whole(input_ids=ids[:, :6]).last_hidden_state
        padded = whole(input_ids=ids, attention_mask=(ids < 11).long()).last_hidden_state[:, :6]
    if not torch.allclose(alone, padded, atol=1e-3):
        with pytest.raises(ValueError, match="hidden states of PaliGemmaModel change by .* when a text is padded"):
            st_reba.build(path, "echo")
        return
    model = st_reba.build(path, "echo", normalize=False)
    for text, got in zip(TEXTS, vectors(model), strict=True):
        # Some versions of its processor take the beginning-of-text token out of the tokenizer.
        ids = model[0].preprocess([text])["input_ids"]  # type: ignore[operator]
        with torch.no_grad():
            hidden = whole(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
        assert_close(got, hidden[0, -1].double())
    with pytest.raises(ValueError, match="looks both ways"):
        st_reba.build(path)
    with pytest.raises(ValueError, match="GemmaModel looks both ways already"):
        st_reba.build(path, "nosink", stages=[PLAN])


def test_a_processor_without_a_tokenizer(tmp_path: Path) -> None:
    config = AutoConfig.for_model("vit", **_VISION)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    with pytest.raises(ValueError, match="holds no tokenizer, and st_reba embeds text only. Use a base with a"):
        st_reba.build(tmp_path, "classical")
