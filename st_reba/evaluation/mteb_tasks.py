"""mteb's own tasks, by their names or as the papers' sets, scored by mteb's own code."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ..encode import PROMPT_NAMES, Task
from ..optional import required
from .encoding import Progress, Prompts, encoded
from .instructions import Instructions
from .methods import Limit
from .reading import KINDS
from .results import one_line, slug

_SUITES = Path(__file__).with_name("suites.yaml")
# As many digits as mteb's files hold, so that a result is the same whether it comes from there or from a run.
_DIGITS = 6
# Vectors that are kept for texts that come again within a task: of a large corpus only the first ones.
_KEPT_BYTES = 1 << 30
# Rows that mteb hands over at a time; how they run is decided by token budget.
_HANDED_OVER = 1024
# What a kind of task lets a subclass set, and its scores depend on.
_PROTOCOL = (
    "samples_per_label",
    "n_experiments",
    "train_split",
    "is_cross_validation",
    "n_splits",
    "max_fraction_of_documents_to_embed",
    "max_document_to_embed",
    "max_documents_per_cluster",
    "n_clusters",
    "k_mean_batch_size",
    "max_depth",
    "ignore_identical_ids",
    "skip_first_result",
    "k_values",
    "min_score",
    "max_score",
)


class NoData(ValueError):
    """A task's data cannot be loaded."""


def mteb_module(module: str = "mteb") -> Any:
    """mteb, or a module of it or of what it needs."""
    return required(module, "mteb", "mteb's own tasks need mteb (files of your own do without it)")


@dataclass(frozen=True)
class Suite:
    """A set of mteb's tasks that a paper scores.

    Args:
        name: What people ask for.
        source: The paper, and where it names the tasks.
        scores: Whose metric the paper's tables hold: ``"mteb"``: its main score; ``"reba"``: ReBA's, by kind.
        tasks: mteb's names, by kind.
        prompts: Name of the instructions that the paper puts in front; None: none.
        splits: Of tasks that are scored on others than mteb's default.
        subsets: Of multilingual tasks: those of the paper's language.
    """

    name: str
    source: str
    scores: Literal["mteb", "reba"]
    tasks: Mapping[str, Sequence[str]]
    prompts: str | None = None
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All tasks, kind by kind."""
        return [name for names in self.tasks.values() for name in names]


@cache
def suites() -> dict[str, Suite]:
    """The papers' sets of tasks, by name.

    Example:
        >>> {name: len(suite.names) for name, suite in suites().items()}
        {'C-MTEB': 31, 'MTEB-15': 15, 'MTEB-MINI': 26, 'MTEB-56': 56}
    """
    values = yaml.safe_load(_SUITES.read_text(encoding="utf-8"))
    return {name: Suite(name, **suite) for name, suite in values.items()}


@dataclass(frozen=True)
class MtebTask:
    """A task of mteb.

    Args:
        task: mteb's object.
        prompts: Name of the instructions that belong to it where nothing else is asked for.
    """

    task: Any
    prompts: str | None = None

    @property
    def name(self) -> str:
        """mteb's name of the task."""
        return str(self.task.metadata.name)

    @property
    def kind(self) -> str:
        """mteb's type of the task."""
        return str(self.task.metadata.type)

    @property
    def parts(self) -> list[Any]:
        """The tasks that are run for it: itself, or those whose scores it averages."""

        def of(task: Any) -> list[Any]:
            return [part for each in task.metadata.tasks for part in of(each)] if task.is_aggregate else [task]

        return of(self.task)

    @property
    def names(self) -> list[str]:
        """By which instructions may name it: those of its parts."""
        return [part.metadata.name for part in self.parts]

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What its scores depend on, beside the model and the seed: its data, and how mteb scores it."""
        task, metadata = self.task, self.task.metadata
        protocol = {name: getattr(task, name) for name in _PROTOCOL if hasattr(task, name)}
        return {
            "name": metadata.name,
            "type": metadata.type,
            "data": [part.metadata.dataset["revision"] for part in self.parts],
            "splits": list(task.eval_splits),
            "subsets": sorted(task.hf_subsets),
            "main": metadata.main_score,
            "protocol": {name: list(value) if isinstance(value, tuple) else value for name, value in protocol.items()},
        }

    def __post_init__(self) -> None:
        for part in self.parts:
            if list(part.metadata.modalities) != ["text"]:
                raise ValueError(f"tasks: {part.metadata.name!r} is of {part.metadata.modalities}, not of text alone.")
            revision = part.metadata.dataset.get("revision")
            if not revision or revision in ("NA", "N/A"):
                raise ValueError(
                    f"tasks: {part.metadata.name!r} has revision={revision!r}, so that its results could be taken for "
                    "those of other data. Set metadata.dataset['revision'] to a hash of the data."
                )

    def scores(self, encoder: Encoder, folder: Path, seed: int) -> dict[str, float]:
        """The metrics of a model: mteb's own, averaged over splits and subsets as mteb averages its main score.

        Args:
            encoder: The model, as mteb takes it.
            folder: Where mteb keeps its own files.
            seed: Of all that mteb draws.

        Raises:
            NoData: The data cannot be loaded.
            ValueError: mteb gives no finite main score.
        """
        mteb = mteb_module()
        with self._loaded(seed), _quiet():
            cache = mteb.ResultCache(folder)
            _draw_anew(self, seed)
            answer = mteb.evaluate(
                encoder,
                self.task,
                co2_tracker=False,
                cache=cache,
                overwrite_strategy=self._strategy(cache, encoder.meta),
                encode_kwargs={"batch_size": _HANDED_OVER, "show_progress_bar": False},
                show_progress_bar=False,
            )
        if not answer.task_results:
            raise ValueError("; ".join(each.exception for each in answer.exceptions or ()) or "mteb gave no result")
        return self._averaged(answer.task_results[0].scores)

    def _averaged(self, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
        rows = [
            row
            for split in self.task.eval_splits
            for row in found.get(split, ())
            if self.task.is_aggregate or row["hf_subset"] in self.task.hf_subsets
        ]
        scores = {}
        for name in (name for name in (rows[0] if rows else ()) if name != "main_score"):
            values = [row.get(name) for row in rows]
            if all(isinstance(each, (int, float)) and math.isfinite(each) for each in values):
                scores[name] = math.fsum(round(float(each or 0), _DIGITS) for each in values) / len(values)
        main = self.task.metadata.main_score
        if main not in scores:
            shown = [row.get(main) for row in rows]
            raise ValueError(
                f"its main score {main!r} is {shown}: no finite number. Are all vectors, or all labels, the same?"
            )
        return scores

    def paper(self, scores: Mapping[str, float]) -> str | None:
        """The papers' metric where it is not the main score: ReBA's; Echo and NoSink report mteb's own."""
        mtebs = any(suite.scores == "mteb" and self.name in suite.names for suite in suites().values())
        kind = None if mtebs else KINDS.get(self.kind)
        metric = None if kind is None else kind.paper or kind.main
        return metric if metric in scores and metric != self.task.metadata.main_score else None

    def _strategy(self, cache: Any, meta: Any) -> str:
        """Whether what mteb kept may be used: it does not itself ask whether data or mteb's version are the same."""
        for part in (self.task, *self.parts):
            try:
                kept = cache.load_task_result(part.metadata.name, meta)
            except Exception:
                # It writes its files in place: a run that was killed may leave half of one.
                return "always"
            if kept is not None and (
                kept.dataset_revision != part.metadata.dataset["revision"]
                or kept.mteb_version != mteb_module().__version__
            ):
                return "always"
        return "only-missing"

    @contextmanager
    def _loaded(self, seed: int) -> Iterator[None]:
        """The task with its data; what was not in memory before is not afterwards."""
        task = self.task
        before = task.data_loaded
        # mteb's removal of the data also takes the metadata of a task that is not one of its own.
        metadata = vars(task).get("metadata")
        if not before and not task.is_aggregate:
            _draw_anew(self, seed)
            try:
                task.load_data()
            except Exception as error:
                raise NoData(
                    f"its data ({task.metadata.dataset['path']}) cannot be loaded: {one_line(error)}. Data of mteb is "
                    "downloaded once, and read from its cache from then on"
                ) from error
        try:
            yield
        finally:
            if task.data_loaded and not before:
                task.unload_data()
                if metadata is not None:
                    task.metadata = metadata


def find_tasks(words: Iterable[Any]) -> list[MtebTask]:
    """mteb's tasks by name.

    Args:
        words: Names of the papers' sets, of mteb's tasks or benchmarks; or mteb's own objects.

    Raises:
        ValueError: A name is not known, or a task has no revision.
    """
    found: list[MtebTask] = []
    for word in words:
        if isinstance(word, str):
            found += _named(word)
        elif hasattr(word, "metadata"):
            found.append(MtebTask(word))
        else:
            raise ValueError(f"tasks: {word!r} is neither a name nor one of mteb's tasks.")
    return list({(each.name, each.prompts): each for each in found}.values())


def _named(word: str) -> list[MtebTask]:
    mteb = mteb_module()
    for suite in suites().values():
        if suite.name.lower() == word.lower():
            return [
                MtebTask(
                    mteb.get_task(name, eval_splits=suite.splits.get(name), hf_subsets=suite.subsets.get(name)),
                    suite.prompts,
                )
                for name in suite.names
            ]
    with suppress(KeyError):
        return [MtebTask(mteb.get_task(word))]
    with suppress(KeyError):
        return [MtebTask(task) for task in mteb.get_benchmark(word).tasks]
    names = [*suites(), *(task.metadata.name for task in mteb.get_tasks(exclude_superseded=False))]
    near = difflib.get_close_matches(word, names, n=3)
    raise ValueError(
        f"tasks: {word!r} is neither a file, nor one of the sets {list(suites())}, nor a task of mteb"
        + (f"; like it are {near}" if near else "")
        + ". A file of your own: its path, or KIND=PATH, as STS=pairs.tsv."
    )


class Encoder:
    """mteb's ``EncoderProtocol`` around a SentenceTransformer: by token budget, each text once, a prompt a task.

    Args:
        model: The embedder.
        meta: Its ``ModelMeta``: see :func:`model_meta`.
        instructions: What stands before texts, task by task; where it has nothing, the model's own saved prompts do.
        limit: How much of a text is read, prompts not counted.
        progress: Called after each batch.
        **sizes: ``batch_size`` or ``batch_tokens``.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        meta: Any,
        instructions: Instructions | None = None,
        *,
        limit: Limit | None = None,
        progress: Progress | None = None,
        **sizes: Any,
    ) -> None:
        self.model, self.meta = model, meta
        self.scored = 0
        """Texts that were scored: queries of a search, both texts of a pair, none that only train."""
        self._instructions, self._limit = instructions or Instructions(), limit or Limit()
        self._progress, self._sizes = progress, sizes
        self._roles = _has_roles(model)
        self._kept: dict[tuple[str, str | None], dict[str, NDArray[np.float32]]] = {}
        self._room = _KEPT_BYTES

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
            task_metadata: mteb's, of which the name selects the instruction.
            hf_split: Split that they come from.
            hf_subset: Subset that they come from.
            prompt_type: Whether they are queries or documents; None: neither.
            **kwargs: mteb's own, which the sizes given here replace.

        Returns:
            [texts, d] float32, in their order.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role: Task | None = None if prompt_type is None else prompt_type.value
        prompt = self._instructions.before(task_metadata.name, role, self.model)
        if role != "document" and hf_split in task_metadata.eval_splits:
            self.scored += len(texts)
        # Without templates or prompts of their own, a query and a document with the same text have the same vector.
        called = role if self._roles else None
        kept = self._kept.setdefault((prompt or "", called), {})
        new = [text for text in dict.fromkeys(texts) if text not in kept]
        if not new:
            return np.stack([kept[text] for text in texts])
        self._limit.fit(self.model, prompt, called)
        prompts = Prompts(prompt, prompt)
        vectors = encoded(self.model, new, called, progress=self._progress, prompts=prompts, **self._sizes)
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


def model_meta(name: str, revision: str, model: SentenceTransformer) -> Any:
    """mteb's description of a model, made from what is here: no name is looked up anywhere.

    Args:
        name: What it is called; mteb keeps results by name and revision.
        revision: A hash of all that its vectors depend on.
        model: The embedder.
    """
    known = {
        "name": f"st-reba/{slug(name)}--{revision[:8]}",
        "revision": revision,
        "framework": ["Sentence Transformers", "PyTorch"],
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "max_tokens": model.max_seq_length,
        "embed_dim": model.get_embedding_dimension(),
        "similarity_fn_name": mteb_module("mteb.models.model_meta").ScoringFunction(model.similarity_fn_name),
    }
    return mteb_module("mteb.models").ModelMeta.create_empty(known)


def _has_roles(model: SentenceTransformer) -> bool:
    """Whether queries and documents differ: in their templates or in their saved prompts."""
    saved = [model.prompts.get(name) for names in PROMPT_NAMES.values() for name in names]
    if any(saved) or model.default_prompt_name is not None:
        return True
    layout = getattr(model[0], "token_layout", None)
    return layout is not None and any(each["query"] != each["document"] for each in layout.templates)


def _draw_anew(task: MtebTask, seed: int) -> None:
    """Put a task's generators to their start: a method's draws must not depend on the methods before it."""
    for each in {id(each): each for each in (task.task, *task.parts)}.values():
        each.seed = seed
        each.rng_state = random.Random(seed)
        each.np_rng = np.random.default_rng(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a bar for each step of preparing data."""
    bars = mteb_module("datasets.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
