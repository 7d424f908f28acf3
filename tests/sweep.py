"""Every method on one model type, compared with transformers' own eager attention of the same weights."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
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
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from st_reba.modules.mask_check import check_masks
from st_reba.modules.shared_prefix import STAGE_COST

METHODS = ("reba", "echo", "nosink")
# One token, a few, and more than every window holds; the batch of all three is padded.
TEXTS = (ORACLE_TEXTS[0], "The bank is steep.", ORACLE_TEXTS[4])

# Several questions of a text, behind a prefix that is longer than a window.
QUESTIONS = [
    'The text, of a few words, is: "{text}" In one word: "',
    'The text, of a few words, is: "{text}" Its mood: "',
]

# Why a method is refused: what its error says.
REFUSALS = {
    "calls no attention interface": "does not call transformers' attention interface",
    "shows no softmax attention": "showed theirs|masks were not used",
    "looks both ways": "looks both ways", "is an encoder-decoder": "is an encoder-decoder",
    "attends to more keys than tokens": "attends to more keys than tokens|mask of shape .* cannot be changed",
    "selects keys in a way of its own": "passes an unknown|chooses? (its|their) keys by an indexer",
    "is no single stack of layers": "no single stack of layers", "sees padding": "when a text is padded",
    "cannot run with a mask of another shape": "cannot run it: ",
    "mixes tokens beside its attention": r"token \d+ sees token",
    "adds position biases to its mask": "adds position biases to its mask",
    "shares its attention between layers": "says layer_idx=",
    "runs its layers more than once": r"ran as \S+ \d+ times, not",
}  # fmt: skip
# Types whose reported attention is not what the values are weighed by: the oracle weighs the identity instead.
UNREPORTED_SINKS = ("granite_swa", "granitemoe_swa")
# Types for which the oracle runs in float32: the first two make float32 tensors on the way, and early releases compute
# the experts of the others in two ways that disagree, of which float64 has but one.
FLOAT32_ONLY = ("inkling2_text", "inkling2_loop_text", "hunyuan_v1_moe", "phimoe")

Record = dict[str, str]


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: Sequence[int], **options: Any) -> Any:
    tokens = torch.tensor([list(ids)])
    # A mask that hides nothing: without one, some releases look ahead.
    plain = {"attention_mask": torch.ones_like(tokens), "use_cache": False}
    options |= {name: plain[name] for name in plain.keys() & inspect.signature(model.forward).parameters}
    with reference._double_by_default() if model.dtype == torch.float64 else nullcontext():
        return model(input_ids=tokens, return_dict=True, **options)


def eager_run(model: PreTrainedModel, ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """V [T, d] and the attention [H, T, T] of every layer that has one, as transformers reports them."""
    output = _forward(model, ids, output_attentions=True)
    maps = [each[0].double() for each in getattr(output, "attentions", None) or () if isinstance(each, Tensor)]
    return output.last_hidden_state[0].double(), [each for each in maps if each.shape[1:] == (len(ids), len(ids))]


def masked_run(
    model: PreTrainedModel, ids: Sequence[int], kinds: dict[int, str], m: int = 0
) -> tuple[Tensor, list[tuple[int | None, Tensor]]]:
    """V [T, d] of a model some of whose layers run as another kind, and what ran: numbers of layers and attention."""
    ran: list[tuple[int | None, Tensor]] = []

    def attend(
        eager: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
    ) -> Any:
        """An architecture's own eager attention, under a mask made by hand from its own mask and from a kind."""
        length, index = query.shape[2], getattr(module, "layer_idx", None)
        sees = torch.ones(length, length, dtype=torch.bool).tril()
        if attention_mask is not None:
            # Some architectures leave room for one more key than there is.
            sees = attention_mask[0, 0, :, : key.shape[2]] > torch.finfo(attention_mask.dtype).min / 2
        if index in kinds:
            both_ways = not kinds[index].endswith("forward")
            sees = (sees | sees.T if both_ways else sees) & visible(kinds[index], length, m)
            attention_mask = torch.zeros(1, 1, length, length, dtype=query.dtype).masked_fill(~sees, -math.inf)
        run = partial(eager, module, query, key, attention_mask=attention_mask, **options)
        with pytest.MonkeyPatch.context() as patch:
            # GPT-2 of early releases has a causal mask of its own, beside the one it is given.
            if module._buffers.get("bias") is not None:
                patch.setitem(module._buffers, "bias", torch.ones_like(module.bias))
            output, weights = run(value)
            identity, _ = run(torch.eye(key.shape[2], dtype=value.dtype).expand(*value.shape[:2], -1, -1))
        ran.append((index, identity[0].transpose(0, 1).double()))
        assert not weights[0][:, ~sees].any(), f"layer {index} attends to what it should not see"
        return output, weights

    with pytest.MonkeyPatch.context() as patch:
        for code in {sys.modules[type(module).__module__] for module in model.modules()}:
            if hasattr(code, "eager_attention_forward"):
                patch.setattr(code, "eager_attention_forward", partial(attend, code.eager_attention_forward))
        output = _forward(model, ids)
    return output.last_hidden_state[0].double(), ran


@dataclass
class Outcome:
    """What became of one model type."""

    class_name: str
    how: str = "refused"  # or "none", or how attention is read: by the "interface" of transformers, by "hooks"
    shares: str = "no"  # whether rows share a prefix, which every method but ReBA and NoSink has then: "yes" or "no"
    methods: dict[str, str] = field(default_factory=dict)  # each "exact", or "refused: …", "inexact: …", "failed: …"
    unfit: list[str] = field(default_factory=list)  # premises of the comparison that do not hold

    def record(self) -> Record:
        return {"class": self.class_name, "how": self.how, "shares": self.shares, **self.methods}


class Sweep:
    """The tiny model of one type: as the oracle runs it, and as st_reba does."""

    def __init__(self, model_type: str, folder: Path, decoder: bool) -> None:
        self.model_type, self.path = model_type, str(folder)
        self.outcome = Outcome(type(families.save(model_type, folder, decoder=decoder)).__name__)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        eager = AutoModel.from_pretrained(self.path, attn_implementation="eager", dtype=torch.float32).eval()
        self.model = eager if model_type in FLOAT32_ONLY else reference.as_double(eager)

    def placed(self, copies: int) -> list[Layout]:
        return [reference.layout(self.tokenizer, text, [None] * copies) for text in TEXTS]

    def error(self, method: str) -> float:
        """The largest of a method's errors, relative to a vector's scale."""
        if method == "nosink":
            return self.nosink()
        errors = []
        for pooling in ("last", "mean"):
            model = build(self.path, method, pooling=pooling)
            for each, got in zip(self.placed(1 if method == "classical" else 2), encoded(model, TEXTS), strict=True):
                hidden, maps = eager_run(self.model, each.ids)
                if self.model_type in UNREPORTED_SINKS:
                    maps = [weights for _, weights in masked_run(self.model, each.ids, {})[1]]
                states = [hidden, reference.symmetrized_max(torch.stack(maps))] if method == "reba" else [hidden]
                errors.append(_error(got, getattr(reference, method)(*states, each, pooling)))
        if method == "reba":
            self.outcome.unfit += unfit(each, hidden, maps)
            config = model[0].model.config
            ways = (config._attn_implementation, config.get_text_config()._attn_implementation)
            self.outcome.how = "interface" if "st_reba" in ways else "hooks"
        return max(errors)

    def sharing(self) -> tuple[str, float]:
        """Whether rows share a prefix, and how far their states are from those of whole rows, relatively."""
        model: Any = build(self.path, "prompteol", template=QUESTIONS)
        if not model[0].can_share():
            return "no", 0.0
        features = model[0].preprocess(TEXTS)
        with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
            patch.setitem(STAGE_COST, "cpu", 1)
            shared = model[0].eval()(dict(features))["token_embeddings"]
            patch.setitem(STAGE_COST, "cpu", 10**9)
            whole = model[0](dict(features))["token_embeddings"]
        return "yes", _error(shared, whole.double())

    def nosink(self) -> float:
        placed = self.placed(1)
        try:
            plain = [eager_run(self.model, each.ids)[0] for each in placed]
            runs = [masked_run(self.model, each.ids, {}) for each in placed]
            same = all(_error(run[0], hidden) < 1e-9 for run, hidden in zip(runs, plain, strict=True))
            layers = sorted({int(index) for index, _ in runs[0][1] if index is not None}) if same else []
        except Exception:  # an encoder-decoder, for example
            layers = []
        if not layers or layers[0] < 0:
            # The oracle has no way in. What st_reba says to any setting:
            build(self.path, "nosink", setting="mask0-bidir", k=1)
            raise AssertionError("converts layers that the oracle cannot")
        *below, top = layers
        model: Any = build(self.path, "nosink", setting="mask0-bidir", k=[top])
        module, errors = model[0], []
        for m, kinds in (
            (1, {top: "nosink-bidirectional"}),
            (1, dict.fromkeys(layers, "bidirectional")),
            (2 if below else 1, {**dict.fromkeys(below, "nosink-forward"), top: "backward"}),
        ):
            module.layer_masks, module.m = [kinds.get(index, "forward") for index in range(module.depth)], m
            check_masks(module)
            moved = []
            for each, before, got in zip(placed, plain, encoded(model, TEXTS), strict=True):
                wanted = reference.classical(masked_run(self.model, each.ids, kinds, m)[0], each, "mean")
                errors.append(_error(got, wanted))
                moved.append(_error(reference.classical(before, each, "mean"), wanted))
            if max(moved) < 0.01:
                self.outcome.unfit.append(f"{kinds} hardly change a vector: {moved}")
        return max(errors)


def sweep(model_type: str, folder: Path, methods: Sequence[str] = METHODS, *, decoder: bool = True) -> Outcome:
    """Build methods on the tiny model of a type, and compare them with the oracle."""
    try:
        one = Sweep(model_type, folder, decoder)
    except families.NoModelError as error:
        reasons = dict.fromkeys(methods, f"no model: {error}")
        return Outcome(families.CAUSAL_LMS[model_type], "none", methods=reasons)
    found = one.outcome
    for method in methods:
        try:
            error = one.error(method)
            found.methods[method] = "exact" if error <= 1e-5 else f"inexact: {error:.0e}"
        except Exception as reason:  # whatever it is, it is what the table is to say
            found.methods[method] = _reason(reason)
    if found.methods.get("echo") == "exact":
        found.shares, error = one.sharing()
        if error > 5e-6:
            found.unfit.append(f"shared rows differ from whole rows by {error:.0e}")
    return found


def _error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the scale (largest entry) of the wanted vector."""
    return (got.double() - wanted).abs().max().item() / wanted.abs().max().item()


def _reason(error: Exception) -> str:
    refusals = REFUSALS.items() if isinstance(error, ValueError) else ()
    failed = f"failed: {type(error).__name__}: {error}"[:400]
    return next((f"refused: {reason}" for reason, says in refusals if re.search(says, str(error))), failed)


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
