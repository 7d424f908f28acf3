"""What st_reba does with a batch of texts, one method each, all on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .measuring import Run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from st_reba import ReBAPooling, RepeatTransformer

BASELINE = "Echo-2 last"
# Method, and options of st_reba.build, of what needs no attention: transformers' own SDPA runs it.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    BASELINE: ("echo", {"repeats": 2}),
    "classical last": ("classical", {}),
    "PromptEOL": ("prompteol", {}),
    "Echo-2 mean": ("echo", {"repeats": 2, "pooling": "mean"}),
}
REBA: dict[str, tuple[str, dict[str, Any]]] = {
    "ReBA-2 last": ("reba", {"repeats": 2}),
    "ReBA-2 mean": ("reba", {"repeats": 2, "pooling": "mean"}),
}
WORDS = "ReBA-2 words"


@dataclass(frozen=True)
class Work:
    """A way from texts to vectors.

    Args:
        name: What tables call it.
        forward: For some texts: a run of the modules on features that are ready, tokenization done.
        whole: For some texts: a run from text to vectors.
        copies: How often the backbone reads the content; None: some of it more often than the rest.
        shortest: Content tokens below which it is not measured.
    """

    name: str
    forward: Callable[[Sequence[str]], Run]
    whole: Callable[[Sequence[str]], Run]
    copies: int | None = 1
    shortest: int = 0


@dataclass(frozen=True)
class Loader:
    """Builds models on one backbone's weights, which they share.

    Args:
        folder: The backbone.
        dtype: Of the weights.
        device: Where they are.
        shared: The weights; empty before the first model.
    """

    folder: str
    dtype: str
    device: str
    shared: dict[str, Tensor]

    def build(self, method: str, **options: Any) -> SentenceTransformer:
        """A model of st_reba's."""
        import st_reba

        model = st_reba.build(self.folder, method, dtype=self.dtype, device=self.device, **options)
        model.eval()
        self.share(model[0].model)
        return model

    def share(self, backbone: Any) -> None:
        """Let a backbone use the weights of the first one."""
        if not self.shared:
            self.shared.update(backbone.state_dict())
        backbone.load_state_dict(self.shared, assign=True)


def ready(transformer: RepeatTransformer, texts: Sequence[str]) -> dict[str, Any]:
    """Features on the model's own device."""
    from sentence_transformers.util import batch_to_device

    return batch_to_device(transformer.preprocess(texts), next(transformer.model.parameters()).device)


def sentences(name: str, model: SentenceTransformer, copies: int | None = 1, shortest: int = 0) -> Work:
    """Sentence vectors of a model: its modules' forward, or its encode."""

    def forward(texts: Sequence[str]) -> Run:
        features = ready(cast("RepeatTransformer", model[0]), texts)
        return lambda: model(features)["sentence_embedding"]

    def whole(texts: Sequence[str]) -> Run:
        return lambda: model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)

    return Work(name, forward, whole, copies, shortest)


def words(model: SentenceTransformer) -> Work:
    """A word of each text: every e_i of its first copy, and their mean over the word's tokens."""
    import torch

    import st_reba

    transformer, pooling = cast("RepeatTransformer", model[0]), cast("ReBAPooling", model[1])

    watch = [pooling.token_capture]

    def forward(texts: Sequence[str]) -> Run:
        features = ready(transformer, texts)
        lengths = [len(text.split()) for text in texts]
        spans = torch.zeros(len(texts), max(lengths), dtype=torch.bool)
        for row, length in enumerate(lengths):
            spans[row, slice(*middle(length))] = True
        spans = spans.to(features["input_ids"].device)
        return lambda: pooling.span_embeddings(transformer(features, watch=watch), spans)

    def whole(texts: Sequence[str]) -> Run:
        items = []
        for text in texts:
            numbers = text.split()
            first, last = middle(len(numbers))
            start = len(" ".join([*numbers[:first], ""]))
            items.append((text, (start, start + len(" ".join(numbers[first:last])))))
        return lambda: st_reba.encode_words(model, items, batch_size=len(items))

    return Work(WORDS, forward, whole, 2)


def middle(length: int) -> tuple[int, int]:
    """A word of two tokens, or one, in the middle of a text: its first token, and the first after it."""
    return (length - 1) // 2, (length - 1) // 2 + min(2, length)


def with_sdpa(model: SentenceTransformer) -> SentenceTransformer:
    """Say what transformers chooses by itself wherever it can, so that nothing else is ever measured."""
    cast("RepeatTransformer", model[0]).model.set_attn_implementation("sdpa")
    return model


def plain_works(loader: Loader) -> list[Work]:
    """The baseline first, and what else needs no attention."""
    return [
        sentences(name, with_sdpa(loader.build(method, **options)), options.get("repeats", 1))
        for name, (method, options) in PLAIN.items()
    ]


def reba_works(loader: Loader) -> tuple[list[Work], SentenceTransformer]:
    """Backward attention: sentences by the last token and by the mean, and words; and the first one's model."""
    models = {name: loader.build(method, **options) for name, (method, options) in REBA.items()}
    first = next(iter(models.values()))
    return [*(sentences(name, model, 2) for name, model in models.items()), words(first)], first


def chunked_works(loader: Loader, chunk: int, longest: int, notes: list[str]) -> list[Work]:
    """Backward attention by pieces of the text, where a text has more than one."""
    if longest <= chunk:
        notes.append(f"ReBA by pieces of {chunk} tokens was left out: no text is longer")
        return []
    return [
        sentences(f"ReBA chunked {pooling}", loader.build("reba", pooling=pooling, chunk=chunk), None, chunk + 1)
        for pooling in ("last", "mean")
    ]


def nosink_works(loader: Loader, depth: int) -> list[Work]:
    """Layers that look both ways: a third of them without the sink, the paper's combination, and all of them."""
    # The paper's combination on 12 layers, and two thirds of any other depth.
    k = max(2, round(depth * 2 / 3))
    settings: dict[str, dict[str, Any]] = {
        "NoSink mask0-bidir": {"setting": "mask0-bidir", "k": max(1, depth // 3)},
        "NoSink mask0&bidir": {"setting": "mask0&bidir", "k": k, "k0": k // 2},
        "NoSink bidirectional": {"setting": "inplace-bidir", "k": "all"},
    }
    return [sentences(name, loader.build("nosink", **options)) for name, options in settings.items()]
