"""Items that judge methods: their texts are encoded, and each item gets a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from ..encode import Role, computed_positions
from .task import Task
from .vectors import Vectors, remove_directions

Key = TypeVar("Key")
VectorsByRole = dict[Role | None, Vectors]


class TuningItems(ABC):
    """Items of one kind, by which a method is chosen or reported."""

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
            vectors_by_role: Of the texts.
            filter_kind: Kind of the filter behind which they are compared; None: there is none.
            device: Where they are compared, if that is much work.
        """

    @property
    def text_count(self) -> int:
        """Number of texts that a pass runs."""
        return sum(map(len, self.texts_by_role.values()))

    def count_positions(self, model: SentenceTransformer) -> int:
        """Positions that a model computes for the texts."""
        position_count = 0
        for role, texts in self.texts_by_role.items():
            position_count += sum(computed_positions(model[0], texts, {"task": role}))
        return position_count

    def encode(self, run_texts: Callable[..., Mapping[Key, Vectors]]) -> dict[Key, VectorsByRole]:
        """Encode the items by each readout of a pass, or by each method.

        Args:
            run_texts: :func:`~st_reba.evaluation.shared_pass.run_pass` or
                ``encode`` of a :class:`~st_reba.evaluation.readouts.MethodGroup`, but for texts and task.
        """
        encoded_items = defaultdict[Key, VectorsByRole](dict)
        for role, texts in self.texts_by_role.items():
            for key, vectors in run_texts(texts=texts, task=role).items():
                encoded_items[key][role] = vectors
        return encoded_items


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
