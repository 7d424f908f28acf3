"""The self-check finds the layer that does not see what its mask says, and only that."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import families
import pytest
import torch
from marks import Base
from pipelines import build

from st_reba.modules import RepeatTransformer
from st_reba.modules.capture import BackwardAttention
from st_reba.modules.masks import LayerMasks
from st_reba.modules.second import SecondRuns
from st_reba.selfcheck import _seen

MASK, FORWARD, ATTEND = LayerMasks.of, RepeatTransformer.forward, BackwardAttention.attend


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

    def disobey(self: Any, module: Any, own: Any, causal: bool) -> Any:
        self.further = other if module.layer_idx == layer else None
        found = MASK(self, module, own, causal)
        self.further, self.last = None, (module, self.names[module.layer_idx])
        return found

    options: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}
    monkeypatch.setattr(LayerMasks, "of", disobey)
    with pytest.raises(ValueError, match=rf"layer {layer} \(LlamaAttention\), running as {says}"):
        build("mini", "nosink", **options)
    build("mini", "nosink", check=False, **options)


def silent(self: Any, module: Any, *own: Any) -> Any:
    """As if the topmost layer asked for no mask."""
    return (*own, False) if module.layer_idx == 5 else MASK(self, module, *own)


@pytest.mark.parametrize(
    ("of", "name", "new", "setting", "says"),
    [
        (LayerMasks, "of", silent, "mask0-for", "layer 5 ran as nosink-forward 0 times"),
        (SecondRuns, "begin", Mock(), "inter-back", "layer 4 ran as backward 0 times"),
        (RepeatTransformer, "forward", Mock(side_effect=RuntimeError("sizes")), "mask0-for", "cannot run it: sizes"),
    ],
)
def test_what_does_not_run(
    monkeypatch: pytest.MonkeyPatch, of: Any, name: str, new: Any, setting: str, says: str
) -> None:
    monkeypatch.setattr(of, name, new)
    with pytest.raises(ValueError, match=f"setting: .*{says}"):
        build("mini", "nosink", setting=setting, k=2)


@pytest.mark.parametrize("size", [0.1, 1.0, 1000.0])
def test_what_is_seen_faintly(size: float) -> None:
    """By a part of the largest number; rounding is not seen."""
    hidden = 10 * torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(1))
    below, above = torch.ones(4, 4).tril(-1).bool(), torch.ones(4, 4).triu(1).bool()
    weights = size * (torch.eye(4) + 5e-6 * below + 1e-9 * above)
    module = Mock(forward=lambda hidden_states: (weights @ hidden_states,))
    for given in (((hidden,), {}), ((), {"hidden_states": hidden})):
        assert torch.equal(_seen(module, *given), ~above)


# The whole layers of the last know their number too.
NAMES = [("mistral", 0), ("mistral", 5), ("gemma2", 1), ("gpt_oss", 40), ("gpt2", 1), ("gemma3_text", 1)]


@pytest.mark.parametrize(("name", "m"), NAMES)
def test_windows_and_sinks_are_no_disobedience(base: Base, name: str, m: int) -> None:
    for setting in ("mask0-all", "mask0-for"):
        build(base(name), "nosink", setting=setting, k=2, m=m)
    build(base(name), "nosink", setting="extend-bidir", k=2, dtype="bfloat16")


def ahead(self: Any, query: Any, key: Any, value: Any, scores: Any, looks_ahead: bool) -> Any:
    everything = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    return ATTEND(self, query, key, value, scores._replace(causal=False, mask=everything), looks_ahead)


@pytest.mark.parametrize(
    ("attend", "says"), [(lambda *given: ATTEND(*given) * 1.1, "hidden states change by"), (ahead, "looks both ways")]
)
def test_capturing_only_observes(monkeypatch: pytest.MonkeyPatch, attend: Any, says: str) -> None:
    """A base whose captured attention is another than its own, or that looks both ways, is refused."""
    monkeypatch.setattr(BackwardAttention, "attend", attend)
    with pytest.raises(ValueError, match=says):
        build("mini", "reba")


def test_an_encoder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a baseline it is embedded, if it is told of padding; ReBA refuses it, unchecked too."""
    families.save("bert", tmp_path, decoder=False)
    build(str(tmp_path), "classical", pooling="mean")
    with pytest.raises(ValueError, match="looks both ways"):
        build(str(tmp_path), "reba")
    with pytest.raises(ValueError, match="looks both ways"):
        build(str(tmp_path), "reba", check=False).encode("Cats sleep.")

    def blind(self: Any, features: dict[str, Any], **options: Any) -> Any:
        return FORWARD(self, {**features, "attention_mask": torch.ones_like(features["attention_mask"])}, **options)

    monkeypatch.setattr(RepeatTransformer, "forward", blind)
    with pytest.raises(ValueError, match="when a text is padded"):
        build(str(tmp_path), "classical", pooling="mean")
