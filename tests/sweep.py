"""Every method on one model type, compared with transformers' own eager attention of the same weights."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import families
import pytest
import reference
import torch
from oracle import TEXTS as ORACLE_TEXTS
from pipelines import build, encoded
from reference import Layout
from reference_nosink import visible
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from st_reba.modules.selfcheck import check_masks

METHODS = ("reba", "echo", "nosink")
TOLERANCE = 1e-5
# One token, a few, and more than every window holds; the batch of all three is padded.
TEXTS = (ORACLE_TEXTS[0], "The bank is steep.", ORACLE_TEXTS[4])

# Why a method is refused, by what its error says.
REFUSALS: dict[str, str] = {
    r"does not call transformers' attention interface": "calls no attention interface",
    r"showed theirs|masks were not used": "shows no softmax attention",
    r"looks both ways": "looks both ways",
    r"is an encoder-decoder": "is an encoder-decoder",
    r"attends to more keys than tokens|mask of shape .* cannot be changed": "attends to more keys than tokens",
    r"passes an unknown": "selects keys in a way of its own",
    r"no single stack of layers": "is no single stack of layers",
    r"when a text is padded": "sees padding",
    r"chooses? (its|their) keys by an indexer": "selects keys in a way of its own",
    r"cannot run it: ": "cannot run with a mask of another shape",
    r"token \d+ sees token": "mixes tokens beside its attention",
    r"adds position biases to its mask": "adds position biases to its mask",
    r"says layer_idx=": "shares its attention between layers",
    r"ran as \S+ \d+ times, not": "runs its layers more than once",
}
# Types whose reported attention is not what the values are weighed by: the oracle weighs the identity instead.
UNREPORTED_SINKS = ("granite_swa", "granitemoe_swa")
# Types for which the oracle runs in float32: the first two make float32 tensors on the way, and early releases compute
# the experts of the others in two ways that disagree, of which float64 has but one.
FLOAT32_ONLY = ("inkling2_text", "inkling2_loop_text", "hunyuan_v1_moe", "phimoe")


# ---------------------------------------------------------------------------------------------------------------------
# The oracle


@dataclass
class _Pass:
    """What one run of the oracle replaces and observes: a layer's kind, and the attention of every layer, as it ran."""

    kinds: dict[int, str]
    m: int
    seen: list[tuple[int | None, Tensor]] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def attend(
        self,
        eager: Callable[..., tuple[Tensor, Tensor]],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """An architecture's own eager attention, under a mask made by hand from its own mask and from a kind."""
        length = query.shape[2]
        index = getattr(module, "layer_idx", None)
        if attention_mask is None:
            own = torch.ones(length, length, dtype=torch.bool).tril()
        else:
            # Some architectures leave room for one more key than there is.
            own = attention_mask[0, 0, :, : key.shape[2]] > torch.finfo(attention_mask.dtype).min / 2
        sees = own
        if index in self.kinds:
            kind = self.kinds[index]
            sees = (own if kind.endswith("forward") else own | own.T) & visible(kind, length, self.m)
            attention_mask = torch.zeros(1, 1, length, length, dtype=query.dtype).masked_fill(~sees, -math.inf)
        # GPT-2 of early releases has a causal mask of its own, beside the one it is given.
        causal = module._buffers.get("bias")
        if causal is not None:
            module._buffers["bias"] = torch.ones_like(causal)
        try:
            output, weights = eager(module, query, key, value, attention_mask=attention_mask, **kwargs)
            identity = torch.eye(key.shape[2], dtype=value.dtype).expand(*value.shape[:2], -1, -1)
            weighed, _ = eager(module, query, key, identity, attention_mask=attention_mask, **kwargs)
        finally:
            if causal is not None:
                module._buffers["bias"] = causal
        self.seen.append((index, sees))
        self.weights.append(weighed[0].transpose(0, 1).double())
        assert not weights[0][:, ~sees].any(), f"layer {index} attends to what it should not see"
        return output, weights


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: Sequence[int], **options: Any) -> Any:
    tokens = torch.tensor([list(ids)])
    # A mask that hides nothing: without one, some releases look ahead.
    options |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
    known = inspect.signature(model.forward).parameters
    options = {name: value for name, value in options.items() if name in known or name == "output_attentions"}
    with reference._double_by_default() if model.dtype == torch.float64 else nullcontext():
        return model(input_ids=tokens, return_dict=True, **options)


def eager_run(model: PreTrainedModel, ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """V [T, d] and the attention [H, T, T] of every layer that has one, as transformers reports them."""
    output = _forward(model, ids, output_attentions=True)
    shape = (len(ids), len(ids))
    maps = [each for each in (getattr(output, "attentions", None) or ()) if isinstance(each, Tensor)]
    return output.last_hidden_state[0].double(), [each[0].double() for each in maps if each.shape[2:] == shape]


def masked_run(model: PreTrainedModel, ids: Sequence[int], kinds: dict[int, str], m: int = 0) -> tuple[Tensor, _Pass]:
    """V [T, d] of a backbone some of whose layers run as another kind, and what its layers did."""
    state = _Pass(kinds, m)
    with pytest.MonkeyPatch.context() as patch:
        for name in {type(module).__module__ for module in model.modules()}:
            eager = getattr(sys.modules[name], "eager_attention_forward", None)
            if eager is not None:
                patch.setattr(sys.modules[name], "eager_attention_forward", functools.partial(state.attend, eager))
        output = _forward(model, ids)
    return output.last_hidden_state[0].double(), state


# ---------------------------------------------------------------------------------------------------------------------
# The comparison


# What is recorded of a type: its class, how its attention is read, and each method's status.
Record = dict[str, str]


@dataclass
class Outcome:
    """What became of one model type."""

    class_name: str
    # "interface": by transformers' attention interface; "hooks": by hooks on its eager attention; "refused"; "none".
    how: str = "refused"
    # Method → "exact", "inexact: …", "refused: …", "failed: …" or "no model: …".
    methods: dict[str, str] = field(default_factory=dict)
    # Premises of the comparison that do not hold.
    unfit: list[str] = field(default_factory=list)
    # Method → the largest error, relative to the vector's scale.
    errors: dict[str, float] = field(default_factory=dict)

    def record(self) -> Record:
        return {"class": self.class_name, "how": self.how, **self.methods}


class Sweep:
    """The tiny model of one type: as the oracle runs it, and as st_reba does."""

    def __init__(self, model_type: str, folder: Path, *, decoder: bool = True) -> None:
        self.model_type, self.path = model_type, str(folder)
        self.outcome = Outcome(type(families.save(model_type, folder, decoder=decoder)).__name__)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.eager = AutoModel.from_pretrained(self.path, attn_implementation="eager", dtype=torch.float32).eval()
        self.double = self.eager if model_type in FLOAT32_ONLY else reference.as_double(self.eager)

    def run(self) -> Outcome:
        """Compare every method."""
        for method in METHODS:
            try:
                error = getattr(self, method)()
                self.outcome.errors[method] = error
                status = "exact" if error <= TOLERANCE else f"inexact: {error:.0e}"
            except Exception as error:  # whatever it is, it is what the table is to say
                status = _reason(error)
            self.outcome.methods[method] = status
        return self.outcome

    def placed(self, copies: int) -> list[Layout]:
        return [reference.layout(self.tokenizer, text, [None] * copies) for text in TEXTS]

    def repeated(self) -> list[tuple[Layout, Tensor, list[Tensor]]]:
        """Every text twice: its layout, V and attention."""
        result = []
        for each in self.placed(2):
            hidden, maps = eager_run(self.double, each.ids)
            if self.model_type in UNREPORTED_SINKS:
                maps = masked_run(self.double, each.ids, {})[1].weights
            result.append((each, hidden, maps))
        return result

    def echo(self) -> float:
        errors = []
        for pooling in ("mean", "last"):
            vectors = encoded(build(self.path, "echo", pooling=pooling), TEXTS)
            for (each, hidden, _), got in zip(self.repeated(), vectors, strict=True):
                errors.append(_error(got, reference.echo(hidden, each, pooling)))
        return max(errors)

    def reba(self) -> float:
        errors = []
        models = [(pooling, build(self.path, "reba", pooling=pooling)) for pooling in ("mean", "last")]
        texts = self.repeated()
        self.outcome.unfit += unfit(*texts[-1])
        for pooling, model in models:
            for (each, hidden, maps), got in zip(texts, encoded(model, TEXTS), strict=True):
                fused = reference.symmetrized_max(torch.stack(maps))
                errors.append(_error(got, reference.reba(hidden, fused, each, pooling)))
        config = models[0][1][0].model.config
        by_interface = "st_reba" in (config._attn_implementation, config.get_text_config()._attn_implementation)
        self.outcome.how = "interface" if by_interface else "hooks"
        return max(errors)

    def nosink(self) -> float:
        placed = self.placed(1)
        plain = self.plain(placed)
        layers = sorted({int(index) for index, _ in plain[0][1].seen if index is not None}) if plain else []
        if not layers or layers[0] < 0:
            # What st_reba says to any setting.
            build(self.path, "nosink", setting="mask0-bidir", k=1)
            raise AssertionError("converts layers that the oracle cannot")
        *below, top = layers
        model = build(self.path, "nosink", setting="mask0-bidir", k=[top])
        module: Any = model[0]
        lower = dict.fromkeys(below, "nosink-forward")
        cases = (
            (1, {top: "nosink-bidirectional"}),
            (1, dict.fromkeys(layers, "bidirectional")),
            (2 if below else 1, {**lower, top: "backward"}),
        )
        errors = []
        for m, kinds in cases:
            module.layer_masks, module.m = [kinds.get(index, "forward") for index in range(module.depth)], m
            check_masks(module)
            moved = []
            for each, (before, _), got in zip(placed, plain, encoded(model, TEXTS), strict=True):
                hidden, _ = masked_run(self.double, each.ids, kinds, m)
                wanted = reference.classical(hidden, each, "mean")
                errors.append(_error(got, wanted))
                moved.append(_error(reference.classical(before, each, "mean"), wanted))
            if max(moved) < 0.01:
                self.outcome.unfit.append(f"{kinds} hardly change a vector: {moved}")
        return max(errors)

    def plain(self, placed: list[Layout]) -> list[tuple[Tensor, _Pass]]:
        """The oracle's runs without a plan, which change nothing; empty where the oracle has no way in."""
        try:
            runs = [masked_run(self.double, each.ids, {}) for each in placed]
            same = [_error(run[0], eager_run(self.double, each.ids)[0]) for run, each in zip(runs, placed, strict=True)]
        except Exception:  # an encoder-decoder, for example
            return []
        return runs if max(same) < 1e-9 else []


def sweep(model_type: str, folder: Path) -> Outcome:
    """Build every method on the tiny model of a type, and compare it with the oracle."""
    try:
        return Sweep(model_type, folder).run()
    except families.NoModelError as error:
        missing = dict.fromkeys(METHODS, f"no model: {error}")
        return Outcome(families.CAUSAL_LMS[model_type], how="none", methods=missing)


def encoder_error(model_type: str, folder: Path) -> float:
    """The error of an encoder's mean vectors, in a padded batch; 0 where it is refused."""
    one = Sweep(model_type, folder, decoder=False)
    try:
        model = build(one.path, "classical", pooling="mean")
    except ValueError as error:
        assert _reason(error).startswith("refused"), error
        return 0.0
    placed = zip(one.placed(1), encoded(model, TEXTS), strict=True)
    return max(
        _error(got, reference.classical(eager_run(one.double, each.ids)[0], each, "mean")) for each, got in placed
    )


def _error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the scale (largest entry) of the wanted vector."""
    return (got.double() - wanted).abs().max().item() / wanted.abs().max().item()


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError):
        for pattern, reason in REFUSALS.items():
            if re.search(pattern, str(error)):
                return f"refused: {reason}"
    return f"failed: {text[:400]}"


def unfit(layout: Layout, hidden: Tensor, maps: list[Tensor]) -> list[str]:
    """Which premises of a comparison do not hold: a wrong layer, head, row or factor must change the numbers."""
    matrices = torch.stack(maps).flatten(0, 1)
    fused = reference.symmetrized_max(torch.stack(maps))
    later = torch.ones(fused.shape, dtype=torch.bool).triu(1)
    below = fused[later.T]
    first, second = hidden[layout.positions(1)[:5]], hidden[layout.positions(2)[:5]]
    premises = {
        "attention looks ahead": not matrices[:, later].any(),
        "rows sum to more than 1": bool((matrices.sum(-1) < 1 + 1e-5).all()),
        "attention is flat": bool(below.max() > 0.25 and below.min() < 0.08 and below.std() > 0.5 * below.mean()),
        "the last row is flat": bool(fused[-1, -8:-1].max() > 1.2 * fused[-1, -8:-1].min()),
        "few heads decide": len(matrices.argmax(0)[~later].unique()) > len(matrices) // 2,
        "a token is the same in both copies": bool(((first - second).norm(dim=1) > 0.01 * first.norm(dim=1)).all()),
        "tokens are alike": bool(torch.nn.functional.cosine_similarity(hidden[0], hidden[-1], dim=0) < 0.97),
    }
    return [name for name, holds in premises.items() if not holds]
