"""Checks when a model is built: capturing, padding and sharing change nothing; causality."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from .capture import Capture
from .layout import RowLayout, decoder_of, pad
from .questions import QuestionBatch
from .transformer import RepeatTransformer

logger = logging.getLogger(__name__)

# Number types of full precision; others round hidden states to two or three digits.
EXACT_DTYPES = (torch.float32, torch.float64)


def hidden_states(transformer: RepeatTransformer, *, other_end: bool = False, capture: Any = None) -> Tensor:
    """Hidden states of a short text, [1, T, d] float32 on the CPU; ``other_end``: with another last token."""
    fields: dict[str, Any] = dict.fromkeys(transformer.fields(), "-")
    ids = transformer.content(["A short text, 一段短文。"])["input_ids"][0][: transformer.budget(**fields)]
    features = pad([transformer.row_layouts(**fields)[0].build_row(ids)])
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
    if not getattr(transformer, "changes_masks", False):
        after = hidden_states(transformer, other_end=True, capture=capture)[:, :-1]
        if not torch.allclose(after, captured[:, :-1], atol=1e-3 * float(plain.abs().max()), rtol=0):
            raise ValueError(f"{name} looks both ways: ReBA needs a causal decoder. Use 'classical'.")
    difference = relative_difference(captured, plain, transformer.model.dtype)
    tolerance = 1e-3 if transformer.model.dtype in EXACT_DTYPES else 1e-2
    if not difference <= tolerance:
        raise ValueError(f"{name}: hidden states change by {difference:.1%} when attention is captured. Use 'echo'.")


def relative_difference(states: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """How far states are from what they should be; in 16 bits, by what their directions differ."""
    if dtype in EXACT_DTYPES:
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
    if difference > (1e-3 if transformer.model.dtype in EXACT_DTYPES else 0.3):
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
    frames = [RowLayout((prefix, None, (5, 6))), RowLayout((prefix, None, (7,)))]
    batch = pad([frame.build_row(text) for text in ([8, 9], [10, 11, 12]) for frame in frames])
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
    is_same = difference <= (1e-5 if transformer.model.dtype in EXACT_DTYPES else 1e-2)
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
