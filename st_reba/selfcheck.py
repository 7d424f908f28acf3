"""Self-checks when a model is built: does every layer see what its plan says, and does capturing only observe?

A patch that silently does nothing is the commonest fault of converted decoders, so no mask is trusted: one position's
input to an attention module is changed at a time, to see which positions' outputs change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .modules.attention import switch_on
from .modules.capture import Capture, show
from .modules.decoder import DecoderTransformer
from .modules.kinds import kind_of
from .modules.plan import PlannedLayers
from .modules.repeat import RepeatTransformer
from .modules.stages import Bound, current

# Three tokens more than a plan hides tell all kinds apart; a plan that hides very many is checked on this many.
_BEYOND_SINKS = 3
_TOKENS = 16
# Larger than the input itself, so that a position which is seen at all is seen to change.
_SIZE = 8.0
_REMEDY = "check=False builds it nevertheless."


def check_plan(transformer: DecoderTransformer) -> None:
    """Run a few tokens through the backbone and compare what each layer sees with the layer plan.

    Raises:
        ValueError: A layer does not obey the plan, or does not run as often as it says; the layer is named.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, check=False)
        >>> check_plan(model[0])
    """
    planned = next((each for each in transformer.bound if isinstance(each, PlannedLayers)), None)
    if planned is None or planned.stack.is_plain:
        return
    stage, stack = planned.stage, planned.stack
    length = min(stack.m + _BEYOND_SINKS, _TOKENS)
    # One text in every row: each row but the first gets one position changed, one way or the other.
    ids = torch.arange(1, length + 1, device=transformer.model.device).expand(2 * length + 1, -1)
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "copy_ids": torch.ones_like(ids)}
    own: dict[nn.Module, Tensor] = {}
    ran: Counter[tuple[int, str]] = Counter()

    def measure(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        """What an attention module sees by itself."""
        hidden = arguments[0] if arguments else keywords.get("hidden_states")
        shown = output[0] if isinstance(output, tuple) else output
        # Whole layers, which know their index too, may pass on several streams at once, projections heads.
        if all(isinstance(each, Tensor) and each.ndim == 3 and each.shape[:2] == ids.shape for each in (hidden, shown)):
            own[module] = _seen(module, arguments, keywords)

    def compare(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        """Whether it sees what the plan says."""
        run = current()
        # Other modules, as whole layers and recurrent ones, know their index too.
        if run is None or run.kinds is None or run.kinds.last is None or run.kinds.last[0] is not module:
            return
        layer, kind = module.layer_idx, run.kinds.last[1]
        ran[layer, kind] += 1
        sees = _seen(module, arguments, keywords)
        wanted = kind_of(kind).sees(own[module][None, None], m=stack.m)[0, 0]
        if not torch.equal(sees, wanted):
            query, key = (sees != wanted).nonzero()[0].tolist()
            raise ValueError(
                f"{stage!r}: layer {layer} ({type(module).__name__}) does not obey it: running as {kind}, its token "
                f"{query} {'does not see' if wanted[query, key] else 'sees'} token {key}. This architecture cannot be "
                f"converted; {_REMEDY}"
            )

    transformer.eval()
    # By transformers' own attention first: that is what the plan converts.
    transformer.backbone.decoder.set_attn_implementation("eager")
    try:
        with _hooked(transformer, measure):
            transformer.model(**transformer.backbone.inputs(ids, features["attention_mask"]))
    finally:
        switch_on(transformer.model)
    try:
        with _hooked(transformer, compare):
            DecoderTransformer.forward(transformer, features, watch=[])
    except RuntimeError as error:
        raise ValueError(
            f"{stage!r}: {transformer.backbone.name} cannot run it: {error}. Use another plan, or variant='published'."
        ) from error
    for (layer, kind), times in Counter(call for call in stack.calls if call[1] != "forward").items():
        if ran[layer, kind] != times:
            raise ValueError(
                f"{stage!r}: layer {layer} ran as {kind} {ran[layer, kind]} times in place of {times}. It may hold no "
                f"attention, or not call transformers' attention interface: convert other layers; {_REMEDY}"
            )


@contextmanager
def _hooked(transformer: DecoderTransformer, hook: Any) -> Iterator[None]:
    """Call ``hook`` after every module that knows its layer's index: attention modules are among them."""
    modules = [module for module in transformer.model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        with torch.inference_mode():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _seen(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """What a module sees, by trial: [T, T], whether the output at a position (row) changes with the input at another.

    It was called with hidden states [2T + 1, T, d], the same text in every row.
    """
    hidden: Tensor = arguments[0] if arguments else keywords["hidden_states"]
    length = hidden.shape[1]
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(hidden.shape[-1], generator=generator).to(hidden) * hidden.float().std().to(hidden) * _SIZE
    changed = hidden[:1].expand_as(hidden).clone()
    for key in range(length):
        # A key's score rises in one of both rows: what is seen faintly as it stands is seen there.
        changed[1 + 2 * key, key] += change
        changed[2 + 2 * key, key] -= change
    if arguments:
        output = module.forward(changed, *arguments[1:], **keywords)
    else:
        output = module.forward(**{**keywords, "hidden_states": changed})
    values: Tensor = (output[0] if isinstance(output, tuple) else output).float()
    difference = (values[1:] - values[:1]).abs().amax(dim=-1).view(length, 2, length).amax(dim=1)
    tolerance = 1e-6 if hidden.dtype in (torch.float32, torch.float64) else 1e-3
    return (tolerance * values[:1].abs().max() < difference.T).cpu()


def hidden_states(transformer: RepeatTransformer, *, other_end: bool = False, watch: Sequence[Bound] = ()) -> Tensor:
    """Hidden states of a short text, [1, T, d] float32 on the CPU; ``other_end``: with another last token."""
    fields: dict[str, Any] = dict.fromkeys(transformer.fields(), "-")
    ids = transformer.content(["A short text, 一段短文。"])["input_ids"][0]
    # Cut here: a cut of this text is nobody's business, and must not use up the warning of the user's first long one.
    features = transformer.place([ids[: transformer.budget(**fields)]], transformer.frames(**fields)[0])
    if other_end:
        features["input_ids"][0, -1] = next(each for each in range(2) if each != int(features["input_ids"][0, -1]))
    device = transformer.model.device
    with torch.inference_mode():
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        hidden: Tensor = transformer.eval()(moved, watch=list(watch))["token_embeddings"]
    return hidden.float().cpu()


def check_capture(transformer: RepeatTransformer, plain: Tensor) -> None:
    """Make a backbone show its attention, and compare its hidden states with ``plain``, those before.

    Raises:
        ValueError: The attention that is captured differs from the model's own, or looks ahead where no plan says so.
    """
    if not plain.any():
        return  # Not finite, and zeros were asked for: there is nothing to compare.
    show(transformer.model)
    watch = [Capture("copy")]
    name = transformer.backbone.name
    captured = hidden_states(transformer, watch=watch)
    before, after = captured[:, :-1], hidden_states(transformer, other_end=True, watch=watch)[:, :-1]
    causal = transformer.stack is None and transformer.stage("prepend") is None
    if causal and not torch.allclose(after, before, atol=1e-3 * float(plain.abs().max()), rtol=0):
        raise ValueError(
            f"{name} looks both ways (its last token changes what stands before): use a causal decoder, or 'classical'."
        )
    if transformer.model.dtype in (torch.float32, torch.float64):
        difference, tolerance = float((captured - plain).abs().max() / plain.abs().max()), 1e-3
    else:
        # Rounding moves single numbers by a tenth where layers are many; a wrong attention turns the vectors.
        difference, tolerance = 1 - float(torch.cosine_similarity(captured.flatten(), plain.flatten(), dim=0)), 1e-2
    if not difference <= tolerance:
        raise ValueError(
            f"{name}: hidden states change by {difference:.1%} when attention is captured (tolerance {tolerance:.1%}). "
            "Use method='echo' or 'classical', or another version of transformers."
        )
