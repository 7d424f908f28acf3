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
from test_multimodal import save as save_composed
from torch import nn
from transformers import AutoConfig

import st_reba
from st_reba import truncate_layers, truncation
from st_reba.cli import main
from st_reba.describe import describe
from st_reba.hub import saving
from st_reba.hub.saving import save
from st_reba.hub.verify import verify
from st_reba.modules.depth import LayerList

Base = Callable[..., str]
UNREADABLE = "gpt_neo"
NAMES = [name for name in (*ARCHITECTURES, *EXTRA) if name != UNREADABLE]
BUILDS: dict[str, dict[str, Any]] = {
    "reba": {"method": "reba", "layer": 3, "pooling": "mean", "prompts": {"query": "Q: "}},
    "echo": {"method": "echo", "layer": -3, "final_norm": False, "template": "echo"},
    "range": {"method": "echo", "layer": [0, 2], "pooling": "mean", "normalize": False},
    "side by side": {"method": "reba", "layer": [1, 3], "join": "concat", "final_norm": False},
    "chunked": {"method": "reba", "layer": 2, "chunk": 6},
    "nosink": {"method": "nosink", "layer": 3, "setting": "mask0&bidir", "k": 2, "k0": 1},
    "plan": {"method": "echo", "layer": 4, "layers": {"architecture": "extra", "kind": "backward", "k": 2}},
    "lists": {"method": "echo", "layer": 3, "layers": {"layers": {"backward": [0], "bidirectional": [-1]}}},
    "embeddings": {"method": "classical", "layer": 0, "pooling": "mean"},
    "prepended": {"method": "classical", "layer": 3, "pooling": "mean", "prepend": 2},
    "prompts": {"method": "prompteol", "layer": 4, "template": "metaeol"},
}


def weights(folder: Path) -> dict[str, int]:
    """Numbers of each stored tensor, by its name."""
    with safe_open(folder / "model.safetensors", "pt") as stored:
        return {name: stored.get_tensor(name).numel() for name in stored.keys()}  # noqa: SIM118


@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], "float32"))
@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2", "gemma2"))
def test_every_architecture(base: Base, tmp_path: Path, name: str, dtype: str) -> None:
    """To the bit: of the model that is made, and of what plain sentence-transformers loads from where it was saved."""
    method = "classical" if name == "falcon_alibi" else "reba"
    for layer, method_ in ((1, method), ([0, 1], "classical")):
        model = st_reba.build(base(name), method_, layer=layer, dtype=dtype, padding_side="left", pooling="mean")
        wanted = model.encode(list(TEXTS), convert_to_tensor=True)
        short = truncate_layers(model)
        first: Any = short[0]
        assert first.depth == 1 and first.layer == (None if layer == 1 else [0, 1]) and first.base_layers in (2, 3)
        assert torch.equal(short.encode(list(TEXTS), convert_to_tensor=True), wanted)
        folder = tmp_path / f"{layer}"
        short.save_pretrained(str(folder))
        loaded = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
        assert torch.equal(loaded.encode(list(TEXTS), convert_to_tensor=True), wanted)
        assert loaded[0].depth == 1 and loaded[0].base_layers == first.base_layers
        # The whole model is as it was.
        assert torch.equal(model.encode(list(TEXTS), convert_to_tensor=True), wanted) and model[0].depth in (2, 3)


@pytest.mark.parametrize("name", slow_but(BUILDS, "reba", "nosink", "range"))
def test_every_plan(tmp_path: Path, name: str) -> None:
    model = st_reba.build("mini", **BUILDS[name])
    runs = model[0].reading.runs
    wanted = model.encode(list(TEXTS))
    short = truncate_layers(model)
    for each in (short, copy.deepcopy(short), truncate_layers(copy.deepcopy(model))):
        np.testing.assert_array_equal(each.encode(list(TEXTS)), wanted)
    assert short[0].depth == runs == len(short[0].model.layers)
    assert short[0].stack == model[0].stack and short[0].layers == model[0].layers
    assert short.prompts == model.prompts and len(short) == len(model)
    short.save_pretrained(str(tmp_path / "first"))
    loaded = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    np.testing.assert_array_equal(loaded.encode(list(TEXTS)), wanted)
    loaded.save_pretrained(str(tmp_path / "second"))
    file = "sentence_bert_config.json"
    assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    if name == "reba":
        np.testing.assert_array_equal(short.encode_query("天"), model.encode_query("天"))
        items = [(TEXTS[4], (1, 3))]
        np.testing.assert_array_equal(st_reba.encode_words(short, items), st_reba.encode_words(model, items))


@pytest.mark.slow
def test_sizes(tmp_path: Path) -> None:
    """As many weights less as the layers above have."""
    whole = st_reba.build("mini", "echo", layer=2)
    save(whole, tmp_path / "whole")
    save(whole, tmp_path / "short", truncate_layers=True)
    before, after = weights(tmp_path / "whole"), weights(tmp_path / "short")
    upper = {name for name in before if name.startswith(tuple(f"layers.{index}." for index in range(2, 6)))}
    assert len(upper) == 4 * 9 and after == {name: before[name] for name in set(before) - upper}
    # Layers of equal size.
    assert sum(before.values()) - sum(after.values()) == 4 * sum(
        before[name] for name in before if name.startswith("layers.0.")
    )
    assert json.loads((tmp_path / "short" / "config.json").read_text())["num_hidden_layers"] == 2


def test_memory() -> None:
    """Weights are shared, and moving one model leaves the other where it is."""
    model = st_reba.build("mini", "echo", layer=2)
    short = truncate_layers(model)
    theirs = {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() for weight in short.parameters()} <= theirs
    wanted = model.encode("天")
    short.to(torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    np.testing.assert_array_equal(model.encode("天"), wanted)


def test_all_else_is_carried(base: Base) -> None:
    model = st_reba.build(
        base("qwen3"), "reba", layer=1, prompts={"query": "Q: "}, dtype="bfloat16", non_finite="zeros"
    )
    model.truncate_dim, model.similarity_fn_name = 8, "dot"
    model[0].model.embed_tokens.weight.requires_grad_(False)
    model.eval()
    short = truncate_layers(model)
    assert (short.truncate_dim, short.similarity_fn_name, short.prompts) == (8, "dot", model.prompts)
    assert short.prompts is not model.prompts and not short[0].model.training and model[0].model.training is False
    first = short[0].get_config_dict()
    changed = {"layer", "base_layers"}
    assert {name for name, value in first.items() if model[0].get_config_dict().get(name) != value} == changed
    frozen = [name for name, weight in short.named_parameters() if not weight.requires_grad]
    assert frozen == ["0.model.embed_tokens.weight"]
    assert short[0].model.dtype == torch.bfloat16
    assert short[0].model.config._attn_implementation == model[0].model.config._attn_implementation == "st_reba"
    # The pooling asks the new module for what it captures, not the old one.
    assert short[1]._source[0] is short[0] and model[1]._source[0] is model[0]
    model[0].shares_prefix = False
    assert truncate_layers(model)[0].shares_prefix is False


def test_training_goes_on() -> None:
    model = st_reba.build("mini", "echo", layer=2).train()
    model[0].model.layers[0].mlp.eval()
    short = truncate_layers(model)
    for each in (model, short):
        modes = {name: module.training for name, module in each.named_modules()}
        frozen = {name for name in modes if name.startswith("0.model.layers.0.mlp")}
        assert len(frozen) > 1 and {name for name, training in modes.items() if not training} == frozen
    short(short[0].preprocess(["天"]))["sentence_embedding"].sum().backward()
    assert all(weight.grad is not None for weight in short[0].model.layers.parameters())
    assert type(short[0].model.layers) is nn.ModuleList and type(model[0].model.layers) is LayerList


def test_once_more() -> None:
    """A model that was cut can be cut again, and still knows how deep its base is."""
    model = truncate_layers(st_reba.build("mini", "echo", layer=4))
    model[0].layer = 2
    wanted = model.encode(list(TEXTS))
    again = truncate_layers(model)
    np.testing.assert_array_equal(again.encode(list(TEXTS)), wanted)
    assert again[0].depth == 2 and again[0].base_layers == 6


def test_in_a_mixture_of_layers(tmp_path: Path) -> None:
    """Lists of a configuration that speak of layers are cut, others are not."""
    config = AutoConfig.for_model(
        "gemma3_text", num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        eos_token_id=[1, 2, 3], hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=64, sliding_window=6,
    )  # fmt: skip
    short = truncation._config(config, 3, 2)
    assert short.layer_types == ["sliding_attention", "full_attention"] and short.num_hidden_layers == 2
    assert short.eos_token_id == [1, 2, 3] and config.layer_types[2:] == ["sliding_attention"]
    gpt2 = truncation._config(AutoConfig.for_model("gpt2", n_layer=4), 4, 3)
    assert gpt2.n_layer == 3 and gpt2.to_dict()["n_layer"] == 3


# ---------------------------------------------------------------------------------------------------------------------
# Saved by st_reba


@pytest.mark.slow
def test_save(tmp_path: Path) -> None:
    model = st_reba.build("mini", **BUILDS["reba"])
    save(model, tmp_path, truncate_layers=True)
    assert verify(tmp_path).ok
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(loaded.encode(list(TEXTS)), model.encode(list(TEXTS)))
    assert len(loaded[0].model.layers) == 3 and len(model[0].model.layers) == 6
    description = describe(tmp_path)
    assert description.reads == "layer 3 of 6, after the final norm; 3 run, and 3 are held"
    assert description.layers == "3 forward"
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "layer 3 of 6, after the final norm; the lowest 3 layers of the base are held alone" in card
    assert "A position passes 3 layers, where the base has 6." in card
    with pytest.raises(ValueError, match="runs all 3 layers, so there is nothing to cut"):
        save(loaded, tmp_path / "again", truncate_layers=True)


def test_without_golden_vectors(tmp_path: Path) -> None:
    save(st_reba.build("mini", "echo", layer=2), tmp_path, truncate_layers=True, golden=False)
    assert not (tmp_path / "golden.json").exists() and len(weights(tmp_path)) == 2 * 9 + 2


def test_nothing_is_left_of_a_model_that_loads_as_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is loaded and compared with the whole model before it takes its place."""
    model = st_reba.build("mini", "echo", layer=3)

    def other(given: SentenceTransformer) -> SentenceTransformer:
        short = truncate_layers(copy.deepcopy(given))
        with torch.no_grad():
            short[0].model.layers[0].self_attn.q_proj.weight.mul_(-1)
        return short

    monkeypatch.setattr(saving.truncation, "truncate_layers", other)
    with pytest.raises(ValueError, match=r"truncate_layers=True: without its upper layers .* other vectors"):
        save(model, tmp_path / "model", truncate_layers=True)
    assert list(tmp_path.iterdir()) == []


def test_weights_at_the_base(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="truncate_layers=True: with weights=False the base's are loaded"):
        save(st_reba.build("mini", "echo", layer=3), tmp_path / "model", weights=False, truncate_layers=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    arguments = ["build", "mini", str(out), "--method", "echo", "--pooling", "mean"]
    assert main([*arguments, "--layer", "1:3", "--no-final-norm", "--truncate-layers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reads"] == "mean of layers 1 to 3 of 6, before the final norm; 3 run, and 3 are held"
    wanted = st_reba.build("mini", "echo", pooling="mean", layer=[1, 3], final_norm=False).encode(list(TEXTS))
    np.testing.assert_array_equal(SentenceTransformer(str(out), device="cpu").encode(list(TEXTS)), wanted)
    assert main([*arguments, "--layer", "2:3", "--join", "concat", "--overwrite", "--truncate-layers"]) == 0
    assert (
        "concatenation of layers 2 to 3 of 6, after the final norm; 3 run, and 3 are held\n" in capsys.readouterr().out
    )
    assert SentenceTransformer(str(out), device="cpu").get_embedding_dimension() == 2 * 192
    assert main([*arguments, "--layer=-4", "--overwrite"]) == 0
    assert "layer 3 of 6, after the final norm; 3 run\n" in capsys.readouterr().out
    assert len(weights(out)) == 6 * 9 + 2
    assert main([*arguments, "--truncate-layers", "--overwrite"]) == 2
    assert "layer=None runs all 6 layers, so there is nothing to cut" in capsys.readouterr().err
    assert len(weights(out)) == 6 * 9 + 2
    for wrong in ("x", "1:2:3", "1,2", "2:", "1.5"):
        with pytest.raises(SystemExit):
            main([*arguments, "--layer", wrong])
        assert f"{wrong!r} names no layer" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def test_refusals(base: Base) -> None:
    model = st_reba.build("mini", "echo")
    for layer, final_norm in ((None, True), (-1, True), (6, False), ([2, 6], True)):
        model[0].layer, model[0].final_norm = layer, final_norm
        with pytest.raises(ValueError, match="runs all 6 layers, so there is nothing to cut. Build with layer="):
            truncate_layers(model)
    model[0].layer = 3
    model[0].model._hf_peft_config_loaded = True
    with pytest.raises(ValueError, match=r"has an adapter.*merge_adapter"):
        truncate_layers(model)
    model[0].model._hf_peft_config_loaded = False
    model[0].model.hf_quantizer = object()
    with pytest.raises(ValueError, match="weights are quantized"):
        truncate_layers(model)
    model[0].model.hf_quantizer = None
    model[0].model.hf_device_map = {"layers.0": 0, "layers.1": "cpu"}
    with pytest.raises(ValueError, match="several devices"):
        truncate_layers(model)
    model[0].model.hf_device_map = {"": "cpu"}
    assert truncate_layers(model)[0].depth == 3
    plain = SentenceTransformer(modules=[nn.Identity()])
    with pytest.raises(ValueError, match="starts with Identity, not with a module of st_reba"):
        truncate_layers(plain)


def test_a_backbone_scaled_by_its_depth(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower layers that would compute something else by themselves are refused, and why is said."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    made = LlamaDecoderLayer.__init__

    def scaled(self: Any, config: Any, layer_idx: int) -> None:
        made(self, config, layer_idx)
        self.scale = config.num_hidden_layers**-0.5
        self.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.scale, *inputs[1:]))

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", scaled)
    model = st_reba.build("mini", "echo", layer=3)
    with pytest.raises(ValueError, match=r"differ by .*%: layers\.0\.scale depends on the number of layers.*all its"):
        truncate_layers(model)


def test_a_backbone_that_cannot_be_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaModel

    model = st_reba.build("mini", "echo", layer=3)
    made = LlamaModel.__init__

    def odd(self: Any, config: Any) -> None:
        made(self, config)
        self.head = nn.Linear(2, 2)

    monkeypatch.setattr(LlamaModel, "__init__", odd)
    with pytest.raises(ValueError, match=r"cannot be made with 3 of its 6 layers: it has a new head\.bias"):
        truncate_layers(model)

    def refuses(self: Any, config: Any) -> None:
        raise ValueError("layers must be even")

    monkeypatch.setattr(LlamaModel, "__init__", refuses)
    with pytest.raises(ValueError, match="cannot be made with 3 of its 6 layers: layers must be even"):
        truncate_layers(model)


def test_towers(tmp_path: Path) -> None:
    """A decoder beside a tower is named, and what to do."""
    model = st_reba.build(save_composed("llava", tmp_path), "echo", layer=1)
    with pytest.raises(ValueError, match="LlavaModel has towers beside its decoder. Save the text tower"):
        truncate_layers(model)
