"""The methods in plain float64 loops: slow, obvious, and independent of the package they are compared with.

Positions and token indices count from 0 here; copies count from 1, as in the formulas (0 marks a position that is no
content at all). ``V`` holds one last hidden state per row, ``A`` one attention matrix per layer and head, with the
query in the row and the key in the column.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
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
        """pos(c, 1) ... pos(c, n): the positions of copy c, in order (copies count from 1)."""
        return [t for t, owner in enumerate(self.copy_of) if owner == c]

    @property
    def content(self) -> list[int]:
        """C: the content positions of all the copies."""
        return [t for t, owner in enumerate(self.copy_of) if owner > 0]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text of its own accord."""
    probe = "a"
    bare = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
    full = list(tokenizer(probe)["input_ids"])
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise ValueError(f"{full} does not contain {bare}")


def layout(
    tokenizer: PreTrainedTokenizerBase, text: str, template_pieces: Sequence[str | None], *, limit: int | None = None
) -> Layout:
    """Lay a text out: a str is literal, None is one copy of the text; each copy gets floor((M - s) / k) tokens."""
    prefix, suffix = special_ids(tokenizer)
    # A special token's name inside a text is ordinary text: it must not become the special token.
    content = list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    pieces: list[list[int] | None] = []
    for literal in template_pieces:
        if literal is None:
            pieces.append(None)
        elif literal != "":
            pieces.append(list(tokenizer(literal, add_special_tokens=False)["input_ids"]))
    k = sum(1 for piece in pieces if piece is None)
    if k == 0:
        raise ValueError("the template holds no copy of the text")
    if limit is not None:
        s = len(prefix) + len(suffix) + sum(len(piece) for piece in pieces if piece is not None)
        room = (limit - s) // k
        if room < 1:
            raise ValueError(f"{limit} positions leave no room for {k} copies beside {s} special and template tokens")
        content = content[:room]

    ids = list(prefix)
    copy_of = [0] * len(prefix)
    c = 0
    for piece in pieces:
        if piece is None:
            c += 1
            ids += content
            copy_of += [c] * len(content)
        else:
            ids += piece
            copy_of += [0] * len(piece)
    ids += suffix
    copy_of += [0] * len(suffix)
    return Layout(ids=ids, copy_of=copy_of, n=len(content), k=k, suffix=len(suffix))


# ---------------------------------------------------------------------------------------------------------------------
# Model


def as_double(model: PreTrainedModel) -> PreTrainedModel:
    """A float64 copy, ready to run (the model itself where it is float64 already); the caller's model is untouched."""
    if model.training or any(p.is_floating_point() and p.dtype != torch.float64 for p in model.parameters()):
        model = copy.deepcopy(model)
        model.double()
        model.eval()
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
def hidden_and_attention(model: PreTrainedModel, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """V [T, d] and A [L, H, T, T] of one sequence, run alone and unpadded; the model must be loaded as eager.

    Weights and activations are float64, but many architectures take the softmax (and norms, and rotary angles) in
    float32 whatever the model's type is, so that agreement stops near 1e-7.
    """
    # base_model: a model with a language-modelling head gives logits, not hidden states.
    body = as_double(model).base_model
    tokens = torch.tensor([list(ids)], dtype=torch.long)
    with _double_by_default():
        output = body(input_ids=tokens, output_attentions=True, use_cache=False, return_dict=True)
    if not output.attentions or any(matrix is None for matrix in output.attentions):
        raise ValueError("the model gave no attention matrices: load it with attn_implementation='eager'")
    hidden = output.last_hidden_state[0].double()
    attention = torch.stack([matrix[0].double() for matrix in output.attentions])
    length = len(tokens[0])
    if attention.shape[-2:] != (length, length):
        raise ValueError(f"attention of shape {tuple(attention.shape)} for {length} tokens")
    return hidden, attention


# ---------------------------------------------------------------------------------------------------------------------
# Inner layers


@torch.no_grad()
def layer_states(model: PreTrainedModel, ids: Sequence[int], *, final_norm: bool = True) -> Tensor:
    """[L + 1, T, d] of one sequence: 0 the embeddings, l what layer l gives; each behind the final norm, or before it.

    The final norm is found as the module that gives the last hidden states, and is run on every layer's.
    """
    body = as_double(model).base_model
    gave: list[tuple[torch.nn.Module, Tensor, Tensor]] = []

    def keep(module: torch.nn.Module, arguments: tuple[object, ...], output: object) -> None:
        if arguments and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
            gave.append((module, arguments[0], output))

    hooks = [module.register_forward_hook(keep) for module in body.modules()]
    tokens = torch.tensor([list(ids)], dtype=torch.long)
    try:
        with _double_by_default():
            output = body(input_ids=tokens, output_hidden_states=True, use_cache=False, return_dict=True)
            last = output.last_hidden_state
            norm, entered, _ = next(each for each in reversed(gave) if each[2].data_ptr() == last.data_ptr())
    finally:
        for hook in hooks:
            hook.remove()
    with _double_by_default():
        # transformers gives the last layer's behind the norm.
        states = [*output.hidden_states[:-1], entered.reshape(last.shape)]
        assert len(states) == body.config.num_hidden_layers + 1
        if final_norm:
            states = [norm(each) for each in states]
    return torch.stack([each[0].double() for each in states])


def mean_of_layers(states: Tensor, first: int, last: int) -> Tensor:
    """v_t [T, d]: the mean over the layers first ... last of v_t^l / ||v_t^l||."""
    total = torch.zeros_like(states[0])
    for layer in range(first, last + 1):
        for t, vector in enumerate(states[layer]):
            total[t] += vector / float((vector * vector).sum()) ** 0.5
    return total / (last - first + 1)


# ---------------------------------------------------------------------------------------------------------------------
# ReBA


def symmetrized_max(A: Tensor) -> Tensor:
    """A_new[i, j] = max over l, h of (A[l, h, i, j] + A[l, h, j, i]) / 2; on the diagonal that is max A[l, h, i, i]."""
    layers, heads, length, _ = A.shape
    values = A.double().tolist()
    result = [[float("-inf")] * length for _ in range(length)]
    for layer in range(layers):
        for head in range(heads):
            matrix = values[layer][head]
            for i in range(length):
                for j in range(length):
                    result[i][j] = max(result[i][j], (matrix[i][j] + matrix[j][i]) / 2)
    return torch.tensor(result, dtype=torch.float64)


def reba_weights(
    A_new: Tensor, layout: Layout, *, include_special: bool = False, normalize_weights: bool = False
) -> Tensor:
    """W [n, T]: W[i, t] = A_new[pos(1, i), t] where t is in C and t >= pos(1, i), else 0; e_i = sum over t W[i, t] v_t.

    ``include_special`` lets t run over template and special tokens too; ``normalize_weights`` divides each row by its
    own sum.
    """
    length = len(layout.ids)
    # Numbers are read and written by themselves, a tensor's entries a hundred times as slowly.
    values = A_new.tolist()
    rows = [[0.0] * length for _ in range(layout.n)]
    for i, start in enumerate(layout.positions(1)):
        for t in range(start, length):
            if include_special or layout.copy_of[t] > 0:
                rows[i][t] = values[start][t]
    weights = torch.tensor(rows, dtype=torch.float64).reshape(layout.n, length)
    if normalize_weights:
        for i in range(layout.n):
            weights[i] = weights[i] / weights[i].sum()
    return weights


def reba_tokens(
    V: Tensor, A_new: Tensor, layout: Layout, *, include_special: bool = False, normalize_weights: bool = False
) -> Tensor:
    """E [n, d]: e_i = sum over t in C with t >= pos(1, i) of A_new[pos(1, i), t] v_t."""
    weights = reba_weights(A_new, layout, include_special=include_special, normalize_weights=normalize_weights)
    states = list(V.double())
    result = torch.zeros(layout.n, V.shape[1], dtype=torch.float64)
    for row, factors in zip(result, weights.tolist(), strict=True):
        for factor, state in zip(factors, states, strict=True):
            if factor != 0:
                row += factor * state
    return result


def reba(
    V: Tensor,
    A_new: Tensor,
    layout: Layout,
    pooling: Pooling = "last",
    *,
    include_special: bool = False,
    normalize_weights: bool = False,
) -> Tensor:
    """last: e_n; mean: (1/n) sum over i of e_i (with normalize_weights each e_i is normalized before the mean)."""
    tokens = reba_tokens(V, A_new, layout, include_special=include_special, normalize_weights=normalize_weights)
    if pooling == "last":
        return tokens[layout.n - 1]
    if pooling == "mean":
        return _mean(tokens, range(layout.n))
    raise ValueError(f"unknown pooling {pooling!r}")


def reba_word(
    V: Tensor,
    A_new: Tensor,
    layout: Layout,
    token_indices: Sequence[int],
    *,
    normalize_weights: bool = False,
    include_special: bool = False,
) -> Tensor:
    """The mean of e_i over the word's content tokens (indices from 0 within the content)."""
    tokens = reba_tokens(V, A_new, layout, include_special=include_special, normalize_weights=normalize_weights)
    return _mean(tokens, token_indices)


# ---------------------------------------------------------------------------------------------------------------------
# ReBA as its published code computes it


def published_last(V: Tensor, A_new: Tensor) -> Tensor:
    """Weights w_t = A_new[T-1, t]: the row of the very last position over all positions, divided by its sum."""
    length = len(V)
    return _normalized_sum(V, [float(A_new[length - 1, t]) for t in range(length)])


def published_mean(V: Tensor, A_new: Tensor) -> Tensor:
    """Weights w_t = sum over rows i < floor(T / 2), i <= t, of A_new[i, t]: all positions, divided by their sum."""
    length, values = len(V), A_new.tolist()
    weights = [0.0] * length
    for i in range(length // 2):
        for t in range(i, length):
            weights[t] += values[i][t]
    return _normalized_sum(V, weights)


def published_word(V: Tensor, A_new: Tensor, layout: Layout, token_indices: Sequence[int]) -> Tensor:
    """Weights w_t = sum over the word's tokens i of A_new[pos(1, i), t], earlier columns too, divided by their sum."""
    length = len(V)
    first = layout.positions(1)
    weights = [0.0] * length
    for i in token_indices:
        for t in range(length):
            weights[t] += float(A_new[first[i], t])
    return _normalized_sum(V, weights)


# ---------------------------------------------------------------------------------------------------------------------
# Echo, classical, PromptEOL


def echo(V: Tensor, layout: Layout, pooling: Pooling = "last", span: Span = "last_copy") -> Tensor:
    """last: v at pos(k, n), whatever the span; mean: the average of v over the span.

    last_copy: content of copy k; repeats: content of copies 2..k; last_copy_and_end: content of copy k and the
    tokenizer's special tokens after it (but no template words).
    """
    if pooling == "last":
        return V[layout.positions(layout.k)[layout.n - 1]].double()
    if pooling != "mean":
        raise ValueError(f"unknown pooling {pooling!r}")
    if span == "last_copy":
        rows = layout.positions(layout.k)
    elif span == "repeats":
        rows = [t for c in range(2, layout.k + 1) for t in layout.positions(c)]
    elif span == "last_copy_and_end":
        length = len(layout.ids)
        rows = layout.positions(layout.k) + list(range(length - layout.suffix, length))
    else:
        raise ValueError(f"unknown span {span!r}")
    return _mean(V, rows)


def echo_word(V: Tensor, layout: Layout, token_indices: Sequence[int]) -> Tensor:
    """The average of v at pos(k, i) over the word's content tokens (indices from 0 within the content)."""
    last_copy = layout.positions(layout.k)
    return _mean(V, [last_copy[i] for i in token_indices])


def classical(V: Tensor, layout: Layout, pooling: Literal["last", "mean", "cls"] = "last") -> Tensor:
    """One copy. last: v at the last content position; mean: the average over content; cls: v at the first position."""
    if layout.k != 1:
        raise ValueError(f"classical pooling takes one copy, not {layout.k}")
    if pooling == "last":
        return V[layout.positions(1)[layout.n - 1]].double()
    if pooling == "mean":
        return _mean(V, layout.positions(1))
    if pooling == "cls":
        return V[0].double()
    raise ValueError(f"unknown pooling {pooling!r}")


def very_last(V: Tensor) -> Tensor:
    """v at the very last position, whatever token that is (PromptEOL; classical last with the end token included)."""
    return V[len(V) - 1].double()


# ---------------------------------------------------------------------------------------------------------------------
# Sums


def _mean(rows: Tensor, indices: Sequence[int]) -> Tensor:
    """(1/m) sum of the m chosen rows."""
    if len(indices) == 0:
        raise ValueError("nothing to average")
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for index in indices:
        total += rows[index].double()
    return total / len(indices)


def _normalized_sum(V: Tensor, weights: Sequence[float]) -> Tensor:
    """sum over t of (w_t / sum of w) v_t."""
    total = torch.zeros(V.shape[1], dtype=torch.float64)
    for t, weight in enumerate(weights):
        total += weight * V[t].double()
    return total / sum(weights)
