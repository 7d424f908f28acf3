"""The poolings, each declared once: methods, `build`, help, cards, readouts and ONNX graphs follow. Read without torch.

A pooling of sentence-transformers needs no more than its declaration. Another one has a declaration
of a class of its own, a file with its module in ``modules/``, and the name of that module in
``modules/__init__.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn

# The positions that a pooling may see, in words, for one copy of the text and for several;
# RepeatTransformer's argument for them is ``pooled``.
POSITIONS = {
    "last_copy": ("the text's tokens", "the tokens of the last copy"),
    "repeats": ("the text's tokens", "the tokens of all copies but the first"),
    "last_copy_and_end": (
        "the text's tokens and the special tokens after the input",
        "the tokens of the last copy and the special tokens after the input",
    ),
    "end": ("the last position of the input", "the last position of the input"),
    "all": ("all positions of the input", "all positions of the input"),
}


class PoolingOptions(Protocol):
    """What a declaration reads from a :class:`st_reba.Method`."""

    @property
    def implementation(self) -> str: ...
    @property
    def include_special(self) -> bool: ...
    @property
    def normalize_weights(self) -> bool: ...
    @property
    def chunk(self) -> int | None: ...
    @property
    def repeats(self) -> int | None: ...


@dataclass(frozen=True)
class PoolingSpec:
    """Declaration of a pooling; without a subclass, of one that sentence-transformers has.

    Args:
        name: The value of the option ``pooling``.
        methods: Those that have it.
        formula: The sentence vector, for cards; ``{positions}`` stands for what it sees, in words.
        pooling_mode: What sentence-transformers calls it.
        positions: What it sees where the option ``pooled`` is not given: one of ``POSITIONS``.
        default_of: The methods whose default it is.
        readout: Its name when many readouts share a pass, see evaluation/readouts.py; None: its
            model always runs by itself.
    """

    name: str
    methods: tuple[str, ...]
    formula: str
    pooling_mode: str = ""
    positions: str = "last_copy"
    default_of: tuple[str, ...] = ()
    readout: str | None = None

    def describe(
        self,
        options: PoolingOptions,
        positions_in_words: str,
    ) -> list[str]:
        """Lines of the formula on a card, of which the last is what the vector is."""
        return [self.formula.format(positions=positions_in_words)]

    def build(
        self,
        options: PoolingOptions,
        width: int,
    ) -> nn.Module:
        """The module, for hidden states of dimension ``width``."""
        from sentence_transformers.sentence_transformer.modules import Pooling

        pooling: nn.Module = Pooling(width, self.pooling_mode)
        return pooling

    def is_exportable(self, module: nn.Module) -> bool:
        """Whether a module is this pooling, and an ONNX graph can hold it.

        It reads only ``token_embeddings`` and ``attention_mask``, without a branch that depends on
        their values.
        """
        return (
            bool(self.pooling_mode) and getattr(module, "pooling_mode", None) == self.pooling_mode
        )


POOLINGS: list[PoolingSpec] = []


def declare_pooling(spec: PoolingSpec) -> None:
    """Register a pooling; from then on methods, cards and exports know it."""
    POOLINGS.append(spec)


def poolings_of(method_name: str) -> dict[str, PoolingSpec]:
    """The poolings that a method has, by name, its default first.

    Example:
        >>> list(poolings_of("nosink"))
        ['mean', 'last', 'cls']
    """
    specs = [spec for spec in POOLINGS if method_name in spec.methods]
    specs.sort(key=lambda spec: method_name not in spec.default_of)
    return {spec.name: spec for spec in specs}


def describe_poolings() -> str:
    """Each pooling with its methods, for help.

    Example:
        >>> describe_poolings().startswith("last (echo, classical, nosink, prompteol, reba), mean (")
        True
    """
    methods_by_name: dict[str, list[str]] = {}
    for spec in POOLINGS:
        methods_by_name.setdefault(spec.name, []).extend(spec.methods)
    descriptions = [f"{name} ({', '.join(methods)})" for name, methods in methods_by_name.items()]
    return ", ".join(descriptions)


def is_exportable(module: nn.Module) -> bool:
    """Whether an ONNX graph can hold a pooling module."""
    return any(spec.is_exportable(module) for spec in POOLINGS)


declare_pooling(
    PoolingSpec(
        name="last",
        methods=("echo", "classical", "nosink"),
        formula="v_t at the last of {positions}",
        pooling_mode="lasttoken",
        default_of=("echo", "classical"),
        readout="last",
    )
)
declare_pooling(
    PoolingSpec(
        name="last",
        methods=("prompteol",),
        formula="v_t at the last of {positions}",
        pooling_mode="lasttoken",
        positions="end",
        default_of=("prompteol",),
        readout="end",
    )
)
declare_pooling(
    PoolingSpec(
        name="mean",
        methods=("echo", "classical", "nosink"),
        formula="the mean of v_t over {positions}",
        pooling_mode="mean",
        default_of=("nosink",),
        readout="mean",
    )
)
declare_pooling(
    PoolingSpec(
        name="cls",
        methods=("classical", "nosink"),
        formula="v_t at the first of {positions}",
        pooling_mode="cls",
        positions="all",
    )
)


@dataclass(frozen=True)
class BackwardAttentionSpec(PoolingSpec):
    """Declaration of one of ReBA's poolings; ``authors_weights``: the a_t of its authors' code."""

    authors_weights: str = ""

    def describe(
        self,
        options: PoolingOptions,
        positions_in_words: str,
    ) -> list[str]:
        """Lines of the formula on a card, of which the last is what the vector is."""
        lines = ["A^new = max over l and h of (A^{l,h} + (A^{l,h})ᵀ) / 2"]
        if options.implementation == "authors":
            weighted_mean = "Σ_t a_t · v_t / Σ_t a_t over all positions t"
            return [*lines, f"{weighted_mean}, a_t = {self.authors_weights}"]
        summed = "all positions" if options.include_special else "the content positions"
        if options.chunk is None:
            lines.append(f"e_i   = Σ_t A^new[p_i, t] · v_t over {summed} t ≥ p_i,")
            lines.append("        p_i the position of token i in copy 1")
        else:
            token_sum = f"A^new[p_i, p_i] · v_i + Σ_t A^new[p_i, t] · v'_t over {summed} t > p_i"
            lines.append(f"e_i   = {token_sum} of the piece's own run,")
            lines.append("        v' its hidden states, p_i the position of token i in its copy 1")
        if options.normalize_weights:
            lines.append("        the weights of each e_i divided by their sum")
        return [*lines, self.formula]

    def build(
        self,
        options: PoolingOptions,
        width: int,
    ) -> nn.Module:
        """The module, for hidden states of dimension ``width``."""
        from . import modules

        if options.implementation == "authors":
            return modules.AuthorsReBAPooling(width, self.name)
        weighting = {
            "include_special": options.include_special,
            "normalize_weights": options.normalize_weights,
        }
        if options.chunk is None:
            return modules.ReBAPooling(width, self.name, **weighting)
        return modules.ChunkedReBAPooling(
            width, self.name, chunk=options.chunk, repeats=options.repeats or 2, **weighting
        )

    def is_exportable(self, module: nn.Module) -> bool:
        """Whether a module is this pooling, and an ONNX graph can hold it."""
        from . import modules

        is_chunked = isinstance(module, modules.ChunkedReBAPooling)
        return isinstance(module, modules.ReBAPooling) and not is_chunked


declare_pooling(
    BackwardAttentionSpec(
        name="last",
        methods=("reba",),
        formula="e_n, of the last token",
        authors_weights="A^new[T, t], T the last position of the input",
        default_of=("reba",),
        readout="reba-last",
    )
)
declare_pooling(
    BackwardAttentionSpec(
        name="mean",
        methods=("reba",),
        formula="(1/n) Σ_i e_i",
        authors_weights="Σ A^new[i, t], i ≤ t in the first half",
        readout="reba-mean",
    )
)
