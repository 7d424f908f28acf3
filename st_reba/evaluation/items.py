"""Items that judge methods: their texts are encoded, and each item gets a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from ..encode import Role, computed_positions, saved_prompt
from ..methods import Method
from .readouts import MethodGroup
from .task import Task
from .vectors import Vectors, remove_directions

VectorsByRole = dict[Role | None, Vectors]


class TuningItems(ABC):
    """Items of one kind, by which a method is selected, or on which it is then scored."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of the kind of items in reports."""

    @property
    @abstractmethod
    def item_count(self) -> int:
        """Number of items."""

    @property
    @abstractmethod
    def texts_by_role(self) -> Mapping[Role | None, Sequence[str]]:
        """The texts that are encoded as queries, documents, or neither."""

    @abstractmethod
    def score(
        self,
        vectors_by_role: VectorsByRole,
        filter_kind: str | None,
        device: torch.device,
    ) -> Tensor:
        """The score of each item, [items] float32.

        Args:
            vectors_by_role: The vectors of the texts.
            filter_kind: Kind of filter applied before they are compared; None: no filter.
            device: Where to compare them, if that is much work.
        """

    @property
    def text_count(self) -> int:
        """Number of texts that a pass runs."""
        return sum(map(len, self.texts_by_role.values()))

    def count_positions(
        self, model: SentenceTransformer, prompted_model: SentenceTransformer
    ) -> int:
        """Positions that ``model`` computes for the texts, each preceded by its prompt of ``prompted_model``."""
        position_count = 0
        for role, texts in self.texts_by_role.items():
            input_options = input_options_of(prompted_model, role)
            position_count += sum(computed_positions(model[0], texts, input_options))
        return position_count

    def encode(
        self, method_group: MethodGroup, prompted_model: SentenceTransformer
    ) -> dict[Method, VectorsByRole]:
        """Encode the items by each method of a group.

        Args:
            method_group: The methods, with the model that runs them.
            prompted_model: The model whose prompts stand before the texts.
        """
        encoded_items = defaultdict[Method, VectorsByRole](dict)
        for role, texts in self.texts_by_role.items():
            input_options = input_options_of(prompted_model, role)
            for method, vectors in method_group.encode(texts, **input_options).items():
                encoded_items[method][role] = vectors
        return encoded_items


def input_options_of(model: SentenceTransformer, role: Role | None) -> dict[str, Any]:
    """The prompt and the task with which a model encodes the texts of a role."""
    return {"prompt": saved_prompt(model, role), "task": role}


@dataclass(frozen=True)
class TaskItems(TuningItems):
    """The items of a task."""

    task: Task

    @property
    def kind(self) -> str:
        return self.task.kind

    @property
    def item_count(self) -> int:
        return len(self.task.items)

    @property
    def texts_by_role(self) -> Mapping[Role | None, Sequence[str]]:
        return {None: self.task.texts}

    def score(
        self,
        vectors_by_role: VectorsByRole,
        filter_kind: str | None,
        device: torch.device,
    ) -> Tensor:
        vectors = torch.from_numpy(vectors_by_role[None])
        unit_vectors = normalize(vectors.to(device), dim=1)
        if filter_kind is not None:
            unit_vectors = remove_directions(unit_vectors)
        return self.task.task_kind.score_items(self.task, unit_vectors).cpu()
