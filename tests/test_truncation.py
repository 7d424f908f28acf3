"""Models without the layers that they do not run: the same vectors, fewer weights, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, EXTRA
from marks import slow_but
from oracle import TEXTS
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoConfig

import st_reba
from st_reba import LayerPlan, NoSink, Prepend, ReadLayers, truncate_layers, truncation

Base = Callable[..., str]
# GPT-Neo's layers are not found.
NAMES = [name for name in (*ARCHITECTURES, *EXTRA) if name != "gpt_neo"]


@pytest.mark.parametrize("name", slow_but(NAMES, "gpt2", "llama", "gemma2", "gpt_oss", "bloom", "mistral"))
def test_every_architecture(base: Base, tmp_path: Path, name: str) -> None:
    """To the bit: of the model that is made, and of what plain sentence-transformers loads from where it was saved."""
    for method, layers, dtype in (
        ("classical" if name == "falcon_alibi" else "reba", 1, "bfloat16"),
        ("classical", [0, 1], "float32"),
    ):
        model = st_reba.build(base(name), method, stages=[ReadLayers(layers)], dtype=dtype, pooling="mean")
        wanted = model.encode(list(TEXTS), convert_to_tensor=True)
        short = truncate_layers(model)
        assert short[0].depth == 1 and torch.equal(short.encode(list(TEXTS), convert_to_tensor=True), wanted)
        folder = str(tmp_path / dtype)
        short.save_pretrained(folder)
        loaded = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
        assert torch.equal(loaded.encode(list(TEXTS), convert_to_tensor=True), wanted) and loaded[0].depth == 1
        # The whole model is as it was.
        assert torch.equal(model.encode(list(TEXTS), convert_to_tensor=True), wanted) and model[0].depth in (2, 3)


BUILDS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "reba": ("reba", [ReadLayers(3)], {"pooling": "mean", "prompts": {"query": "Q: "}}),
    "echo": ("echo", [ReadLayers(-3, final_norm=False)], {"template": "echo"}),
    "range": ("echo", [ReadLayers([0, 2])], {"pooling": "mean", "normalize": False}),
    "side by side": ("reba", [ReadLayers([1, 3], join="concat", final_norm=False)], {}),
    "chunked": ("reba", [ReadLayers(2)], {"chunk": 6}),
    "nosink": ("nosink", [ReadLayers(3)], {"setting": "mask0&bidir", "k": 2, "k0": 1}),
    "plan": ("echo", [ReadLayers(4), LayerPlan("extra", "backward", 2)], {}),
    "lists": ("echo", [ReadLayers(3), LayerPlan(layers={"backward": [0], "bidirectional": [-1]})], {}),
    "embeddings": ("classical", [ReadLayers(0)], {"pooling": "mean"}),
    "prepended": ("classical", [ReadLayers(3), Prepend(2)], {"pooling": "mean"}),
    "prompts": ("prompteol", [ReadLayers(4), st_reba.Ensemble("metaeol")], {}),
    "planned words": ("reba", [ReadLayers(3), NoSink("mask0-bidir", k=1)], {}),
}


@pytest.mark.parametrize("name", BUILDS)
def test_every_stage(tmp_path: Path, name: str) -> None:
    method, stages, options = BUILDS[name]
    model = st_reba.build("mini", method, stages=stages, check=False, **options)
    runs = model[0].runs
    wanted = model.encode(list(TEXTS))
    short = truncate_layers(model)
    for each in (short, copy.deepcopy(short), truncate_layers(copy.deepcopy(model))):
        np.testing.assert_array_equal(each.encode(list(TEXTS)), wanted)
    assert short[0].depth == runs == len(short[0].model.layers) and short[0].stack == model[0].stack
    assert short.prompts == model.prompts and len(short) == len(model)
    short.save_pretrained(str(tmp_path / "first"))
    loaded = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    np.testing.assert_array_equal(loaded.encode(list(TEXTS)), wanted)
    loaded.save_pretrained(str(tmp_path / "second"))
    file = "sentence_bert_config.json"
    assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    if method == "reba":
        np.testing.assert_array_equal(short.encode_query("天"), model.encode_query("天"))
        items = [(TEXTS[4], (1, 3))]
        np.testing.assert_array_equal(st_reba.encode_words(short, items), st_reba.encode_words(model, items))


@pytest.mark.slow
def test_sizes(tmp_path: Path) -> None:
    """As many weights less as the layers above have; they are shared, and moving one model leaves the other."""
    whole = st_reba.build("mini", "echo", stages=[ReadLayers(2)], normalize=False)
    short = truncate_layers(whole)
    assert {each.data_ptr() for each in short.parameters()} <= {each.data_ptr() for each in whole.parameters()}
    numbers: dict[str, dict[str, int]] = {}
    for name, model in (("whole", whole), ("short", short)):
        model.save_pretrained(str(tmp_path / name))
        with safe_open(tmp_path / name / "model.safetensors", "pt") as stored:
            numbers[name] = {key: stored.get_tensor(key).numel() for key in stored.keys()}  # noqa: SIM118
    upper = {name for name in numbers["whole"] if name.startswith(tuple(f"layers.{index}." for index in range(2, 6)))}
    assert len(upper) == 4 * 9
    assert numbers["short"] == {name: count for name, count in numbers["whole"].items() if name not in upper}
    assert json.loads((tmp_path / "short" / "config.json").read_text())["num_hidden_layers"] == 2
    wanted = whole.encode("天")
    short.to(torch.bfloat16)
    assert {weight.dtype for weight in whole.parameters()} == {torch.float32}
    np.testing.assert_array_equal(whole.encode("天"), wanted)


def test_all_else_is_carried(base: Base) -> None:
    """Also which parts train; and what follows asks the new module, not the old one."""
    model = st_reba.build(base("qwen3"), "reba", stages=[ReadLayers(1)], prompts={"query": "Q: "}, dtype="bfloat16")
    model.truncate_dim, model.similarity_fn_name = 8, "dot"
    model[0].model.embed_tokens.weight.requires_grad_(False)
    model.train()
    model[0].model.layers[0].mlp.eval()
    short = truncate_layers(model)
    assert (short.truncate_dim, short.similarity_fn_name, short.prompts) == (8, "dot", model.prompts)
    assert short.prompts is not model.prompts and short.model_card_data.model is short
    assert short[0].get_config_dict() == model[0].get_config_dict()
    frozen = [name for name, each in short.named_parameters() if not each.requires_grad]
    assert frozen == ["0.model.embed_tokens.weight"]
    for each in (model, short):
        resting = {name for name, module in each.named_modules() if not module.training}
        assert resting == {name for name, _ in each.named_modules() if name.startswith("0.model.layers.0.mlp")}
    assert short[0].model.dtype == torch.bfloat16
    assert short[0].model.config._attn_implementation == model[0].model.config._attn_implementation
    assert short[1].source is short[0] and model[1].source is model[0]
    short(short[0].preprocess(["天"]))["sentence_embedding"].float().sum().backward()
    assert all(weight.grad is not None for weight in short[0].model.layers.parameters())


def test_once_more() -> None:
    """A model that was cut can be cut again."""
    model = truncate_layers(st_reba.build("mini", "echo", stages=[ReadLayers(4)]))
    model[0].rebind([ReadLayers(2)])
    wanted = model.encode(list(TEXTS))
    again = truncate_layers(model)
    np.testing.assert_array_equal(again.encode(list(TEXTS)), wanted)
    assert again[0].depth == 2 and model[0].depth == 4
    with pytest.raises(ValueError, match="all 2 layers run, so there is nothing to cut"):
        truncate_layers(again)


def test_in_a_mixture_of_layers() -> None:
    """Lists of a configuration that speak of layers are cut, others are not."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    given: dict[str, Any] = {**sizes, "layer_types": kinds, "eos_token_id": [1, 2, 3], "num_hidden_layers": 3}
    config = AutoConfig.for_model("gemma3_text", **given)
    short = truncation._config(config, 2)
    assert short.layer_types == kinds[:2] and short.num_hidden_layers == 2
    assert short.eos_token_id == [1, 2, 3] and config.layer_types == kinds
    gpt2 = truncation._config(AutoConfig.for_model("gpt2", n_layer=4), 3)
    assert gpt2.n_layer == 3 and gpt2.to_dict()["n_layer"] == 3


# What is refused


def test_refusals() -> None:
    model = st_reba.build("mini", "echo")
    for stages in ([], [ReadLayers(-1)], [ReadLayers(6, final_norm=False)], [ReadLayers([2, 6])]):
        model[0].rebind(stages)
        with pytest.raises(ValueError, match="all 6 layers run, so there is nothing to cut. Build with"):
            truncate_layers(model)
    model[0].rebind([ReadLayers(3)])
    backbone: Any = model[0].model
    for name, value, rest, message in (
        ("_hf_peft_config_loaded", True, False, r"has an adapter.*merge_adapter"),
        ("hf_quantizer", object(), None, "weights are quantized"),
        ("hf_device_map", {"layers.0": 0, "layers.1": "cpu"}, {"": "cpu"}, "several devices"),
    ):
        setattr(backbone, name, value)
        with pytest.raises(ValueError, match=message):
            truncate_layers(model)
        setattr(backbone, name, rest)
    assert truncate_layers(model)[0].depth == 3
    with pytest.raises(ValueError, match="starts with Identity, not a module of st_reba"):
        truncate_layers(SentenceTransformer(modules=[nn.Identity()]))


def test_a_backbone_scaled_by_its_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower layers that would compute something else by themselves are refused."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    made = LlamaDecoderLayer.__init__

    def scaled(self: Any, config: Any, layer_idx: int) -> None:
        made(self, config, layer_idx)
        self.scale = config.num_hidden_layers**-0.5
        self.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.scale, *inputs[1:]))

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", scaled)
    model = st_reba.build("mini", "echo", stages=[ReadLayers(3)])
    with pytest.raises(ValueError, match=r"the 3 lower layers of LlamaModel give .* differ by .*%.*all its layers"):
        truncate_layers(model)


def test_a_backbone_that_cannot_be_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaModel

    model = st_reba.build("mini", "echo", stages=[ReadLayers(3)])
    made = LlamaModel.__init__

    def odd(self: Any, config: Any) -> None:
        made(self, config)
        self.head = nn.Linear(2, 2)

    def refuses(self: Any, config: Any) -> None:
        raise ValueError("layers must be even")

    for init, message in ((odd, "it has a new 'head"), (refuses, "layers must be even")):
        monkeypatch.setattr(LlamaModel, "__init__", init)
        with pytest.raises(ValueError, match=f"cannot be made with 3 of its layers: {message}"):
            truncate_layers(model)


def test_towers(tmp_path: Path) -> None:
    """A decoder beside a tower is named, and what to do."""
    from test_multimodal import save as save_composed

    model = st_reba.build(save_composed("llava", tmp_path), "echo", stages=[ReadLayers(1)])
    with pytest.raises(ValueError, match="LlavaModel has towers beside its decoder. Save the text tower"):
        truncate_layers(model)
