"""Checks when a model is built: every layer sees what its mask says; capturing and padding change nothing; causality.

No mask is trusted: one position's input to an attention module is changed at a time, to see which outputs change.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .attention import show_attention
from .capture import Capture
from .layout import Frame, decoder_of, pad
from .masks import visible
from .passes import current_pass
from .questions import QuestionBatch
from .transformer import RepeatTransformer

logger = logging.getLogger(__name__)

_EXACT = (torch.float32, torch.float64)


def check_masks(transformer: Any) -> None:
    """Run a few tokens through a NoSinkTransformer; raise a ValueError that names a layer which disobeys its mask."""
    if not transformer.changed:
        return
    if any("indexer" in type(module).__name__.lower() for module in transformer.model.modules()):
        raise ValueError("setting: layers choose their keys by an indexer, so their masks cannot be changed.")
    length = min(transformer.m + 3, 16)  # three tokens more than a mask hides tell all masks apart
    # One text in every row: each row but the first gets one position changed, one way or the other.
    ids = torch.arange(1, length + 1, device=transformer.model.device).expand(2 * length + 1, -1)
    ones = torch.ones_like(ids)
    own: dict[nn.Module, Tensor] = {}
    ran: Counter[tuple[int, str]] = Counter()

    def watch(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        state: Any = current_pass()
        if state is None:
            hidden = arguments[0] if arguments else keywords.get("hidden_states")
            shown = output[0] if isinstance(output, tuple) else output
            # Whole layers know their index too, and may pass on several streams at once.
            if all(isinstance(x, Tensor) and x.ndim == 3 and x.shape[:2] == ids.shape for x in (hidden, shown)):
                own[module] = _seen(module, arguments, keywords)
            return
        masks = state.masks
        if masks.last is None or masks.last[0] is not module:
            return
        layer, name, mask = module.layer_idx, masks.last[1], masks.own
        changed = mask is not None and name != "forward" and mask.dtype != torch.bool
        if changed and ((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any():
            raise ValueError("setting: the model adds position biases to its masks, so these cannot be changed.")
        ran[layer, name] += 1
        wanted = visible(name, own[module][None, None], m=transformer.m)[0, 0]
        if not torch.equal(sees := _seen(module, arguments, keywords), wanted):
            query, key = (sees != wanted).nonzero()[0].tolist()
            sight = f"token {query} {'does not see' if wanted[query, key] else 'sees'} token {key}"
            where = f"layer {layer} ({type(module).__name__}), running as {name}"
            raise ValueError(f"setting: {where}: its {sight}. This model's masks cannot be changed.")

    decoder = decoder_of(transformer.eval().model)
    with torch.inference_mode(), ExitStack() as hooks:
        for module in transformer.model.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                hooks.enter_context(module.register_forward_hook(watch, with_kwargs=True))
        # By transformers' own attention first: that is what the masks change.
        decoder.set_attn_implementation("eager")
        transformer.model(input_ids=ids, attention_mask=ones)
        show_attention(transformer.model)
        try:
            RepeatTransformer.forward(transformer, {"input_ids": ids, "attention_mask": ones, "copy_ids": ones})
        except RuntimeError as error:
            raise ValueError(f"setting: {type(decoder).__name__} cannot run it: {error}.") from error
    for (layer, name), times in Counter([*enumerate(transformer.layer_masks), *transformer.second]).items():
        # Some models run a layer several times by themselves.
        if name != "forward" and (not (had := ran[layer, name]) or (transformer.second and had != times)):
            raise ValueError(f"setting: layer {layer} ran as {name} {had} times, not {times}. Convert others.")


def _seen(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """What a module sees, by trial: [T, T], whether the output at a row changes with the input at another."""
    hidden: Tensor = arguments[0] if arguments else keywords["hidden_states"]
    length = hidden.shape[1]
    noise = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(0)).to(hidden)
    # Larger than the input itself, so that a position which is seen at all is seen to change.
    change = noise * hidden.float().std().to(hidden) * 8.0
    changed = hidden[:1].expand_as(hidden).clone()
    for key in range(length):
        # A key's score rises in one of both rows: what is seen faintly as it stands is seen there.
        changed[1 + 2 * key, key] += change
        changed[2 + 2 * key, key] -= change
    others = {name: value for name, value in keywords.items() if name != "hidden_states"}
    output = module.forward(changed, *arguments[1:], **others)
    values: Tensor = (output[0] if isinstance(output, tuple) else output).float()
    difference = (values[1:] - values[:1]).abs().amax(dim=-1).view(length, 2, length).amax(dim=1)
    tolerance = 1e-6 if hidden.dtype in _EXACT else 1e-3
    return (tolerance * values[:1].abs().max() < difference.T).cpu()


def hidden_states(transformer: RepeatTransformer, *, other_end: bool = False, capture: Any = None) -> Tensor:
    """Hidden states of a short text, [1, T, d] float32 on the CPU; ``other_end``: with another last token."""
    fields: dict[str, Any] = dict.fromkeys(transformer.fields(), "-")
    ids = transformer.content(["A short text, 一段短文。"])["input_ids"][0][: transformer.budget(**fields)]
    features = pad([transformer.frames(**fields)[0].place(ids)])
    if other_end:
        features["input_ids"][0, -1] = int(features["input_ids"][0, -1] == 0)
    device = transformer.model.device
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
    with torch.inference_mode():
        hidden: Tensor = transformer.eval()(moved, capture=capture)["token_embeddings"]
    return hidden.float().cpu()


def check_capture(transformer: RepeatTransformer, plain: Tensor) -> None:
    """Raise where hidden states are not ``plain``, those without capturing, or the model looks ahead unasked."""
    name, capture = type(transformer.model).__name__, Capture("copy")
    captured = hidden_states(transformer, capture=capture)
    if not getattr(transformer, "changed", False):
        after = hidden_states(transformer, other_end=True, capture=capture)[:, :-1]
        if not torch.allclose(after, captured[:, :-1], atol=1e-3 * float(plain.abs().max()), rtol=0):
            raise ValueError(f"{name} looks both ways: ReBA needs a causal decoder. Use 'classical'.")
    difference = relative_difference(captured, plain, transformer.model.dtype)
    tolerance = 1e-3 if transformer.model.dtype in _EXACT else 1e-2
    if not difference <= tolerance:
        raise ValueError(f"{name}: hidden states change by {difference:.1%} when attention is captured. Use 'echo'.")


def relative_difference(states: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """How far states are from what they should be; in 16 bits, by what their directions differ."""
    if dtype in _EXACT:
        return float((states - wanted).abs().max() / wanted.abs().max())
    # Rounding moves single numbers by a tenth where layers are many; another attention turns the vectors.
    return 1 - float(torch.cosine_similarity(states.flatten().float(), wanted.flatten().float(), dim=0))


def check_padding(transformer: Any, name: str) -> None:
    """Raise unless a text's hidden states are the same alone and padded."""
    if transformer.causal:  # it never sees the padding behind a text
        return
    ids = torch.arange(1, 7, device=transformer.model.device)[None]
    hidden = []
    with torch.inference_mode():
        for mask in (torch.ones_like(ids[:, :4]), (ids < 5).long()):
            features = {"input_ids": ids[:, : mask.shape[1]], "attention_mask": mask, "copy_ids": mask}
            hidden.append(RepeatTransformer.forward(transformer.eval(), features)["token_embeddings"][0, :4].float())
    difference = float((hidden[0] - hidden[1]).abs().max() / hidden[0].abs().max())
    if difference > (1e-3 if transformer.model.dtype in _EXACT else 0.3):
        raise ValueError(f"base={name!r}: hidden states change by {difference:.0%} when a text is padded. Use another.")


def can_share_prefix(transformer: RepeatTransformer) -> bool:
    """Whether rows that share what they begin with have the states of whole rows; tried on two questions of two texts.

    A model is not asked what its layers keep: one that keeps more than keys and values, or counts positions by the
    tokens that it sees, fails here.
    """
    transformer.shares_prefix = True  # for the trial
    if not transformer.eval().can_share():
        return False
    # Padding's own id is among these: models that count no position for it count otherwise behind a cache.
    prefix = (1, 2, 3, 4)
    frames = [Frame((prefix, None, (5, 6))), Frame((prefix, None, (7,)))]
    batch = pad([frame.place(text) for text in ([8, 9], [10, 11, 12]) for frame in frames])
    for name in ("input_ids", "attention_mask", "copy_ids"):
        batch[name] = batch[name].to(transformer.model.device)
    hooks = [] if transformer.reader is None else [transformer.reader]
    staged_batch = QuestionBatch(transformer, batch, hooks)
    staged_batch.stage_cost = 1
    model_name = type(transformer.model).__name__
    with torch.inference_mode():
        whole_rows = transformer.run_pass(batch, hooks, {})
        try:
            shared_rows = staged_batch.run()
        except Exception as error:  # whatever a model says to a cache that it does not know
            logger.info("%s: prompts run with every text, as layers keep other states: %s", model_name, error)
            return False
    if shared_rows is None:
        return False
    real = batch["attention_mask"].bool().to(whole_rows.device)
    difference = relative_difference(shared_rows[real], whole_rows[real], transformer.model.dtype)
    is_same = difference <= (1e-5 if transformer.model.dtype in _EXACT else 1e-2)
    if not is_same:
        logger.info("%s: prompts run with every text, as sharing changes states by %.0e", model_name, difference)
    return is_same


def is_causal(model: Any) -> bool:
    """Whether no hidden state depends on a later token; tried on two texts that differ in their last token."""
    marks = [bool(each.is_causal) for each in decoder_of(model).modules() if hasattr(each, "is_causal")]
    if not all(marks) or getattr(model.config.get_text_config(), "is_causal", True) is False:
        return False
    if marks:
        return True
    hidden = run_ids(model, [[1, 2, 3, 4], [1, 2, 3, 0]])
    return bool(torch.allclose(hidden[0, :-1], hidden[1, :-1], atol=1e-2 * float(hidden.abs().max()), rtol=0))


def run_ids(model: Any, ids: list[list[int]]) -> Tensor:
    """Hidden states of rows of token ids, [B, T, d] float32."""
    rows = torch.tensor(ids, device=model.device)
    with torch.inference_mode():
        hidden: Tensor = model.eval()(input_ids=rows, attention_mask=torch.ones_like(rows))[0]
    return hidden.float()
