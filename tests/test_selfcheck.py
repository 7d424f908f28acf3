"""The self-check finds the layer that does not obey, and only that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import TOKENIZERS, save
from transformers import AutoConfig, AutoModel

import st_reba
from st_reba.modules import plan, second
from st_reba.modules.kinds import KINDS

Base = Callable[..., str]
OPTIONS: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}


def disobey(monkeypatch: pytest.MonkeyPatch, layer: int, kind: str) -> None:
    """One layer computes another kind than it says that it does."""
    told = plan.PlannedPass.kind

    def other(self: Any, module: Any) -> str:
        said = told(self, module)
        return kind if module.layer_idx == layer else said

    monkeypatch.setattr(plan.PlannedPass, "kind", other)


@pytest.mark.parametrize(
    ("layer", "kind", "message"),
    [
        (5, "forward", "running as nosink-bidirectional, its token 0 does not see token 1"),
        (4, "bidirectional", "running as nosink-bidirectional, its token 1 sees token 0"),
        (3, "nosink-bidirectional", "running as bidirectional, its token 1 does not see token 0"),
        (1, "rerouted", "running as forward, its token 0 sees token 3"),
        (0, "backward", "running as forward, its token 0 sees token 1"),
        (0, "nosink-forward", "running as forward, its token 1 does not see token 0"),
    ],
)
def test_the_layer_is_named(monkeypatch: pytest.MonkeyPatch, layer: int, kind: str, message: str) -> None:
    st_reba.build("mini", "nosink", **OPTIONS)
    disobey(monkeypatch, layer, kind)
    with pytest.raises(ValueError, match=f"NoSink.*: layer {layer} .LlamaAttention. does not obey it: {message}"):
        st_reba.build("mini", "nosink", **OPTIONS)
    st_reba.build("mini", "nosink", check=False, **OPTIONS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "forward"])
def test_a_kind_that_shows_what_another_should(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A fast path that computes something else than its kind's rule is found, whatever the kind."""
    stages = [st_reba.LayerPlan(layers={kind: [2]})]
    st_reba.build("mini", "echo", stages=stages)

    def fast(attention: Any, query: Any, key: Any, value: Any, m: int, causal: bool) -> Any:
        return KINDS["forward"].fast(attention, query, key, value, m, causal)  # type: ignore[misc]

    monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], fast=fast))
    with pytest.raises(ValueError, match=rf"layer 2 .LlamaAttention. does not obey it: running as {kind}, its token"):
        st_reba.build("mini", "echo", stages=stages)


@pytest.mark.parametrize("setting", ["inter-back", "extra-back", "extend-back"])
def test_a_pass_that_does_not_run(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    def nothing(planned: Any, run: Any, call: Any) -> Any:
        run.kinds.ran += sum(layer == call.index for layer, _ in planned.stack.second)
        return call.hidden

    monkeypatch.setattr(second.LayersTwice, "after_layer", nothing)
    message = "layer [45] ran as backward 0 times in place of [12]" if setting != "extra-back" else "cannot run it"
    with pytest.raises(ValueError, match=f"NoSink.*{message}"):
        st_reba.build("mini", "nosink", setting=setting, k=2)


@pytest.mark.parametrize("m", [0, 1, 5, 40])
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss", "gpt2"])
def test_windows_and_sinks(base: Base, name: str, m: int) -> None:
    """A window shorter than the check's text is no disobedience."""
    for setting in ("mask0-all", "mask0-for"):
        st_reba.build(base(name), "nosink", setting=setting, k=2, m=m)
    if m == 1:
        for setting in ("inplace-back", "extend-bidir"):
            st_reba.build(base(name), "nosink", setting=setting, k=2)


def test_layers_without_attention(tmp_path: Path) -> None:
    """In a hybrid the recurrent layers see what they see; the others can be converted."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    marks: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "vocab_size": 512}
    kinds = ["conv", "full_attention", "conv"]
    config = AutoConfig.for_model("lfm2", num_hidden_layers=3, layer_types=kinds, **sizes, **marks)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    TOKENIZERS["bos"]().save_pretrained(tmp_path)
    st_reba.build(tmp_path, "echo", stages=[st_reba.LayerPlan(layers={"bidirectional": [1]})])
    with pytest.raises(ValueError, match="layer 2 ran as bidirectional 0 times in place of 1.*no attention"):
        st_reba.build(tmp_path, "echo", stages=[st_reba.LayerPlan(layers={"bidirectional": [1, 2]})])


def test_a_backbone_that_counts_its_texts(tmp_path: Path) -> None:
    """GPT-BigCode shapes its output by the number of texts that entered: two stacks cannot go through its norm."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 512}
    config = AutoConfig.for_model("gpt_bigcode", **sizes, bos_token_id=None, eos_token_id=None)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    TOKENIZERS["bos"]().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="GPTBigCodeModel cannot run it.*variant='published'"):
        st_reba.build(tmp_path, "nosink", setting="extra-back", k=1)
    st_reba.build(tmp_path, "nosink", setting="extra-back", k=1, variant="published")


def test_half_precision(tmp_path: Path) -> None:
    save("llama", tmp_path, "bos")
    for dtype in ("bfloat16", "float16"):
        st_reba.build(tmp_path, "nosink", setting="mask0-all", k=1, dtype=dtype)
        st_reba.build(tmp_path, "reba", dtype=dtype)


def test_capturing_only_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backbone whose captured attention is another, or that looks both ways, is refused."""
    from st_reba.modules import capture

    st_reba.build("mini")
    real = capture.attention_with_totals

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        found = real(*arguments, **keywords)
        return None if found is None else (found[0] * 1.1, found[1])

    with monkeypatch.context() as patch:
        patch.setattr(capture, "attention_with_totals", wrong)
        with pytest.raises(ValueError, match="LlamaModel: hidden states change by .*% when attention is captured"):
            st_reba.build("mini")

    def ahead(scores: Any, *arguments: Any) -> Any:
        return real(replace(scores, causal=False), *arguments)

    monkeypatch.setattr(capture, "attention_with_totals", ahead)
    with pytest.raises(ValueError, match="LlamaModel looks both ways .its last token changes what stands before"):
        st_reba.build("mini")
