"""The self-check finds the layer that does not obey, and only that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architectures import TOKENIZERS, save
from marks import slow_but
from transformers import AutoConfig, AutoModel

import st_reba
from st_reba.modules import attention, hooks
from st_reba.modules.state import current

Base = Callable[..., str]
REAL = attention.fused_attention


def disobey(monkeypatch: pytest.MonkeyPatch, layer: int, kind: str) -> None:
    """One layer computes another kind than it is told."""

    def fused(module: Any, query: Any, key: Any, value: Any, mask: Any, told: Any, **keywords: Any) -> Any:
        return REAL(module, query, key, value, mask, kind if module.layer_idx == layer else told, **keywords)

    monkeypatch.setattr(attention, "fused_attention", fused)


@pytest.mark.parametrize(
    ("layer", "kind", "message"),
    [
        (5, "forward", "running as nosink-bidirectional, its token 0 does not see token 1"),
        (4, "bidirectional", "running as nosink-bidirectional, its token 1 sees token 0"),
        (3, "nosink-bidirectional", "running as bidirectional, its token 1 does not see token 0"),
        (2, "backward", "running as bidirectional, its token 1 does not see token 0"),
        (1, "bidirectional", "running as forward, its token 0 sees token 1"),
        (0, "backward", "running as forward, its token 0 sees token 1"),
        (0, "nosink-forward", "running as forward, its token 1 does not see token 0"),
    ],
)
def test_the_layer_is_named(monkeypatch: pytest.MonkeyPatch, layer: int, kind: str, message: str) -> None:
    options: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}
    st_reba.build("mini", "nosink", **options)
    disobey(monkeypatch, layer, kind)
    with pytest.raises(ValueError, match=f"Layer {layer} .LlamaAttention. does not obey <LayerPlan.*{message}"):
        st_reba.build("mini", "nosink", **options)
    st_reba.build("mini", "nosink", check=False, **options)


@pytest.mark.parametrize("setting", ["inter-back", "extra-back", "extend-back"])
def test_a_pass_that_does_not_run(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    def nothing(module: Any, arguments: Any, keywords: Any, output: Any, index: int) -> Any:
        state = current()
        if state is not None and state.stack is not None:
            state.further += sum(layer == index for layer, _ in state.stack.second)
        return output

    monkeypatch.setattr(hooks, "run_further", nothing)
    message = "Layer [45] ran as backward 0 times in place of [12], so it does not obey"
    with pytest.raises(ValueError, match="cannot run <LayerPlan EXTRA" if setting == "extra-back" else message):
        st_reba.build("mini", "nosink", setting=setting, k=2)


@pytest.mark.parametrize("m", [0, 1, 2, 5, 40])
@pytest.mark.parametrize(
    "name", slow_but(["mistral", "gemma2", "gpt_oss", "gemma3_text", "gpt2"], "mistral", "gpt_oss")
)
def test_windows_and_sinks(base: Base, name: str, m: int) -> None:
    """A window shorter than the check's text is no disobedience."""
    for setting in ("mask0-all", "mask0-for", "inplace-back", "extend-bidir"):
        number = {} if setting in ("inplace-back", "extend-bidir") else {"m": m}
        st_reba.build(base(name), "nosink", setting=setting, k=2, **number)


def test_no_interface(base: Base) -> None:
    with pytest.raises(ValueError, match="BloomModel does not call transformers' attention interface.*llama"):
        st_reba.build(base("bloom"), "nosink", setting="inplace-bidir", k=1)
    st_reba.build(base("bloom"), "nosink", setting="baseline")


def test_layers_without_attention(tmp_path: Path) -> None:
    """In a hybrid the recurrent layers see what they see; the others can be converted."""
    config = AutoConfig.for_model(
        "lfm2",
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        layer_types=["conv", "full_attention", "conv"],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    TOKENIZERS["bos"]().save_pretrained(tmp_path)
    st_reba.build(tmp_path, "nosink", layers={"layers": {"bidirectional": [1]}})
    with pytest.raises(ValueError, match="Layer 2 ran as bidirectional 0 times in place of 1.*no attention"):
        st_reba.build(tmp_path, "nosink", layers={"layers": {"bidirectional": [1, 2]}})


def test_a_backbone_that_counts_its_texts(tmp_path: Path) -> None:
    """GPT-BigCode shapes its output by the number of texts that entered: two stacks cannot go through its norm."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 512}
    config = AutoConfig.for_model("gpt_bigcode", **sizes, bos_token_id=None, eos_token_id=None)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    TOKENIZERS["bos"]().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="GPTBigCodeModel cannot run <LayerPlan EXTRA.*variant='published'"):
        st_reba.build(tmp_path, "nosink", setting="extra-back", k=1)
    st_reba.build(tmp_path, "nosink", setting="extra-back", k=1, variant="published")


def test_half_precision(tmp_path: Path) -> None:
    save("llama", tmp_path, "bos")
    for dtype in ("bfloat16", "float16"):
        st_reba.build(tmp_path, "nosink", setting="mask0-all", k=1, dtype=dtype)
