"""NoSinkTransformer: replaces the attention masks of selected layers.

Every mask follows from the layer's own, which transformers made and which holds its window, by
mirroring or by hiding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn

from .attention import as_booleans, install_attention
from .extensions import extensions
from .layout import (
    MAX_REPEATS,
    Features,
    check_token_ids,
    published,
    spans_of,
    tokenizer_lock,
)
from .masks import MASKS, AttentionView
from .passes import ForwardPass, LayerMask
from .transformer import RepeatTransformer

if TYPE_CHECKING:
    from .capture import Capture
    from .passes import PassHook


class LayerMasks:
    """The masks of one forward pass of a NoSinkTransformer; a hook of that pass."""

    def __init__(self, transformer: RepeatTransformer) -> None:
        self.layer_masks = transformer.layer_masks
        self.second, self.m = transformer.second, transformer.m
        # The mask of a layer's second run, while it lasts.
        self.rerun_mask: str | None = None
        # For checks: the attention module that ran last with its mask's name, and its native mask.
        self.last_attention: tuple[nn.Module, str] | None = None
        self.native_mask: Tensor | None = None

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Let attention ask for the masks."""
        self.real_tokens, self.is_padded = forward_pass.real_tokens, forward_pass.is_padded
        forward_pass.masks = self

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Refuse a pass in which no attention asked for a mask."""
        if self.last_attention is None:
            raise ValueError(
                "The masks were not used: the attention implementation was changed. Build the model anew."
            )
        return hidden_states

    def name_of_mask(self, module: nn.Module) -> str:
        """Name of the mask of the running attention module, whose ``layer_idx`` gives its layer."""
        layer_index = getattr(module, "layer_idx", None)
        if self.rerun_mask is not None:
            return self.rerun_mask
        if not isinstance(layer_index, int) or not 0 <= layer_index < len(self.layer_masks):
            raise ValueError(
                f"{type(module).__name__} says layer_idx={layer_index!r}, so its mask cannot be changed."
            )
        return self.layer_masks[layer_index]

    def mask_for_layer(
        self,
        module: nn.Module,
        native_mask: Tensor | None,
        is_causal: bool,
    ) -> LayerMask:
        """Mask of the running attention module; no ``native_mask``: it sees all, or is causal."""
        mask_name = self.name_of_mask(module)
        self.last_attention, self.native_mask = (module, mask_name), native_mask
        looks_ahead = not (is_causal and MASKS[mask_name].is_causal)
        if mask_name == "forward":
            return LayerMask(native_mask, is_causal, looks_ahead)
        if mask_name == "bidirectional" and native_mask is None and not self.is_padded:
            return LayerMask(None, False, True)
        real_tokens = self.real_tokens if self.is_padded else None
        mask = apply_mask(mask_name, self.boolean_mask(native_mask, is_causal), real_tokens, self.m)
        return LayerMask(mask, False, looks_ahead)

    def boolean_mask(self, native_mask: Tensor | None, is_causal: bool) -> Tensor:
        """A layer's native mask, [B or 1, 1, T, T] bool."""
        length = self.real_tokens.shape[1]
        if native_mask is None:
            shape = (1, 1, length, length)
            everything = torch.ones(shape, dtype=torch.bool, device=self.real_tokens.device)
            return everything.tril() if is_causal else everything
        if native_mask.shape[-2:] != (length, length):
            raise ValueError(
                f"A layer's mask of shape {tuple(native_mask.shape)} for {length} tokens cannot be changed."
            )
        return as_booleans(native_mask)


def apply_mask(
    mask_name: str,
    native_mask: Tensor,
    real_tokens: Tensor | None = None,
    m: int = 1,
) -> Tensor:
    """What a layer sees, [B or 1, 1, T, T] bool.

    Args:
        mask_name: One of ``MASKS``.
        native_mask: [B or 1, 1, T, T] bool, what it sees by itself: row: query, column: key.
        real_tokens: [B, T] bool, False at padding, which follows every text; None: there is none.
        m: Number of sink tokens.

    Example:
        >>> native_mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
        >>> apply_mask("nosink-bidirectional", native_mask)[0, 0].int().tolist()
        [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    """
    positions = torch.arange(native_mask.shape[-1], device=native_mask.device)
    last_position = positions[-1:] if real_tokens is None else real_tokens.sum(dim=1) - 1
    sink_for_others = (positions < m) & (positions[:, None] >= m)
    last_token = positions == last_position[:, None, None, None]
    view = AttentionView(native_mask, positions, sink_for_others, last_token)
    visible_tokens = MASKS[mask_name].visible_tokens(view)
    if real_tokens is None:
        return visible_tokens
    real_keys = real_tokens.to(native_mask.device)[:, None, None, :]
    # Each token sees itself, so that no row, not even of padding, is empty: that would give NaN.
    is_own = positions[:, None] == positions
    return (visible_tokens & real_keys) | is_own


@published
class NoSinkTransformer(RepeatTransformer):
    """RepeatTransformer whose layers see what their masks say.

    Args:
        layer_masks: A name of ``MASKS`` for each layer, from the bottom; see
            ``st_reba.modules.settings``.
        second: Layers that run a second time, each with its mask, in order.
        architecture: How the second runs join: ``"inter"``, ``"extra"``, ``"extend"``;
            ``"inplace"``: there are none.
        m: Number of sink tokens that nosink masks hide.
        implementation: Of inter and extra: the paper's, or that of its authors' code.
        own_input: Keep the input of a sentence-transformers model as it is: no copies, no template.
        **kwargs: As for RepeatTransformer; by default, a text stands once.

    Source:
        NoSink, section 3 and appendix D.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
        >>> model[0].layer_masks[-2:]
        ['nosink-bidirectional', 'nosink-bidirectional']
    """

    config_keys = [*RepeatTransformer.config_keys, "layer_masks", "second", "architecture", "m"]
    config_keys += ["implementation", "own_input"]

    def __init__(
        self,
        model_name_or_path: str | Transformer,
        *,
        layer_masks: Sequence[str],
        second: Sequence[tuple[int, str]] = (),
        architecture: str = "inplace",
        m: int = 1,
        implementation: str = "paper",
        own_input: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("repeats", 1)
        super().__init__(model_name_or_path, **kwargs)
        self.layer_masks = list(layer_masks)
        self.second = [(layer, mask_name) for layer, mask_name in second]
        self.architecture, self.implementation = architecture, implementation
        self.m, self.own_input = m, own_input
        unknown_names = self.mask_names() - MASKS.keys()
        if unknown_names:
            raise ValueError(
                f"layer_masks: {min(unknown_names)!r} is not known. Choose from {', '.join(MASKS)}."
            )
        are_in_range = all(0 <= layer < self.depth for layer, _ in self.second)
        if len(self.layer_masks) != self.depth or m < 0 or not are_in_range:
            raise ValueError(
                f"layer_masks={len(self.layer_masks)} names, second={second}, m={m}: name a mask for each of the "
                f"{self.depth} layers, repeat only these, and give an m of 0 or more."
            )
        max_runs = max(self.depth, MAX_REPEATS)
        if len(self.second) > max_runs:
            raise ValueError(
                f"second: {len(self.second)} second runs of layers, at most {max_runs}. Give fewer."
            )
        self.repeated_layers: PassHook | None = (
            extensions.repeated_layers(self) if self.second else None
        )
        self.changes_masks = bool(self.second) or set(self.layer_masks) != {"forward"}
        if self.changes_masks and not install_attention(self.model):
            raise ValueError(
                f"{type(self.model).__name__} does not call transformers' attention interface: no masks."
            )

    def mask_names(self) -> set[str]:
        """The masks of all runs of all layers."""
        return {*self.layer_masks, *(mask_name for _, mask_name in self.second)}

    def pass_hooks(self, capture: Capture | None) -> list[PassHook]:
        """The hooks of a pass: the masks first."""
        hooks = super().pass_hooks(capture)
        if self.repeated_layers is not None:
            hooks.insert(0, self.repeated_layers)
        if self.changes_masks:
            hooks.insert(0, LayerMasks(self))
        return hooks

    def preprocess(self, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Features:
        """Tokenize as RepeatTransformer does; with ``own_input`` as sentence-transformers does, padded on the right."""
        if not self.own_input:
            return super().preprocess(inputs, *args, **kwargs)
        self.text_tokenizer.padding_side = "right"
        with tokenizer_lock:
            features: Features = super(RepeatTransformer, self).preprocess(inputs, *args, **kwargs)
        check_token_ids(features["input_ids"], self.model)
        return {**features, "spans": spans_of(features), "copy_ids": features["attention_mask"]}
