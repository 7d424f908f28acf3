"""The methods in plain float64 loops: slow, obvious, and independent of the package they are compared with.

Positions and token indices count from 0 here; copies count from 1, as in the formulas (0 marks a
position that is not a content at all). The formulas' letters:

    V       hidden_states    [T, d]        one last hidden state v_t for each position t
    A       attention        [L, H, T, T]  a matrix for each layer and head, queries in rows
    A_new   fused_attention  [T, T]        maximum over layers and heads of the symmetrized A
    E       token vectors    [n, d]        one vector e_i for each content token i
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pooling = Literal["last", "mean"]
Span = Literal["last_copy", "repeats", "last_copy_and_end"]


# ---------------------------------------------------------------------------------------------------------------------
# Input


@dataclass(frozen=True)
class Layout:
    """One input sequence, and which of its positions hold which copy of the content.

    ``copy_of[t]`` is 0 where t holds a special or template token and c where it holds a content
    token of copy c. ``suffix`` counts the tokenizer's own special tokens at the very end (they
    follow any template words there).
    """

    ids: list[int]
    copy_of: list[int]
    n: int
    k: int
    suffix: int = 0

    def positions(self, copy_number: int) -> list[int]:
        """pos(c, 1) ... pos(c, n): the positions of copy c, in order."""
        return [t for t, copy_at_t in enumerate(self.copy_of) if copy_at_t == copy_number]


def lay_out(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    template_pieces: Sequence[str | None],
    *,
    limit: int | None = None,
) -> Layout:
    """Lay a text out: a str is literal, None is one copy of the text; each copy gets floor((M - s) / k) tokens."""
    prefix_ids, suffix_ids = tokens_around_a_text(tokenizer)
    # A special token's name inside a text is ordinary text: it must not become the special token.
    content = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    literals: list[list[int] | None] = []
    fixed_length = len(prefix_ids) + len(suffix_ids)
    for piece in template_pieces:
        if piece is None:
            literals.append(None)
            continue
        literal_ids = token_ids_of(tokenizer, piece)
        literals.append(literal_ids)
        fixed_length += len(literal_ids)
    copy_count = literals.count(None)
    if limit is not None:
        content = content[: (limit - fixed_length) // copy_count]

    token_ids = list(prefix_ids)
    copy_of = [0] * len(prefix_ids)
    copy_number = 0
    for literal in literals:
        if literal is None:
            copy_number += 1
            token_ids += content
            copy_of += [copy_number] * len(content)
        else:
            token_ids += literal
            copy_of += [0] * len(literal)
    return Layout(
        ids=token_ids + suffix_ids,
        copy_of=copy_of + [0] * len(suffix_ids),
        n=len(content),
        k=copy_count,
        suffix=len(suffix_ids),
    )


def token_ids_of(tokenizer: PreTrainedTokenizerBase, literal: str) -> list[int]:
    if not literal:
        return []
    return list(tokenizer(literal, add_special_tokens=False)["input_ids"])


def tokens_around_a_text(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before a text and after it."""
    letter_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    row_ids = tokenizer("a")["input_ids"]
    start = 0
    while row_ids[start : start + len(letter_ids)] != letter_ids:
        start += 1
        assert start < len(row_ids), "the tokenizer changes the text between its special tokens"
    return row_ids[:start], row_ids[start + len(letter_ids) :]


# ---------------------------------------------------------------------------------------------------------------------
# Model


def as_double(model: PreTrainedModel) -> PreTrainedModel:
    """A float64 copy, ready to run (the model itself where it is float64 already); the caller's model is untouched."""
    float_types = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    if model.training or float_types - {torch.float64}:
        model = copy.deepcopy(model).double().eval()
        # Grouped matrix products of experts know no float64; the plain loop over experts does.
        model.config._experts_implementation = "eager"
    return model


@contextlib.contextmanager
def double_by_default() -> Iterator[None]:
    """Tensors made on the way (masks, position biases) are float64 too; some models fail in float64 without it."""
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default_dtype)


@torch.no_grad()
def forward(model: PreTrainedModel, token_ids: Sequence[int], **options: bool) -> Any:
    """What a model without its head gives for one sequence, run alone and unpadded in float64.

    Many architectures take the softmax (and norms, and rotary angles) in float32 whatever the
    model's type is, so that agreement stops near 1e-7.
    """
    input_ids = torch.tensor([list(token_ids)])
    with double_by_default():
        return model.base_model(input_ids=input_ids, use_cache=False, return_dict=True, **options)


def final_norm_of(model: PreTrainedModel) -> nn.Module:
    """The norm after the last layer, of a model without its head."""
    if hasattr(model, "ln_f"):
        return model.ln_f
    return model.norm


def hidden_and_attention(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """V [T, d] and A [L, H, T, T] of one sequence; the model must be loaded as eager."""
    output = forward(as_double(model), token_ids, output_attentions=True)
    attention = torch.cat(output.attentions).double()
    assert attention.shape[2:] == (len(token_ids), len(token_ids))
    return output.last_hidden_state[0].double(), attention


@torch.no_grad()
def layer_states(
    model: PreTrainedModel, token_ids: Sequence[int], *, final_norm: bool = True
) -> Tensor:
    """[L + 1, T, d] of one sequence: 0 the embeddings, l what layer l gives; each after the final norm, or before."""
    decoder = as_double(model).base_model
    norm = final_norm_of(decoder)
    last_states: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda module, inputs: last_states.append(inputs[0]))
    normed_states = forward(decoder, token_ids, output_hidden_states=True).hidden_states
    hook.remove()
    # transformers gives the last layer's after the norm.
    states = torch.cat([*normed_states[:-1], *last_states])
    assert len(states) == decoder.config.num_hidden_layers + 1
    if not final_norm:
        return states
    with double_by_default():
        return norm(states)


def mean_of_layers(states: Tensor, first_layer: int, last_layer: int) -> Tensor:
    """v_t [T, d]: the mean over the layers first ... last of v_t^l / ||v_t^l||."""
    total = torch.zeros_like(states[0])
    for layer in range(first_layer, last_layer + 1):
        for t, vector in enumerate(states[layer]):
            total[t] += vector / float((vector * vector).sum()) ** 0.5
    return total / (last_layer - first_layer + 1)


def weighted_sum(weights: Sequence[float], hidden_states: Iterable[Tensor]) -> Tensor:
    """The sum over t of w_t v_t."""
    total = torch.zeros((), dtype=torch.float64)
    for weight, state in zip(weights, hidden_states, strict=True):
        total = total + weight * state.double()
    return total


def weighted_mean(weights: Sequence[float], hidden_states: Iterable[Tensor]) -> Tensor:
    """The sum over t of w_t v_t, divided by the sum of w."""
    return weighted_sum(weights, hidden_states) / sum(weights)


def mean(hidden_states: Tensor, row_indices: Sequence[int]) -> Tensor:
    """(1/m) sum of the m chosen rows."""
    total = torch.zeros((), dtype=torch.float64)
    for index in row_indices:
        total = total + hidden_states[index].double()
    return total / len(row_indices)


# ---------------------------------------------------------------------------------------------------------------------
# ReBA


def symmetrized_max(attention: Tensor) -> Tensor:
    """A_new[i, j] = max over l, h of (A[l, h, i, j] + A[l, h, j, i]) / 2; on the diagonal that is max A[l, h, i, i]."""
    # Numbers are read by themselves, a tensor's entries a hundred times as slowly; so below too.
    head_matrices = attention.double().flatten(0, 1).tolist()
    length = attention.shape[-1]
    fused_rows: list[list[float]] = []
    for i in range(length):
        fused_row: list[float] = []
        for j in range(length):
            fused_row.append(max((matrix[i][j] + matrix[j][i]) / 2 for matrix in head_matrices))
        fused_rows.append(fused_row)
    return torch.tensor(fused_rows, dtype=torch.float64)


def reba_weights(
    fused_attention: Tensor,
    layout: Layout,
    *,
    include_special: bool = False,
    normalize_weights: bool = False,
) -> Tensor:
    """W [n, T]: W[i, t] = A_new[pos(1, i), t] where t is in C and t >= pos(1, i), else 0; e_i = sum over t W[i, t] v_t.

    ``include_special`` lets t run over template and special tokens too; ``normalize_weights``
    divides each row by its own sum.
    """
    fused_rows = fused_attention.tolist()
    weight_rows: list[list[float]] = []
    for start in layout.positions(1):
        weight_row = [0.0] * len(layout.ids)
        for t in range(start, len(layout.ids)):
            if include_special or layout.copy_of[t] > 0:
                weight_row[t] = fused_rows[start][t]
        if normalize_weights:
            row_sum = sum(weight_row)
            weight_row = [weight / row_sum for weight in weight_row]
        weight_rows.append(weight_row)
    return torch.tensor(weight_rows, dtype=torch.float64)


def reba_tokens(
    hidden_states: Tensor,
    fused_attention: Tensor,
    layout: Layout,
    **options: bool,
) -> Tensor:
    """E [n, d]: e_i = sum over t in C with t >= pos(1, i) of A_new[pos(1, i), t] v_t; options as of the weights."""
    weight_rows = reba_weights(fused_attention, layout, **options).tolist()
    return torch.stack([weighted_sum(weight_row, hidden_states) for weight_row in weight_rows])


def reba(
    hidden_states: Tensor,
    fused_attention: Tensor,
    layout: Layout,
    pooling: Pooling = "last",
    **options: bool,
) -> Tensor:
    """last: e_n; mean: (1/n) sum over i of e_i (with normalize_weights each e_i is normalized before the mean)."""
    token_vectors = reba_tokens(hidden_states, fused_attention, layout, **options)
    if pooling == "last":
        return token_vectors[-1]
    return mean(token_vectors, range(layout.n))


def reba_word(
    hidden_states: Tensor,
    fused_attention: Tensor,
    layout: Layout,
    token_indices: Sequence[int],
    **options: bool,
) -> Tensor:
    """The mean of e_i over the word's content tokens (indices from 0 within the content)."""
    token_vectors = reba_tokens(hidden_states, fused_attention, layout, **options)
    return mean(token_vectors, token_indices)


# ReBA as its published code computes it.


def published_last(hidden_states: Tensor, fused_attention: Tensor) -> Tensor:
    """Weights w_t = A_new[T-1, t]: the row of the very last position over all positions, divided by its sum."""
    return weighted_mean(fused_attention[-1].tolist(), hidden_states)


def published_mean(hidden_states: Tensor, fused_attention: Tensor) -> Tensor:
    """Weights w_t = sum over rows i < floor(T / 2), i <= t, of A_new[i, t]: all positions, divided by their sum."""
    length = len(hidden_states)
    first_rows = fused_attention.tolist()[: length // 2]
    weights: list[float] = []
    for t in range(length):
        weights.append(sum(row[t] for row in first_rows[: t + 1]))
    return weighted_mean(weights, hidden_states)


def published_word(
    hidden_states: Tensor,
    fused_attention: Tensor,
    layout: Layout,
    token_indices: Sequence[int],
) -> Tensor:
    """Weights w_t = sum over the word's tokens i of A_new[pos(1, i), t], earlier columns too, divided by their sum."""
    first_copy = layout.positions(1)
    fused_rows = fused_attention.tolist()
    weights: list[float] = []
    for t in range(len(hidden_states)):
        weights.append(sum(fused_rows[first_copy[i]][t] for i in token_indices))
    return weighted_mean(weights, hidden_states)


# ---------------------------------------------------------------------------------------------------------------------
# Echo, classical, PromptEOL


def echo(
    hidden_states: Tensor,
    layout: Layout,
    pooling: Pooling = "last",
    span: Span = "last_copy",
) -> Tensor:
    """last: v at pos(k, n), whatever the span; mean: the average of v over the span.

    last_copy: content of copy k; repeats: content of copies 2..k; last_copy_and_end: content of
    copy k and the tokenizer's special tokens after it (but no template words).
    """
    last_copy = layout.positions(layout.k)
    if pooling == "last":
        return hidden_states[last_copy[-1]].double()
    if span == "last_copy":
        return mean(hidden_states, last_copy)
    if span == "last_copy_and_end":
        length = len(layout.ids)
        end_positions = range(length - layout.suffix, length)
        return mean(hidden_states, [*last_copy, *end_positions])
    repeat_positions: list[int] = []
    for copy_number in range(2, layout.k + 1):
        repeat_positions += layout.positions(copy_number)
    return mean(hidden_states, repeat_positions)


def echo_word(hidden_states: Tensor, layout: Layout, token_indices: Sequence[int]) -> Tensor:
    """The average of v at pos(k, i) over the word's content tokens (indices from 0 within the content)."""
    last_copy = layout.positions(layout.k)
    return mean(hidden_states, [last_copy[i] for i in token_indices])


def classical(hidden_states: Tensor, layout: Layout, pooling: Pooling = "last") -> Tensor:
    """One copy. last: v at the last content position; mean: the average over content."""
    assert layout.k == 1
    return echo(hidden_states, layout, pooling)


def very_last(hidden_states: Tensor) -> Tensor:
    """v at the very last position, whatever token that is (PromptEOL; classical last with the end token included)."""
    return hidden_states[-1].double()
