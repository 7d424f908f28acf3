"""The stage that makes a backbone call this package's attention function, for what others would leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .stages import Bound, Stage

if TYPE_CHECKING:
    from .decoder import DecoderTransformer


@dataclass(frozen=True)
class OwnAttention(Stage):
    """Attention that obeys a soft cap, which transformers' SDPA drops in some versions.

    Input modules add it by themselves where the backbone has one.
    """

    name: ClassVar[str] = "attention"
    order: ClassVar[int] = 1

    def bind(self, decoder: DecoderTransformer) -> Bound:
        """Switch the backbone's attention."""
        from .attention import switch_on

        switch_on(decoder.model)
        return Bound()
