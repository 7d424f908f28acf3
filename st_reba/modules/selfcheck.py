"""Checks when a model is built: capturing, padding and sharing change nothing; causality."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.util import batch_to_device
from torch import Tensor
from transformers import PreTrainedModel

from .capture import Capture
from .layout import RowLayout, causal_flags, pad
from .questions import QuestionBatch
from .transformer import RepeatTransformer

if TYPE_CHECKING:
    from .passes import PassHook

logger = logging.getLogger(__name__)

EXACT_DTYPES = (torch.float32, torch.float64)


def is_exact(model: PreTrainedModel) -> bool:
    """Whether a model computes in full precision; else hidden states have two or three digits."""
    return model.dtype in EXACT_DTYPES


def hidden_states(
    transformer: RepeatTransformer,
    *,
    other_end: bool = False,
    capture: Capture | None = None,
) -> Tensor:
    """Hidden states of a short text, [1, T, d] float32 on the CPU; ``other_end``: with another last token."""
    fields: dict[str, Any] = dict.fromkeys(transformer.fields(), "-")
    budget = transformer.budget(**fields)
    token_ids = transformer.tokenize_content(["A short text, 一段短文。"])["input_ids"][0][:budget]
    layout = transformer.row_layouts(**fields)[0]
    features = pad([layout.build_row(token_ids)])
    if other_end:
        last_token = int(features["input_ids"][0, -1])
        features["input_ids"][0, -1] = int(last_token == 0)
    features = batch_to_device(features, transformer.model.device)
    with torch.inference_mode():
        states: Tensor = transformer.eval()(features, capture=capture)["token_embeddings"]
    return states.float().cpu()


def check_capture(transformer: RepeatTransformer, plain_states: Tensor) -> None:
    """Raise if capturing changes hidden states, or if the model looks ahead although no mask lets it."""
    model_name = type(transformer.model).__name__
    capture = Capture("copy")
    captured_states = hidden_states(transformer, capture=capture)
    if not transformer.changes_masks:
        states_before_end = hidden_states(transformer, other_end=True, capture=capture)[:, :-1]
        tolerance = 1e-3 * float(plain_states.abs().max())
        if not torch.allclose(states_before_end, captured_states[:, :-1], atol=tolerance, rtol=0):
            raise ValueError(
                f"{model_name} looks both ways: ReBA needs a causal decoder. Use method 'classical'."
            )
    difference = relative_difference(captured_states, plain_states, transformer.model.dtype)
    if not difference <= (1e-3 if is_exact(transformer.model) else 1e-2):
        problem = f"hidden states change by {difference:.1%} when attention is captured"
        raise ValueError(f"{model_name}: {problem}. Use 'echo'.")


def relative_difference(states: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """How far states are from what they should be; in 16 bits, how far directions differ."""
    if dtype in EXACT_DTYPES:
        return float((states - expected).abs().max() / expected.abs().max())
    # Rounding moves single numbers by a tenth where layers are many; another attention turns the
    # vectors.
    return 1 - float(
        torch.cosine_similarity(states.flatten().float(), expected.flatten().float(), dim=0)
    )


def check_padding(transformer: RepeatTransformer, base_name: str) -> None:
    """Raise unless a text's hidden states are the same alone and padded."""
    if transformer.causal:  # it never sees the padding after a text
        return
    token_ids = torch.arange(1, 7, device=transformer.model.device)[None]
    alone = states_of_text(transformer, token_ids[:, :4])
    padded = states_of_text(transformer, token_ids)
    difference = float((alone - padded).abs().max() / alone.abs().max())
    if difference > (1e-3 if is_exact(transformer.model) else 0.3):
        problem = f"hidden states change by {difference:.0%} when a text is padded"
        raise ValueError(f"base={base_name!r}: {problem}. Use another.")


def states_of_text(transformer: RepeatTransformer, token_ids: Tensor) -> Tensor:
    """Hidden states of the first four tokens, [4, d]; the others are padding."""
    mask = (torch.arange(token_ids.shape[1], device=token_ids.device) < 4).long()[None]
    features = {"input_ids": token_ids, "attention_mask": mask, "copy_ids": mask}
    with torch.inference_mode():
        output = RepeatTransformer.forward(transformer.eval(), features)
    states: Tensor = output["token_embeddings"][0, :4].float()
    return states


def try_sharing_prefix(transformer: RepeatTransformer) -> bool:
    """Whether rows that share a prefix get whole rows' states; tried on two questions of two texts.

    This is tried, not looked up: a model that keeps more than keys and values, or that derives
    positions from the tokens it sees, fails the trial.
    """
    transformer.shares_prefix = True  # for the trial
    if not transformer.eval().can_share():
        return False
    # One of these may be the padding id: models that skip it when counting positions fail here.
    prefix = (1, 2, 3, 4)
    questions = [RowLayout((prefix, None, (5, 6))), RowLayout((prefix, None, (7,)))]
    rows = [question.build_row(text) for text in ([8, 9], [10, 11, 12]) for question in questions]
    batch = batch_to_device(pad(rows), transformer.model.device)
    hooks: list[PassHook] = [] if transformer.reader is None else [transformer.reader]
    staged_batch = QuestionBatch(transformer, batch, hooks)
    staged_batch.stage_cost = 1
    model_name = type(transformer.model).__name__
    with torch.inference_mode():
        whole_rows = transformer.run_pass(batch, hooks)
        try:
            shared_rows = staged_batch.run()
        except Exception as error:  # whatever a model says to a cache that it does not know
            logger.info(
                "%s: prompts run with every text, as layers keep other states: %s",
                model_name,
                error,
            )
            return False
    if shared_rows is None:
        return False
    real_tokens = batch["attention_mask"].bool().to(whole_rows.device)
    difference = relative_difference(
        shared_rows[real_tokens], whole_rows[real_tokens], transformer.model.dtype
    )
    is_same = difference <= (1e-5 if is_exact(transformer.model) else 1e-2)
    if not is_same:
        logger.info(
            "%s: prompts run with every text, as sharing changes states by %.0e",
            model_name,
            difference,
        )
    return is_same


def is_causal(model: PreTrainedModel) -> bool:
    """Whether no hidden state depends on a later token; tried on two texts that differ in their last token."""
    flags = causal_flags(model)
    if not all(flags) or getattr(model.config.get_text_config(), "is_causal", True) is False:
        return False
    if flags:
        return True
    states = run_ids(model, [[1, 2, 3, 4], [1, 2, 3, 0]])
    tolerance = 1e-2 * float(states.abs().max())
    return bool(torch.allclose(states[0, :-1], states[1, :-1], atol=tolerance, rtol=0))


def run_ids(model: PreTrainedModel, token_ids: list[list[int]]) -> Tensor:
    """Hidden states of rows of token ids, [B, T, d] float32."""
    input_ids = torch.tensor(token_ids, device=model.device)
    with torch.inference_mode():
        model.eval()  # type: ignore[no-untyped-call]
        output = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
    states: Tensor = output[0]
    return states.float()
