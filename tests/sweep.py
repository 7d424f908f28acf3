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
from oracle import relative_error
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

# Several questions of a text, after a prefix that is longer than a window.
QUESTIONS = [
    'The text, of a few words, is: "{text}" In one word: "',
    'The text, of a few words, is: "{text}" Its mood: "',
]

# Why a method is refused, and what its error says.
REFUSALS = {
    "calls no attention interface": "does not call transformers' attention interface",
    "shows no softmax attention": "showed theirs|masks were not used",
    "looks both ways": "looks both ways",
    "is an encoder-decoder": "is an encoder-decoder",
    "attends to more keys than tokens": "attends to more keys than tokens|mask of shape .* cannot be changed",
    "selects keys in a way of its own": "which is not supported|chooses? (its|their) keys by an indexer",
    "is not a single stack of layers": "not a single stack of layers",
    "sees padding": "when a text is padded",
    "cannot run with a mask of another shape": "cannot run it: ",
    "mixes tokens beside its attention": r"token \d+ sees token",
    "adds position biases to its mask": "adds position biases to its mask",
    "shares its attention between layers": "says layer_idx=",
    "runs its layers more than once": r"ran as \S+ \d+ times, not",
}
# Types that report other attention weights than they apply. The oracle reads the applied ones by
# attending to an identity matrix.
UNREPORTED_SINKS = ("granite_swa", "granitemoe_swa")
# Types for which the oracle runs in float32. The first two create float32 tensors inside. Early
# releases have two implementations of the others' experts, which disagree, and only one of them
# takes float64.
FLOAT32_ONLY = (
    "inkling2_text",
    "inkling2_loop_text",
    "hunyuan_v1_moe",
    "phimoe",
)

Record = dict[str, str]


@torch.no_grad()
def _forward(model: PreTrainedModel, token_ids: Sequence[int], **options: Any) -> Any:
    input_ids = torch.tensor([list(token_ids)])
    accepted = inspect.signature(model.forward).parameters
    if "attention_mask" in accepted:
        # A mask that hides nothing: without one, some releases look ahead.
        options["attention_mask"] = torch.ones_like(input_ids)
    if "use_cache" in accepted:
        options["use_cache"] = False
    default_dtype = nullcontext()
    if model.dtype == torch.float64:
        default_dtype = reference.double_by_default()
    with default_dtype:
        return model(input_ids=input_ids, return_dict=True, **options)


def eager_run(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """V [T, d] and the attention [H, T, T] of every layer that has one, as transformers reports them."""
    output = _forward(model, token_ids, output_attentions=True)
    attention_maps: list[Tensor] = []
    for reported in getattr(output, "attentions", None) or ():
        # What some layers report is a state, or attention to other things than tokens.
        if isinstance(reported, Tensor) and reported[0].shape[1:] == (
            len(token_ids),
            len(token_ids),
        ):
            attention_maps.append(reported[0].double())
    return output.last_hidden_state[0].double(), attention_maps


@dataclass
class LayerRun:
    """What one layer of an eager run weighed its values by."""

    layer_index: int | None
    weights: Tensor  # [H, T, T]


@dataclass
class MaskedEager:
    """An architecture's own eager attention, under masks made by hand from its own masks and from kinds."""

    kinds: dict[int, str]  # of layers that run as another kind
    m: int
    layer_runs: list[LayerRun] = field(default_factory=list)

    def attend(
        self,
        eager: Any,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        layer_index = getattr(module, "layer_idx", None)
        visible_keys = self._native_mask(query, key, attention_mask)
        if layer_index in self.kinds:
            visible_keys = self._convert(visible_keys, self.kinds[layer_index])
            additive_mask = torch.zeros(1, 1, *visible_keys.shape, dtype=query.dtype)
            attention_mask = additive_mask.masked_fill(~visible_keys, -math.inf)
        run = partial(eager, module, query, key, attention_mask=attention_mask, **options)
        with pytest.MonkeyPatch.context() as patch:
            # GPT-2 of early releases has a causal mask of its own, besides the one it is given.
            if module._buffers.get("bias") is not None:
                patch.setitem(module._buffers, "bias", torch.ones_like(module.bias))
            output, weights = run(value)
            identity = torch.eye(key.shape[2], dtype=value.dtype)
            weights_as_output, _ = run(identity.expand(*value.shape[:2], -1, -1))
        self.layer_runs.append(LayerRun(layer_index, weights_as_output[0].transpose(0, 1).double()))
        hidden_weights = weights[0][:, ~visible_keys]
        assert not hidden_weights.any(), f"layer {layer_index} attends to what it should not see"
        return output, weights

    def _native_mask(self, query: Tensor, key: Tensor, attention_mask: Any) -> Tensor:
        length = query.shape[2]
        if attention_mask is None:
            return torch.ones(length, length, dtype=torch.bool).tril()
        # Some architectures leave room for one more key than there is.
        key_mask: Tensor = attention_mask[0, 0, :, : key.shape[2]]
        return key_mask > torch.finfo(attention_mask.dtype).min / 2

    def _convert(self, native_mask: Tensor, kind: str) -> Tensor:
        """A layer that looks ahead keeps its window, both ways."""
        if not kind.endswith("forward"):
            native_mask = native_mask | native_mask.T
        return native_mask & visible(kind, len(native_mask), self.m)


def masked_run(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    kinds: dict[int, str],
    m: int = 0,
) -> tuple[Tensor, list[LayerRun]]:
    """V [T, d] of a model some of whose layers run as another kind, and what ran."""
    masked_eager = MaskedEager(kinds, m)
    modelling_files = {sys.modules[type(module).__module__] for module in model.modules()}
    with pytest.MonkeyPatch.context() as patch:
        for code in modelling_files:
            if hasattr(code, "eager_attention_forward"):
                attend = partial(masked_eager.attend, code.eager_attention_forward)
                patch.setattr(code, "eager_attention_forward", attend)
        output = _forward(model, token_ids)
    return output.last_hidden_state[0].double(), masked_eager.layer_runs


@dataclass
class Outcome:
    """What became of one model type.

    Args:
        class_name: Class of the model.
        how: How attention is read: by the "interface" of transformers, or by "hooks"; "refused"
            where it is not, and "none" where there is no model.
        shares: "yes" where rows share a prefix, for every method but ReBA and NoSink; else "no".
        methods: For each method "exact", "refused: …", "inexact: …", "failed: …" or "no model: …".
        unfit: Premises of the comparison that do not hold.
    """

    class_name: str
    how: str = "refused"
    shares: str = "no"
    methods: dict[str, str] = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)

    def record(self) -> Record:
        return {
            "class": self.class_name,
            "how": self.how,
            "shares": self.shares,
            **self.methods,
        }


class Sweep:
    """The tiny model of one type: as the oracle runs it, and as st_reba does."""

    def __init__(self, model_type: str, folder: Path, decoder: bool) -> None:
        self.model_type = model_type
        self.path = str(folder)
        tiny_model = families.save(model_type, folder, decoder=decoder)
        self.outcome = Outcome(type(tiny_model).__name__)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        model = AutoModel.from_pretrained(
            self.path, attn_implementation="eager", dtype=torch.float32
        )
        self.oracle_model = model.eval()
        if model_type not in FLOAT32_ONLY:
            self.oracle_model = reference.as_double(self.oracle_model)

    def layouts(self, copies: int) -> list[Layout]:
        return [reference.lay_out(self.tokenizer, text, [None] * copies) for text in TEXTS]

    def largest_error(self, method: str) -> float:
        """The largest of a method's errors, relative to a vector's scale."""
        if method == "nosink":
            return self._largest_error_of_nosink()
        errors: list[float] = []
        layouts = self.layouts(1 if method == "classical" else 2)
        for pooling in ("last", "mean"):
            model = build(self.path, method, pooling=pooling)
            for text_layout, vector in zip(layouts, encoded(model, TEXTS), strict=True):
                expected = self._expected_vector(method, text_layout, pooling)
                errors.append(relative_error(vector, expected))
        if method == "reba":
            self.outcome.unfit += unfit(layouts[-1], *self._states_and_maps(layouts[-1]))
            self.outcome.how = how_attention_is_read(model)
        return max(errors)

    def _expected_vector(self, method: str, text_layout: Layout, pooling: Any) -> Tensor:
        hidden_states, attention_maps = self._states_and_maps(text_layout)
        if method == "reba":
            fused_attention = reference.symmetrized_max(torch.stack(attention_maps))
            return reference.reba(hidden_states, fused_attention, text_layout, pooling)
        return getattr(reference, method)(hidden_states, text_layout, pooling)

    def _states_and_maps(self, text_layout: Layout) -> tuple[Tensor, list[Tensor]]:
        hidden_states, attention_maps = eager_run(self.oracle_model, text_layout.ids)
        if self.model_type in UNREPORTED_SINKS:
            _, layer_runs = masked_run(self.oracle_model, text_layout.ids, {})
            attention_maps = [layer_run.weights for layer_run in layer_runs]
        return hidden_states, attention_maps

    def check_sharing(self) -> None:
        """Record whether rows share a prefix, with the states of whole rows."""
        model: Any = build(self.path, "prompteol", template=QUESTIONS)
        if not model[0].can_share():
            return
        self.outcome.shares = "yes"
        features = model[0].preprocess(TEXTS)
        with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
            patch.setitem(STAGE_COST, "cpu", 1)
            shared_rows = model[0].eval()(dict(features))["token_embeddings"]
            patch.setitem(STAGE_COST, "cpu", 10**9)
            whole_rows = model[0](dict(features))["token_embeddings"]
        error = relative_error(shared_rows, whole_rows)
        if error > 5e-6:
            self.outcome.unfit.append(f"shared rows differ from whole rows by {error:.0e}")

    def _largest_error_of_nosink(self) -> float:
        layouts = self.layouts(1)
        try:
            layers = self._convertible_layers(layouts)
        except Exception:  # an encoder-decoder, for example
            layers = []
        if not layers or layers[0] < 0:
            # The oracle cannot replace any mask, so st_reba must refuse every setting.
            build(self.path, "nosink", setting="mask0-bidir", k=1)
            raise AssertionError("st_reba converts layers whose masks the oracle cannot replace")
        *lower_layers, top_layer = layers
        model = build(self.path, "nosink", setting="mask0-bidir", k=[top_layer])
        lower_kinds = dict.fromkeys(lower_layers, "nosink-forward")
        return max(
            self._masked_error(model, layouts, {top_layer: "nosink-bidirectional"}),
            self._masked_error(model, layouts, dict.fromkeys(layers, "bidirectional")),
            self._masked_error(
                model,
                layouts,
                {**lower_kinds, top_layer: "backward"},
                m=2 if lower_layers else 1,
            ),
        )

    def _convertible_layers(self, layouts: list[Layout]) -> list[int]:
        """The layers whose masks the oracle can replace; none where its way in changes the numbers."""
        layer_indices: set[int] = set()
        for row, text_layout in enumerate(layouts):
            plain_states, _ = eager_run(self.oracle_model, text_layout.ids)
            masked_states, layer_runs = masked_run(self.oracle_model, text_layout.ids, {})
            if relative_error(masked_states, plain_states) >= 1e-9:
                return []
            if row == 0:
                layer_indices = {
                    run.layer_index for run in layer_runs if run.layer_index is not None
                }
        return sorted(map(int, layer_indices))

    def _masked_error(
        self,
        model: Any,
        layouts: list[Layout],
        kinds: dict[int, str],
        m: int = 1,
    ) -> float:
        """The largest error of a model whose layers run as these kinds."""
        transformer = model[0]
        transformer.layer_masks = [
            kinds.get(index, "forward") for index in range(transformer.depth)
        ]
        transformer.m = m
        check_masks(transformer)
        errors: list[float] = []
        changes: list[float] = []
        for text_layout, vector in zip(layouts, encoded(model, TEXTS), strict=True):
            plain_states, _ = eager_run(self.oracle_model, text_layout.ids)
            masked_states, _ = masked_run(self.oracle_model, text_layout.ids, kinds, m)
            plain_vector = reference.classical(plain_states, text_layout, "mean")
            expected = reference.classical(masked_states, text_layout, "mean")
            errors.append(relative_error(vector, expected))
            changes.append(relative_error(plain_vector, expected))
        if max(changes) < 0.01:
            self.outcome.unfit.append(f"{kinds} hardly change a vector: {changes}")
        return max(errors)


def sweep(
    model_type: str,
    folder: Path,
    methods: Sequence[str] = METHODS,
    *,
    decoder: bool = True,
) -> Outcome:
    """Build methods on the tiny model of a type, and compare them with the oracle."""
    try:
        type_sweep = Sweep(model_type, folder, decoder)
    except families.NoModelError as error:
        reasons = dict.fromkeys(methods, f"no model: {error}")
        return Outcome(families.CAUSAL_LMS[model_type], "none", methods=reasons)
    outcome = type_sweep.outcome
    for method in methods:
        try:
            error = type_sweep.largest_error(method)
            outcome.methods[method] = "exact" if error <= 1e-5 else f"inexact: {error:.0e}"
        except Exception as reason:  # whatever it is, it is what the table is to say
            outcome.methods[method] = describe_error(reason)
    if outcome.methods.get("echo") == "exact":
        type_sweep.check_sharing()
    return outcome


def describe_error(error: Exception) -> str:
    """Why a method is refused; anything but a known refusal is a failure."""
    if isinstance(error, ValueError):
        for reason, message in REFUSALS.items():
            if re.search(message, str(error)):
                return f"refused: {reason}"
    return f"failed: {type(error).__name__}: {error}"[:400]


def how_attention_is_read(model: Any) -> str:
    config = model[0].model.config
    if "st_reba" in (
        config._attn_implementation,
        config.get_text_config()._attn_implementation,
    ):
        return "interface"
    return "hooks"


def unfit(text_layout: Layout, hidden_states: Tensor, attention_maps: list[Tensor]) -> list[str]:
    """Which premises of a comparison do not hold: a wrong layer, head, row or factor must change the numbers."""
    matrices = torch.stack(attention_maps).flatten(0, 1)
    fused = reference.symmetrized_max(torch.stack(attention_maps))
    later = torch.ones(fused.shape, dtype=torch.bool).triu(1)
    earlier = fused[later.T]
    last_row = fused[-1, -8:-1]
    deciding_heads = matrices.argmax(0)[~later].unique()
    first_copy = hidden_states[text_layout.positions(1)[:5]]
    second_copy = hidden_states[text_layout.positions(2)[:5]]
    distances = (first_copy - second_copy).norm(dim=1)
    similarity = torch.nn.functional.cosine_similarity(hidden_states[0], hidden_states[-1], dim=0)
    is_varied = (
        earlier.max() > 0.25 and earlier.min() < 0.08 and earlier.std() > 0.5 * earlier.mean()
    )
    premises = {
        "attention looks ahead": not matrices[:, later].any(),
        "rows sum to more than 1": bool((matrices.sum(-1) < 1 + 1e-5).all()),
        "attention is flat": bool(is_varied),
        "the last row is flat": bool(last_row.max() > 1.2 * last_row.min()),
        "few heads decide": len(deciding_heads) > len(matrices) // 2,
        "a token is the same in both copies": bool(
            (distances > 0.01 * first_copy.norm(dim=1)).all()
        ),
        "tokens are alike": bool(similarity < 0.97),
    }
    return [name for name, holds in premises.items() if not holds]
