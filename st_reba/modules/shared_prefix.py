"""A batch runs as a tree: the prefix that rows share, the texts behind it, the questions behind the texts.

A row is p · x · s: prefix (special tokens, and what the template puts before the text), content, and the rest. Where
every layer is causal, keys and values of p depend on p alone: p runs once, and all rows read them. Rows that share the
content too, as several questions of one text do, read those of p · x. A stage of the tree is a pass of its own, which
begins at one position in all of its rows, so that no padding lies between tokens; readers of inner layers see it like
any pass. The states of all stages are put together: they are those of whole rows, up to rounding, at every position.

Rows run whole where that would not be exact, or no faster: layers that look both ways or whose masks were changed;
other states than keys and values; captured attention; gradients, training and tracing; a few positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from .layout import PARTS, Span

# A stage has a cost of its own: what is shared must save so many positions for each.
STAGE_COST = 32
# The argument by which a model takes keys and values, in newer and in older releases of transformers.
CACHE_ARGUMENTS = ("cache", "past_key_values")

# One pass of the decoder: features and arguments → hidden states [B, T, d].
RunPass = Callable[[dict[str, Any], dict[str, Any]], Tensor]


@dataclass(frozen=True)
class KeyValueBlock:
    """One layer's keys and values [U, H, t, D]; ``rows`` [B] says which of them each row reads, None: all read one."""

    keys: Tensor
    values: Tensor
    rows: Tensor | None = None

    def select(self, rows: Tensor, length: int) -> KeyValueBlock:
        """The first positions of the block, for the rows of a later stage."""
        return KeyValueBlock(self.keys[:, :, :length], self.values[:, :, :length], rows.to(self.keys.device))

    def read(self, states: Tensor, row_count: int) -> Tensor:
        """The block's keys or values as the rows read them, [B, H, t, D]."""
        if self.rows is None:
            return states.expand(row_count, -1, -1, -1)
        return states.index_select(0, self.rows)


class BranchLayer(DynamicLayer):
    """One layer's cache in a stage; blocks are joined while the layer runs, as those of all layers fill the memory."""

    def __init__(self, blocks: Sequence[KeyValueBlock] = (), start: int = 0, is_continued: bool = True) -> None:
        super().__init__()
        self.blocks, self.start, self.is_continued = blocks, start, is_continued
        self.added: KeyValueBlock | None = None

    def get_seq_length(self, *args: Any) -> int:
        """Positions before the stage, whenever a layer asks."""
        return self.start

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values that the stage's tokens may see."""
        if self.is_continued:
            self.added = KeyValueBlock(key_states, value_states)
        keys = [block.read(block.keys, len(key_states)) for block in self.blocks]
        values = [block.read(block.values, len(key_states)) for block in self.blocks]
        return torch.cat([*keys, key_states], dim=-2), torch.cat([*values, value_states], dim=-2)


@dataclass(frozen=True)
class Stage:
    """Positions that run together, from the same one on in all rows.

    Args:
        branches: Rows of the batch; the first of each branch runs, and its states are those of all in it.
        start, stop: First position, and the one behind the last.
        blocks: Of each layer, what rows read before ``start``.
        is_continued: Keep keys and values for later stages.
    """

    branches: Sequence[Sequence[int]]
    start: int
    stop: int
    blocks: Sequence[Sequence[KeyValueBlock]] = ()
    is_continued: bool = False


class PrefixTree:
    """One batch that runs in stages.

    Args:
        features: Of the batch, as `RepeatTransformer.preprocess` makes them.
        run_pass: Runs the decoder on positions of some rows.
        cache_argument: The name by which the decoder takes its cache.
        stage_cost: Positions that a stage must save.
    """

    def __init__(
        self, features: Mapping[str, Any], run_pass: RunPass, cache_argument: str, stage_cost: int = STAGE_COST
    ) -> None:
        self.features, self.run_pass, self.cache_argument = features, run_pass, cache_argument
        self.stage_cost = stage_cost
        self.spans: list[Span] = features["spans"]
        self.token_ids = features["input_ids"].cpu().numpy()
        self.hidden: Tensor | None = None  # [B, T, d], filled by the stages

    def run(self) -> Tensor | None:
        """Hidden states [B, T, d], anything at padding; None: nothing that rows share is worth a stage."""
        whole_rows: list[int] = []
        for rows in self._group_rows(range(len(self.spans)), with_content=False):
            whole_rows += self._run_branch(rows)
        if self.hidden is not None and whole_rows:
            self._run_stage(Stage([[row] for row in whole_rows], 0, self._last_stop(whole_rows)))
        return self.hidden

    def _group_rows(self, rows: Iterable[int], *, with_content: bool) -> list[list[int]]:
        """Rows with the same prefix, or with the same prefix and content."""
        groups: dict[bytes, list[int]] = {}
        for row in rows:
            span = self.spans[row]
            beginning = self.token_ids[row, : span.start + span.length * with_content]
            groups.setdefault(beginning.tobytes(), []).append(row)
        return list(groups.values())

    def _last_stop(self, rows: Iterable[int]) -> int:
        return max(self.spans[row].total for row in rows)

    def _run_branch(self, rows: list[int]) -> list[int]:
        """Run rows with one prefix; return those that had better run whole."""
        prefix_length = self.spans[rows[0]].start
        texts = self._group_rows(rows, with_content=True)
        lengths = [self.spans[text[0]].length for text in texts]
        repeated = sum((len(text) - 1) * length for text, length in zip(texts, lengths, strict=True))
        has_questions = repeated >= self.stage_cost * len(set(lengths))
        branches = texts if has_questions else [[row] for row in rows]
        start = prefix_length if prefix_length * (len(branches) - 1) >= self.stage_cost else 0
        if start == 0 and not has_questions:
            return rows
        blocks: list[list[KeyValueBlock]] = []
        if start > 0:
            blocks = [[block] for block in self._run_stage(Stage([rows], 0, start, is_continued=True))]
        if not has_questions:
            self._run_stage(Stage(branches, start, self._last_stop(rows), blocks))
            return []
        text_blocks = self._run_stage(Stage(texts, start, prefix_length + max(lengths), blocks, is_continued=True))
        for length in sorted(set(lengths)):
            self._run_questions(texts, prefix_length + length, start, blocks, text_blocks)
        return []

    def _run_questions(
        self,
        texts: list[list[int]],
        stop: int,
        start: int,
        blocks: list[list[KeyValueBlock]],
        text_blocks: list[KeyValueBlock],
    ) -> None:
        """Run what stands behind the texts that end at ``stop``; those of one length need no padding before it."""
        rows: list[int] = []
        text_numbers: list[int] = []
        for number, text in enumerate(texts):
            span = self.spans[text[0]]
            if span.start + span.length == stop:
                rows += text
                text_numbers += [number] * len(text)
        last_stop = self._last_stop(rows)
        if last_stop == stop:
            return
        selection = torch.tensor(text_numbers)
        read_blocks = []
        for layer, block in enumerate(text_blocks):
            before = blocks[layer] if blocks else []
            read_blocks.append([*before, block.select(selection, stop - start)])
        self._run_stage(Stage([[row] for row in rows], stop, last_stop, read_blocks))

    def _run_stage(self, stage: Stage) -> list[KeyValueBlock]:
        """Run a stage and put its states where they belong; what its layers keep, where it is continued."""
        token_ids = self.features["input_ids"]
        runners = torch.tensor([branch[0] for branch in stage.branches], device=token_ids.device)
        positions = slice(stage.start, stage.stop)
        names = ("input_ids", "attention_mask", "copy_ids")
        features: dict[str, Any] = {name: self.features[name][runners, positions] for name in names}
        features["spans"] = [self.spans[branch[0]] for branch in stage.branches]
        arguments: dict[str, Any] = {}
        cache = Cache(layer_class_to_replicate=BranchLayer)
        if stage.blocks or stage.is_continued:
            # Where the stage begins, its model knows from the cache: positions are counted on from there.
            cache.layers = [BranchLayer(blocks, stage.start, stage.is_continued) for blocks in stage.blocks]
            visible = token_ids.new_ones(len(runners), stage.stop)
            arguments = {self.cache_argument: cache, "use_cache": True, "attention_mask": visible}
        hidden = self.run_pass(features, arguments)
        if self.hidden is None:
            self.hidden = hidden.new_zeros(*token_ids.shape, hidden.shape[2])
        rows = [row for branch in stage.branches for row in branch]
        if len(rows) > len(stage.branches) > 1:
            sizes = torch.tensor([len(branch) for branch in stage.branches], device=hidden.device)
            hidden = hidden.repeat_interleave(sizes, dim=0)
        self.hidden[torch.tensor(rows, device=hidden.device), positions] = hidden
        return [layer.added for layer in cache.layers]


def cache_argument_of(model: Any) -> str | None:
    """The name by which a model takes keys and values; None: it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in parameters), None)


def is_shareable(transformer: Any, hooks: Iterable[Any]) -> bool:
    """Whether rows may share what they begin with: build tried it, and what acts in a pass takes any positions."""
    return bool(transformer.shares_prefix and transformer.causal) and takes_any_positions(hooks)


def takes_any_positions(hooks: Iterable[Any]) -> bool:
    """Whether what acts in a pass may see a part of the rows."""
    return all(getattr(hook, "takes_any_positions", False) for hook in hooks)


def run_shared(transformer: Any, features: Mapping[str, Any], hooks: Sequence[Any]) -> Tensor | None:
    """Hidden states [B, T, d] of a batch that runs as a tree; None: its rows have to run whole."""
    if not is_shareable(transformer, hooks) or transformer.training or torch.is_grad_enabled():
        return None
    cache_argument = cache_argument_of(transformer.model)
    if cache_argument is None or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    return PrefixTree(features, partial(transformer.run_pass, hooks), cache_argument).run()


PARTS["shared_prefix"] = run_shared
