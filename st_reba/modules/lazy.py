"""Features whose token vectors are computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

TOKENS = "token_embeddings"


class LazyFeatures(dict[str, Any]):
    """Features that compute ``token_embeddings``, for which all rows of A^new are needed, when they are asked for.

    While gradients are wanted, listing does not compute them: mixed precision copies a model's output. ``compute`` is
    None in copies that others make, which hold what had been computed; ``listed``: they are among the keys.
    """

    def __init__(
        self, features: Any = (), compute: Callable[[], Tensor] | None = None, *, listed: bool = False
    ) -> None:
        super().__init__(features)
        self._compute = compute
        self._listed = listed

    def __missing__(self, key: str) -> Any:
        if key != TOKENS or self._compute is None:
            raise KeyError(key)
        self[key] = self._compute()
        return self[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key == TOKENS and self._listed)

    def get(self, key: str, default: Any = None) -> Any:
        # Not dict's own get, which knows of nothing that is computed.
        return self[key] if key in self else default  # noqa: SIM401

    def _whole(self) -> None:
        if self._listed and not torch.is_grad_enabled():
            self[TOKENS]

    def __iter__(self) -> Iterator[str]:
        self._whole()
        return super().__iter__()

    def keys(self) -> Any:
        self._whole()
        return super().keys()

    def items(self) -> Any:
        self._whole()
        return super().items()

    def values(self) -> Any:
        self._whole()
        return super().values()
