"""A SentenceTransformer as mteb takes it: batches by token budget, each text once, a prompt a task, and a name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ...batches import position_counts
from ...encode import Task, encode_texts
from ..methods import Limit
from ..results import slug
from .package import mteb_module
from .prompts import Prompts

# Vectors that are kept for texts that come again within a task: of a large corpus only the first ones.
KEPT_BYTES = 1 << 30
# Where encode_query and encode_document look for a saved prompt.
_SAVED = {None: (), "query": ("query",), "document": ("document", "passage", "corpus")}


@dataclass
class Counts:
    """What a task took.

    Args:
        items: Texts that are scored: queries of a search, both texts of a pair, none that only train.
        texts: Distinct texts encoded.
        tokens: Their positions, all copies included; None: the model's input has no such thing.
        seconds: That encoding took.
    """

    items: int = 0
    texts: int = 0
    tokens: int | None = 0
    seconds: float = 0.0


class Encoder:
    """mteb's ``EncoderProtocol`` around a SentenceTransformer.

    Args:
        model: The embedder.
        meta: Its ``ModelMeta``: see :func:`model_meta`.
        prompts: What stands before texts, task by task; where it has nothing, the model's own saved prompts do.
        limit: How much of a text is read, prompts not counted.
        batch_size: Texts a forward pass, in place of the next.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_texts`.
        show_progress_bar: Show a bar of texts; None: on a terminal.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        meta: Any,
        prompts: Prompts | None = None,
        *,
        limit: Limit | None = None,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> None:
        self.model = model
        self.meta = meta
        self.prompts = prompts or Prompts()
        self.counts = Counts()
        self._limit = limit or Limit()
        self._sizes: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens}
        self._disable = None if show_progress_bar is None else not show_progress_bar
        self._roles = has_roles(model)
        self._kept: dict[tuple[str, str | None], dict[str, NDArray[np.float32]]] = {}
        self._room = KEPT_BYTES

    def start(self, meta: Any, prompts: Prompts) -> None:
        """Forget a task's vectors and counts, before the next one.

        Args:
            meta: The next one's ``ModelMeta``.
            prompts: Its prompts.
        """
        self.meta, self.prompts = meta, prompts
        self.counts, self._kept, self._room = Counts(), {}, KEPT_BYTES

    @property
    def mteb_model_meta(self) -> Any:
        """The model's name, under which mteb keeps results."""
        return self.meta

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """Encode a task's texts.

        Args:
            inputs: Batches with a list of ``text``; how many are in one changes nothing.
            task_metadata: mteb's, of which the name selects the prompt.
            hf_split: Split that they come from.
            hf_subset: Subset that they come from.
            prompt_type: Whether they are queries or documents; None: neither.
            **kwargs: mteb's own, which the sizes given here replace.

        Returns:
            [texts, d] float32, in their order.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role: Task | None = None if prompt_type is None else prompt_type.value
        prompt = self._prompt(task_metadata.name, role)
        if role != "document" and hf_split in task_metadata.eval_splits:
            self.counts.items += len(texts)
        # Without templates or prompts of their own, a query and a document with the same text have the same vector.
        called = role if self._roles else None
        kept = self._kept.setdefault((prompt or "", called), {})
        new = [text for text in dict.fromkeys(texts) if text not in kept]
        if not new:
            return np.stack([kept[text] for text in texts])
        vectors = self._encode(new, prompt, called, task_metadata.name)
        fresh = dict(zip(new, vectors, strict=True))
        whole = len(new) == len(texts)
        found = vectors if whole else np.stack([fresh[text] if text in fresh else kept[text] for text in texts])
        if vectors.nbytes <= self._room:
            self._room -= vectors.nbytes
            kept.update(fresh)
        return found

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The model's similarity of all pairs: [n, m]."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The model's similarity of the i-th with the i-th: [n]."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    def _prompt(self, task: str, role: Task | None) -> str | None:
        instruction = self.prompts.instruction(task, role)
        if instruction is None:
            names = [*_SAVED[role if self._roles else None], self.model.default_prompt_name]
            return next((self.model.prompts[name] for name in names if name in self.model.prompts), None)
        fields = getattr(self.model[0], "fields", None)
        # Without a role, whoever gives an instruction means a query's template.
        if fields is not None and any("instruction" in fields(each) for each in ([role] if role else [None, "query"])):
            return instruction
        return self.prompts.written(instruction, role)

    def _encode(self, texts: list[str], prompt: str | None, role: Task | None, task: str) -> NDArray[np.float32]:
        start = time.monotonic()
        self._limit.fit(self.model, prompt, role)
        given: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
        with tqdm(
            total=len(texts), desc=f"  {task}", unit=" texts", position=1, leave=False, disable=self._disable
        ) as bar:
            vectors = encode_texts(self.model, texts, task=role, progress=bar.update, **self._sizes, **given)
        counts = self.counts
        positions = position_counts(self.model, texts, prompt=prompt, task=role)
        counts.tokens = None if positions is None or counts.tokens is None else counts.tokens + sum(positions)
        counts.texts += len(texts)
        counts.seconds += time.monotonic() - start
        return vectors


def has_roles(model: SentenceTransformer) -> bool:
    """Whether queries and documents differ: in their templates or in their saved prompts."""
    saved = [model.prompts.get(name) for role in ("query", "document") for name in _SAVED[role]]
    if any(saved) or model.default_prompt_name is not None:
        return True
    layout = getattr(model[0], "token_layout", None)
    return layout is not None and any(each["query"] != each["document"] for each in layout.templates)


def model_meta(name: str, revision: str, model: SentenceTransformer | None = None) -> Any:
    """mteb's description of a model, made from what is here: no name is looked up anywhere.

    Args:
        name: What it is called; mteb keeps results by name and revision.
        revision: A hash of all that its vectors depend on.
        model: The embedder; None: it is not built yet.

    Example:
        >>> model_meta("mini reba-2 last", "00ff").name  # doctest: +SKIP
        'st-reba/mini-reba-2-last--00ff'
    """
    models = mteb_module("mteb.models")
    known: dict[str, Any] = {"framework": ["Sentence Transformers", "PyTorch"]}
    if model is not None:
        scoring = mteb_module("mteb.models.model_meta").ScoringFunction
        known |= {
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "max_tokens": model.max_seq_length,
            "embed_dim": model.get_embedding_dimension(),
            "similarity_fn_name": scoring(model.similarity_fn_name),
        }
    known |= {"name": f"st-reba/{slug(name)}--{revision[:8]}", "revision": revision}
    return models.ModelMeta.create_empty(known)
