"""Check when a model is built: every layer sees what its mask says.

No mask is trusted: one position's input to an attention module is changed at a time, to see which
outputs change.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from .attention import as_booleans, install_attention
from .layers import ModuleCall, first_output
from .layout import decoder_of
from .masks import MASKS
from .nosink import LayerMasks, NoSinkTransformer, apply_mask
from .passes import current_pass
from .selfcheck import EXACT_DTYPES
from .transformer import RepeatTransformer

# Masks that differ only in longer texts are taken as equal: the check runs one row per change of
# a token.
_MAX_TOKENS = 16


def check_masks(transformer: NoSinkTransformer) -> None:
    """Run a few tokens; raise a ValueError that names a layer which disobeys its mask."""
    if not transformer.changes_masks:
        return
    for module in transformer.model.modules():
        if "indexer" in type(module).__name__.lower():
            raise ValueError(
                "setting: layers choose their keys by an indexer, so their masks cannot be changed."
            )
    probe = MaskProbe(transformer)
    probe.run()
    probe.check_runs()


def length_to_tell_masks_apart(m: int) -> int:
    """Tokens in which the declared masks differ from one another in a causal layer, and one more.

    Example:
        >>> length_to_tell_masks_apart(m=5) > 5
        True
    """
    length = 1
    distinct_count = _count_distinct_masks(_MAX_TOKENS, m)
    while _count_distinct_masks(length, m) < distinct_count:
        length += 1
    return min(length + 1, _MAX_TOKENS)


def _count_distinct_masks(length: int, m: int) -> int:
    everything = torch.ones(1, 1, length, length, dtype=torch.bool)
    patterns: set[str] = set()
    for mask_name in MASKS:
        mask = apply_mask(mask_name, everything.tril(), m=m)
        patterns.add(str(mask.tolist()))
    return len(patterns)


class MaskProbe:
    """Compares what the attention modules of a model see with what their masks say."""

    def __init__(self, transformer: NoSinkTransformer) -> None:
        self.transformer = transformer
        length = length_to_tell_masks_apart(transformer.m)
        token_ids = torch.arange(1, length + 1, device=transformer.model.device)
        # One text in every row: each row but the first gets one position changed, one way or the
        # other.
        self.token_ids = token_ids.expand(2 * length + 1, -1)
        # What a module sees by itself, [T, T].
        self.native_masks: dict[nn.Module, Tensor] = {}
        # How often each layer ran with each mask.
        self.run_counts: Counter[tuple[int, str]] = Counter()

    def run(self) -> None:
        """Run the tokens with transformers' own attention, then as the transformer runs them."""
        transformer = self.transformer.eval()
        decoder = decoder_of(transformer.model)
        ones = torch.ones_like(self.token_ids)
        with torch.inference_mode(), ExitStack() as hooks:
            for module in transformer.model.modules():
                if isinstance(getattr(module, "layer_idx", None), int):
                    hook = module.register_forward_hook(self.on_forward, with_kwargs=True)
                    hooks.enter_context(hook)
            decoder.set_attn_implementation("eager")
            transformer.model(input_ids=self.token_ids, attention_mask=ones)
            install_attention(transformer.model)
            features = {"input_ids": self.token_ids, "attention_mask": ones, "copy_ids": ones}
            try:
                RepeatTransformer.forward(transformer, features)
            except RuntimeError as error:
                raise ValueError(
                    f"setting: {type(decoder).__name__} cannot run it: {error}."
                ) from error

    def on_forward(
        self,
        module: nn.Module,
        arguments: tuple[object, ...],
        keywords: dict[str, object],
        module_output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Forward hook of every module that knows its layer: see what it sees."""
        module_call = ModuleCall(module, arguments, keywords)
        forward_pass = current_pass()
        if forward_pass is None:
            # Whole layers know their index too, and may pass on several streams at once.
            has_input = bool(arguments) or "hidden_states" in keywords
            output_states = first_output(module_output)
            if (
                has_input
                and self.is_stream(module_call.hidden_states)
                and self.is_stream(output_states)
            ):
                self.native_masks[module] = measure_visibility(module_call)
        elif (
            isinstance(forward_pass.masks, LayerMasks)
            and forward_pass.masks.last_attention is not None
        ):
            attention_module, mask_name = forward_pass.masks.last_attention
            if attention_module is module:
                self.check_module(module_call, mask_name, forward_pass.masks.native_mask)

    def is_stream(self, states: object) -> bool:
        """Whether these are hidden states of all rows."""
        if not isinstance(states, Tensor) or states.ndim != 3:
            return False
        return states.shape[:2] == self.token_ids.shape

    def check_module(
        self,
        module_call: ModuleCall,
        mask_name: str,
        added_mask: Tensor | None,
    ) -> None:
        """Compare what an attention module sees in our pass with its mask."""
        if mask_name != "forward" and has_position_biases(added_mask):
            raise ValueError(
                "setting: the model adds position biases to its masks, so these cannot be changed."
            )
        attention_module = module_call.module
        layer_index = int(attention_module.layer_idx)  # type: ignore[arg-type]
        self.run_counts[layer_index, mask_name] += 1
        native_mask = self.native_masks[attention_module][None, None]
        expected_mask = apply_mask(mask_name, native_mask, m=self.transformer.m)[0, 0]
        actual_mask = measure_visibility(module_call)
        if torch.equal(actual_mask, expected_mask):
            return
        query, key = (actual_mask != expected_mask).nonzero()[0].tolist()
        fault = "does not see" if expected_mask[query, key] else "sees"
        where = f"layer {layer_index} ({type(attention_module).__name__}), running as {mask_name}"
        remedy = "This model's masks cannot be changed."
        raise ValueError(f"setting: {where}: its token {query} {fault} token {key}. {remedy}")

    def check_runs(self) -> None:
        """Raise where a layer did not run with its mask as often as it should."""
        expected_counts = Counter(enumerate(self.transformer.layer_masks))
        expected_counts.update(self.transformer.second)
        for (layer_index, mask_name), expected_count in expected_counts.items():
            run_count = self.run_counts[layer_index, mask_name]
            # Some models run a layer several times by themselves.
            is_wrong = run_count == 0 or (
                bool(self.transformer.second) and run_count != expected_count
            )
            if mask_name != "forward" and is_wrong:
                run = f"layer {layer_index} ran as {mask_name} {run_count} times, not {expected_count}"
                raise ValueError(f"setting: {run}. Convert others.")


def has_position_biases(mask: Tensor | None) -> bool:
    """Whether a mask is added to the scores, with numbers other than 0 and those that hide."""
    if mask is None or mask.dtype == torch.bool:
        return False
    return bool(((mask != 0) & as_booleans(mask)).any())


def measure_visibility(module_call: ModuleCall) -> Tensor:
    """What a module sees, by trial: [T, T], whether a row's output depends on a column's input."""
    hidden_states = module_call.hidden_states
    length, width = hidden_states.shape[1:]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(width, generator=generator).to(hidden_states)
    input_scale = hidden_states.float().std().to(hidden_states)
    # Larger than the input itself, so that a position which is seen at all is seen to change.
    change = noise * input_scale * 8.0
    changed_states = hidden_states[:1].expand_as(hidden_states).clone()
    for key in range(length):
        # A key's score rises in one of the two rows, where even a faintly seen key shows.
        changed_states[1 + 2 * key, key] += change
        changed_states[2 + 2 * key, key] -= change
    output_states = module_call.repeat(changed_states).float()
    plain_output = output_states[:1]
    row_differences = (output_states[1:] - plain_output).abs().amax(dim=-1)
    key_differences = row_differences.view(length, 2, length).amax(dim=1)
    tolerance = 1e-6 if hidden_states.dtype in EXACT_DTYPES else 1e-3
    threshold = tolerance * plain_output.abs().max()
    return (threshold < key_differences.T).cpu()
