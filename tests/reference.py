"""The methods in plain float64 loops: slow, obvious, and independent of the package they are compared with.

Positions and token indices count from 0 here; copies count from 1, as in the formulas (0 marks a position that is no
content at all). ``V`` holds one last hidden state per row, ``A`` one attention matrix per layer and head, with the
query in the row and the key in the column.
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

    ``copy_of[t]`` is 0 where t holds a special or template token and c where it holds a content token of copy c.
    ``suffix`` counts the tokenizer's own special tokens at the very end (they follow any template words there).
    """

    ids: list[int]
    copy_of: list[int]
    n: int
    k: int
    suffix: int = 0

    def positions(self, c: int) -> list[int]:
        """pos(c, 1) ... pos(c, n): the positions of copy c, in order."""
        return [t for t, owner in enumerate(self.copy_of) if owner == c]


def layout(
    tokenizer: PreTrainedTokenizerBase, text: str, template_pieces: Sequence[str | None], *, limit: int | None = None
) -> Layout:
    """Lay a text out: a str is literal, None is one copy of the text; each copy gets floor((M - s) / k) tokens."""
    # What the tokenizer puts before and after a text of its own accord.
    bare, full = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    start = next(start for start in range(len(full)) if full[start : start + len(bare)] == bare)
    prefix, suffix = full[:start], full[start + len(bare) :]
    # A special token's name inside a text is ordinary text: it must not become the special token.
    content = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    literals = [tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else [] for piece in template_pieces]
    k = list(template_pieces).count(None)
    if limit is not None:
        content = content[: (limit - len(prefix) - sum(map(len, literals)) - len(suffix)) // k]
    ids, copy_of = list(prefix), [0] * len(prefix)
    for piece, literal in zip(template_pieces, literals, strict=True):
        ids += content if piece is None else literal
        copy_of += [max(copy_of, default=0) + 1] * len(content) if piece is None else [0] * len(literal)
    return Layout(ids + suffix, copy_of + [0] * len(suffix), n=len(content), k=k, suffix=len(suffix))


# ---------------------------------------------------------------------------------------------------------------------
# Model


def as_double(model: PreTrainedModel) -> PreTrainedModel:
    """A float64 copy, ready to run (the model itself where it is float64 already); the caller's model is untouched."""
    if model.training or any(p.is_floating_point() and p.dtype != torch.float64 for p in model.parameters()):
        model = copy.deepcopy(model).double().eval()
        # Grouped matrix products of experts know no float64; the plain loop over experts does.
        model.config._experts_implementation = "eager"
    return model


@contextlib.contextmanager
def _double_by_default() -> Iterator[None]:
    """Tensors made on the way (masks, position biases) are float64 too; some models fail in float64 without it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def forward(model: PreTrainedModel, ids: Sequence[int], **options: bool) -> Any:
    """What a model without its head gives for one sequence, run alone and unpadded in float64.

    Many architectures take the softmax (and norms, and rotary angles) in float32 whatever the model's type is, so that
    agreement stops near 1e-7.
    """
    with _double_by_default():
        return model.base_model(input_ids=torch.tensor([list(ids)]), use_cache=False, return_dict=True, **options)


def final_norm_of(model: PreTrainedModel) -> nn.Module:
    """The norm behind the last layer, of a model without its head."""
    return model.ln_f if hasattr(model, "ln_f") else model.norm


def hidden_and_attention(model: PreTrainedModel, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """V [T, d] and A [L, H, T, T] of one sequence; the model must be loaded as eager."""
    output = forward(as_double(model), ids, output_attentions=True)
    attention = torch.cat(output.attentions).double()
    assert attention.shape[2:] == (len(ids), len(ids))
    return output.last_hidden_state[0].double(), attention


@torch.no_grad()
def layer_states(model: PreTrainedModel, ids: Sequence[int], *, final_norm: bool = True) -> Tensor:
    """[L + 1, T, d] of one sequence: 0 the embeddings, l what layer l gives; each behind the final norm, or before."""
    model = as_double(model).base_model
    norm, entered = final_norm_of(model), list[Tensor]()
    hook = norm.register_forward_pre_hook(lambda module, given: entered.append(given[0]))
    states = forward(model, ids, output_hidden_states=True).hidden_states
    hook.remove()
    # transformers gives the last layer's behind the norm.
    states = torch.cat([*states[:-1], *entered])
    assert len(states) == model.config.num_hidden_layers + 1
    with _double_by_default():
        return norm(states) if final_norm else states


def mean_of_layers(states: Tensor, first: int, last: int) -> Tensor:
    """v_t [T, d]: the mean over the layers first ... last of v_t^l / ||v_t^l||."""
    total = torch.zeros_like(states[0])
    for layer in range(first, last + 1):
        for t, vector in enumerate(states[layer]):
            total[t] += vector / float((vector * vector).sum()) ** 0.5
    return total / (last - first + 1)


def weighted_sum(weights: Sequence[float], V: Iterable[Tensor]) -> Tensor:
    """The sum over t of w_t v_t."""
    return sum(weight * state.double() for weight, state in zip(weights, V, strict=True))


def weighted_mean(weights: Sequence[float], V: Iterable[Tensor]) -> Tensor:
    """The sum over t of w_t v_t, divided by the sum of w."""
    return weighted_sum(weights, V) / sum(weights)


def mean(V: Tensor, indices: Sequence[int]) -> Tensor:
    """(1/m) sum of the m chosen rows."""
    return sum(V[index].double() for index in indices) / len(indices)


# ---------------------------------------------------------------------------------------------------------------------
# ReBA


def symmetrized_max(A: Tensor) -> Tensor:
    """A_new[i, j] = max over l, h of (A[l, h, i, j] + A[l, h, j, i]) / 2; on the diagonal that is max A[l, h, i, i]."""
    # Numbers are read by themselves, a tensor's entries a hundred times as slowly; so below too.
    matrices, tokens = A.double().flatten(0, 1).tolist(), range(A.shape[-1])
    rows = [[max((each[i][j] + each[j][i]) / 2 for each in matrices) for j in tokens] for i in tokens]
    return torch.tensor(rows, dtype=torch.float64)


def reba_weights(
    A_new: Tensor, layout: Layout, *, include_special: bool = False, normalize_weights: bool = False
) -> Tensor:
    """W [n, T]: W[i, t] = A_new[pos(1, i), t] where t is in C and t >= pos(1, i), else 0; e_i = sum over t W[i, t] v_t.

    ``include_special`` lets t run over template and special tokens too; ``normalize_weights`` divides each row by its
    own sum.
    """
    values, rows = A_new.tolist(), []
    for start in layout.positions(1):
        row = [0.0] * len(layout.ids)
        for t in range(start, len(row)):
            if include_special or layout.copy_of[t] > 0:
                row[t] = values[start][t]
        total = sum(row) if normalize_weights else 1
        rows.append([weight / total for weight in row])
    return torch.tensor(rows, dtype=torch.float64)


def reba_tokens(V: Tensor, A_new: Tensor, layout: Layout, **options: bool) -> Tensor:
    """E [n, d]: e_i = sum over t in C with t >= pos(1, i) of A_new[pos(1, i), t] v_t; options as of the weights."""
    return torch.stack([weighted_sum(row, V) for row in reba_weights(A_new, layout, **options).tolist()])


def reba(V: Tensor, A_new: Tensor, layout: Layout, pooling: Pooling = "last", **options: bool) -> Tensor:
    """last: e_n; mean: (1/n) sum over i of e_i (with normalize_weights each e_i is normalized before the mean)."""
    tokens = reba_tokens(V, A_new, layout, **options)
    return {"last": tokens[-1], "mean": mean(tokens, range(layout.n))}[pooling]


def reba_word(V: Tensor, A_new: Tensor, layout: Layout, token_indices: Sequence[int], **options: bool) -> Tensor:
    """The mean of e_i over the word's content tokens (indices from 0 within the content)."""
    return mean(reba_tokens(V, A_new, layout, **options), token_indices)


# ReBA as its published code computes it.


def published_last(V: Tensor, A_new: Tensor) -> Tensor:
    """Weights w_t = A_new[T-1, t]: the row of the very last position over all positions, divided by its sum."""
    return weighted_mean(A_new[-1].tolist(), V)


def published_mean(V: Tensor, A_new: Tensor) -> Tensor:
    """Weights w_t = sum over rows i < floor(T / 2), i <= t, of A_new[i, t]: all positions, divided by their sum."""
    rows = A_new.tolist()[: len(V) // 2]
    return weighted_mean([sum(row[t] for row in rows[: t + 1]) for t in range(len(V))], V)


def published_word(V: Tensor, A_new: Tensor, layout: Layout, token_indices: Sequence[int]) -> Tensor:
    """Weights w_t = sum over the word's tokens i of A_new[pos(1, i), t], earlier columns too, divided by their sum."""
    first, values = layout.positions(1), A_new.tolist()
    return weighted_mean([sum(values[first[i]][t] for i in token_indices) for t in range(len(V))], V)


# ---------------------------------------------------------------------------------------------------------------------
# Echo, classical, PromptEOL


def echo(V: Tensor, layout: Layout, pooling: Pooling = "last", span: Span = "last_copy") -> Tensor:
    """last: v at pos(k, n), whatever the span; mean: the average of v over the span.

    last_copy: content of copy k; repeats: content of copies 2..k; last_copy_and_end: content of copy k and the
    tokenizer's special tokens after it (but no template words).
    """
    length, last_copy = len(layout.ids), layout.positions(layout.k)
    if pooling == "last":
        return V[last_copy[-1]].double()
    rows = {
        "last_copy": last_copy,
        "repeats": [t for c in range(2, layout.k + 1) for t in layout.positions(c)],
        "last_copy_and_end": [*last_copy, *range(length - layout.suffix, length)],
    }
    return mean(V, rows[span])


def echo_word(V: Tensor, layout: Layout, token_indices: Sequence[int]) -> Tensor:
    """The average of v at pos(k, i) over the word's content tokens (indices from 0 within the content)."""
    last_copy = layout.positions(layout.k)
    return mean(V, [last_copy[i] for i in token_indices])


def classical(V: Tensor, layout: Layout, pooling: Pooling = "last") -> Tensor:
    """One copy. last: v at the last content position; mean: the average over content."""
    assert layout.k == 1
    return echo(V, layout, pooling)


def very_last(V: Tensor) -> Tensor:
    """v at the very last position, whatever token that is (PromptEOL; classical last with the end token included)."""
    return V[-1].double()
