"""The self-check finds the layer that does not see what its mask says, and only that."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import families
import pytest
import torch
import transformers
from marks import Base
from pipelines import build
from transformers import AutoModel, AutoTokenizer

from st_reba.modules import RepeatTransformer, capture, masks, second
from st_reba.modules.selfcheck import _seen

OPTIONS: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}


@pytest.mark.parametrize(
    ("layer", "other", "says"),
    [
        (5, "forward", "nosink-bidirectional: its token 0 does not see token 1"),
        (4, "bidirectional", "nosink-bidirectional: its token 1 sees token 0"),
        (3, "nosink-bidirectional", "bidirectional: its token 1 does not see token 0"),
        (1, "backward", "forward: its token 0 sees token 1"),
        (0, "nosink-forward", "forward: its token 1 does not see token 0"),
    ],
)
def test_the_layer_is_named(monkeypatch: pytest.MonkeyPatch, layer: int, other: str, says: str) -> None:
    """A layer that computes another mask than it says."""
    build("mini", "nosink", **OPTIONS)
    told = masks.LayerMasks.of

    def disobey(self: Any, module: Any, own: Any, causal: bool) -> Any:
        if module.layer_idx != layer:
            return told(self, module, own, causal)
        names, self.names = self.names, [other] * len(self.names)
        found = told(self, module, own, causal)
        self.names, self.last = names, (module, names[layer])
        return found

    monkeypatch.setattr(masks.LayerMasks, "of", disobey)
    with pytest.raises(ValueError, match=rf"layer {layer} \(LlamaAttention\), running as {says}"):
        build("mini", "nosink", **OPTIONS)
    build("mini", "nosink", check=False, **OPTIONS)


@pytest.mark.parametrize("setting", ["inter-back", "extra-back", "extend-back"])
def test_a_second_run_that_does_not_happen(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setattr(second.SecondRuns, "begin", lambda self, state: None)
    with pytest.raises(ValueError, match="setting: "):
        build("mini", "nosink", setting=setting, k=2)


def test_a_layer_that_asks_for_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    told = masks.LayerMasks.of

    def silent(self: Any, module: Any, *own: Any) -> Any:
        return (*own, False) if module.layer_idx == 5 else told(self, module, *own)

    monkeypatch.setattr(masks.LayerMasks, "of", silent)
    with pytest.raises(ValueError, match="layer 5 ran as nosink-forward 0 times"):
        build("mini", "nosink", setting="mask0-for", k=2)


def test_whole_layers_that_know_their_number(base: Base) -> None:
    model = AutoModel.from_pretrained(base("llama"))
    for number, layer in enumerate(model.layers):
        layer.layer_idx = number
    build(model, "nosink", setting="inter-back", k=2, tokenizer=AutoTokenizer.from_pretrained(base("llama")))


def test_a_base_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepeatTransformer, "forward", Mock(side_effect=RuntimeError("sizes")))
    with pytest.raises(ValueError, match="cannot run it: sizes"):
        build("mini", "nosink", setting="mask0-for", k=2)


def test_masks_that_hold_more_than_what_is_seen(tmp_path: Any) -> None:
    families.save("doge", tmp_path)
    # The first release looks ahead in it.
    says = "sees token 1" if transformers.__version__ == "5.0.0" else "position biases"
    with pytest.raises(ValueError, match=says):
        build(str(tmp_path), "nosink", setting="mask0-bidir", k=1)


@pytest.mark.parametrize("size", [0.1, 1.0, 1000.0])
def test_what_is_seen_faintly(size: float) -> None:
    """By a part of the largest number; rounding is not seen."""
    hidden = 10 * torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(1))
    below, above = torch.ones(4, 4).tril(-1).bool(), torch.ones(4, 4).triu(1).bool()
    weights = size * (torch.eye(4) + 5e-6 * below + 1e-9 * above)
    module = Mock(forward=lambda hidden_states: (weights @ hidden_states,))
    for given in (((hidden,), {}), ((), {"hidden_states": hidden})):
        assert torch.equal(_seen(module, *given), ~above)


@pytest.mark.parametrize(("name", "m"), [("mistral", 0), ("mistral", 5), ("gemma2", 1), ("gpt_oss", 40), ("gpt2", 1)])
def test_windows_and_sinks_are_no_disobedience(base: Base, name: str, m: int) -> None:
    for setting in ("mask0-all", "mask0-for"):
        build(base(name), "nosink", setting=setting, k=2, m=m)
    build(base(name), "nosink", setting="extend-bidir", k=2, dtype="bfloat16")


def test_capturing_only_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base whose captured attention is another than its own, or that looks both ways, is refused."""
    real = capture.BackwardAttention.attend
    with monkeypatch.context() as patch:
        patch.setattr(capture.BackwardAttention, "attend", lambda *given: real(*given) * 1.1)
        with pytest.raises(ValueError, match="hidden states change by"):
            build("mini", "reba")

    def ahead(self: Any, query: Any, key: Any, value: Any, scores: Any, looks_ahead: bool) -> Any:
        everything = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
        return real(self, query, key, value, scores._replace(causal=False, mask=everything), looks_ahead)

    monkeypatch.setattr(capture.BackwardAttention, "attend", ahead)
    with pytest.raises(ValueError, match="looks both ways"):
        build("mini", "reba")


def test_an_encoder(tmp_path: Any) -> None:
    """As a baseline it is embedded (tests/test_every_architecture.py says how exactly), and refused by ReBA."""
    families.save("bert", tmp_path, decoder=False)
    build(str(tmp_path), "classical", pooling="mean")
    with pytest.raises(ValueError, match="looks both ways"):
        build(str(tmp_path), "reba")
    for module in (model := build("mini", "reba")).modules():
        module.is_causal = False
    with pytest.raises(ValueError, match="looks both ways"):
        model.encode("Cats sleep.")


def test_a_base_that_is_not_told_of_padding(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    families.save("bert", tmp_path, decoder=False)
    real = RepeatTransformer.forward

    def blind(self: Any, features: dict[str, Any], **options: Any) -> Any:
        return real(self, {**features, "attention_mask": torch.ones_like(features["attention_mask"])}, **options)

    monkeypatch.setattr(RepeatTransformer, "forward", blind)
    with pytest.raises(ValueError, match="when a text is padded"):
        build(str(tmp_path), "classical", pooling="mean")
