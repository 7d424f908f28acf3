"""Plain files as tasks of mteb: read and checked here, encoded and scored by mteb's own code."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..labelled import as_label
from ..reading import divide, shuffled
from ..tasks import MIN_ITEMS
from .files import KINDS, Items, merged, read_items
from .local_ranking import PARTS, Ranking, from_files, from_items, in_folder
from .local_spec import TEST_FRACTION, Definition, check_name, read_definitions
from .package import mteb_module

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

_FORMAT = 1
SPLIT = "test"


@dataclass(frozen=True)
class _Protocol:
    """What mteb has for a kind: its class, category and main score, and what other scores are called."""

    base: str
    category: str
    main: str
    scores: str


_PAIRS = "(similarity|cosine|manhattan|euclidean|dot|max)_(accuracy|f1|precision|recall|ap)"
_RANKS = r"(ndcg|map|recall|precision|mrr|hit_rate)_at_(\d+)|accuracy"
_MTEB = dict(
    zip(
        KINDS,
        (
            _Protocol("AbsTaskSTS", "t2t", "cosine_spearman", "((cosine|manhattan|euclidean)_)?(pearson|spearman)"),
            _Protocol("AbsTaskPairClassification", "t2t", "max_ap", _PAIRS),
            _Protocol("AbsTaskClassification", "t2c", "accuracy", "accuracy|((f1|precision|recall)(_weighted)?)"),
            _Protocol("AbsTaskClustering", "t2c", "v_measure", "v_measure|ami"),
            _Protocol("AbsTaskRetrieval", "t2t", "map_at_1000", _RANKS),
            _Protocol("AbsTaskRetrieval", "t2t", "ndcg_at_10", _RANKS),
        ),
        strict=True,
    )
)


@dataclass
class _Data:
    """What a task is made of.

    Args:
        parts: The values that decide the score, as JSON can hold them; with what else does, the revision.
        size: Number of pairs, of texts (of the test part) or of queries.
        words: What they are, for people.
        settings: Attributes of mteb's class.
        left_out: The reason, and which.
    """

    parts: dict[str, Any]
    size: int
    words: str
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)


class _Local:
    """What a task of plain files has beside its kind's own code: data that are at hand."""

    seed: int
    data: _Data
    left_out: dict[str, list[str]]
    size: int

    def load_data(self, num_proc: int | None = None, **options: Any) -> None:
        """Make the data sets of mteb; reads no file and no network."""
        self.dataset = _datasets(self.data.parts)
        self.data_loaded = True

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """As mteb; but every model meets the same draws, where mteb's would go on where the last model's ended."""
        self.rng_state = random.Random(self.seed)
        self.np_rng = np.random.default_rng(self.seed)
        return super().evaluate(*arguments, **options)  # type: ignore[misc]


def read_local(spec: str, *, limit: int | None = None, seed: int = 0) -> list[AbsTask]:
    """Read tasks of plain files: real tasks of mteb, whose data lie on this machine.

    ==================  ==========================================  =========================  =================
    kind                roles of the columns                        main score                 limit is of
    ==================  ==========================================  =========================  =================
    STS                 text1, text2, score                         cosine_spearman            pairs
    PairClassification  text1, text2, label (0 or 1)                max_ap                     pairs
    Classification      text, label                                 accuracy                   texts a part
    Clustering          text, label                                 v_measure                  texts
    Reranking           query, document, relevance (0, 1, 2, …)     map_at_1000                queries
    Retrieval           query, document, relevance                  ndcg_at_10                 queries
    ==================  ==========================================  =========================  =================

    Args:
        spec: ``KIND=PATH``, whose columns are guessed; or a tasks file (``.yaml``).
        limit: Use so many rows or queries of each task, drawn by the seed.
        seed: Of this draw, of the parts of one file, and of mteb's own draws (``task.seed``).

    Returns:
        The tasks. Each has ``left_out``, the rows or queries that are not used, by the reason, and ``size``.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: The definition or the data do not fit; the message names the file, the line and what to do.
        ImportError: mteb is not installed.

    Example:
        >>> with open("pairs.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("text1,text2,score\\n")
        ...     _ = file.writelines(f"text {n},text {n % 7},{n % 5}\\n" for n in range(40))
        >>> (task,) = read_local("STS=pairs.csv", limit=20)
        >>> task.metadata.name, task.metadata.main_score, task.size
        ('pairs', 'cosine_spearman', 20)
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit={limit!r} must be a whole number from 1 on, or None.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 on.")
    definitions = read_definitions(spec)
    for each in definitions:
        check_name(each.name, each.where)
    mteb_module("mteb")
    taken = {task.metadata.name.casefold(): task.metadata.name for task in mteb_module("mteb.get_tasks").TASK_LIST}
    for each in definitions:
        if theirs := taken.get(each.name.casefold()):
            raise ValueError(
                f"{each.where}: {theirs!r} is a task of mteb's own, whose results these would be taken for. Give it "
                f"another name in a tasks file, as name: {each.name}-local."
            )
    return [_task(each, limit, seed) for each in definitions]


def _task(definition: Definition, limit: int | None, seed: int) -> AbsTask:
    try:
        mteb_module("mteb.languages.check_language_code").check_language_code(definition.language)
    except ValueError as error:
        message = f"{definition.where}: language={definition.language!r} is not known to mteb: {error}"
        raise ValueError(message) from None
    limits = [each for each in (limit, definition.limit) if each is not None]
    data = _READERS[definition.kind](definition, min(limits, default=None), seed)
    protocol = _MTEB[definition.kind]
    base = getattr(mteb_module("mteb.abstasks"), protocol.base)
    if "k_values" in data.settings:
        data.settings["k_values"] = tuple(sorted({*base.k_values, *data.settings["k_values"]}))
    main = definition.main_score or protocol.main
    _check_score(definition, main, data.settings.get("k_values", getattr(base, "k_values", ())))
    content = [_FORMAT, definition.kind, main, data.parts, data.settings, seed]
    metadata = mteb_module("mteb.abstasks.task_metadata").TaskMetadata(
        name=definition.name,
        description=f"{definition.kind} of plain files: {data.words}.",
        dataset={
            "path": definition.name,
            "revision": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        },
        type=definition.kind,
        category=protocol.category,
        modalities=["text"],
        eval_splits=[SPLIT],
        eval_langs=[definition.language],
        main_score=main,
    )
    # A class of its own: mteb looks at the classes of its tasks, and drops what an instance has when it unloads data.
    made = type(
        f"Local{definition.kind}",
        (_Local, base),
        {**data.settings, "metadata": metadata, "data": data, "left_out": data.left_out, "size": data.size},
    )
    task: AbsTask = made(seed=seed)
    return task


def _check_score(definition: Definition, name: str, k_values: Sequence[int]) -> None:
    match = re.fullmatch(_MTEB[definition.kind].scores, name)
    if match is None:
        raise ValueError(
            f"{definition.where}: main_score={name!r} is none that mteb computes for {definition.kind}; write one as "
            f"{_MTEB[definition.kind].main}."
        )
    if "_at_" in name and int(match[2]) not in k_values:
        raise ValueError(f"{definition.where}: main_score={name!r} needs k_values: [{match[2]}].")


def _datasets(parts: Mapping[str, Any]) -> Any:
    """The parts, as mteb's own loaders would leave them."""
    datasets = mteb_module("datasets")
    if "queries" not in parts:
        return datasets.DatasetDict({name: datasets.Dataset.from_dict(part) for name, part in parts.items()})
    texts = {
        role: datasets.Dataset.from_dict({"id": list(parts[role]), "text": list(parts[role].values())})
        for role in ("queries", "corpus")
    }
    # Copies: mteb replaces what it filters.
    judged = {query: dict(grades) for query, grades in parts["relevant_docs"].items()}
    ranked = parts["top_ranked"] and {query: list(documents) for query, documents in parts["top_ranked"].items()}
    return {"default": {SPLIT: {**texts, "relevant_docs": judged, "top_ranked": ranked}}}


# --- kinds


def _read(definition: Definition, part: str = "all") -> Items:
    try:
        return read_items(
            definition.sources[part],
            definition.kind,
            columns=definition.columns,
            labels=definition.labels,
            bad_lines=definition.bad_lines,
        )
    except ValueError as error:
        raise ValueError(_at(definition, str(error))) from None


def _at(definition: Definition, message: str) -> str:
    """A message, and the entry of a tasks file that it is about."""
    return f"{message} ({definition.where})" if definition.listed else message


def _drawn(items: list[Any], labels: Sequence[object], limit: int | None, seed: int) -> list[Any]:
    """Some of the items, in the file's order: one at least of each label, and otherwise as many as its share."""
    if limit is None or limit >= len(items):
        return items
    groups: dict[object, list[int]] = {}
    for index in shuffled(range(len(items)), seed, "limit"):
        groups.setdefault(labels[index], []).append(index)
    ranked = [
        ((rank + 0.5) / len(group) if rank else 0.0, order, index)
        for order, group in enumerate(groups.values())
        for rank, index in enumerate(group)
    ]
    return [items[index] for *_, index in sorted(sorted(ranked)[:limit], key=lambda each: each[2])]


def _enough(definition: Definition, count: int, what: str, where: str) -> None:
    if count < MIN_ITEMS:
        message = (
            f"{where}: {count} {what}, but {MIN_ITEMS} are needed at the least. Raise the limit, or use more data."
        )
        raise ValueError(_at(definition, message))


def _two(definition: Definition, labels: Sequence[object], what: str, where: str) -> None:
    if len(set(labels)) < 2:
        message = f"{where}: all {what} {labels[0]!r}; two different ones are needed. Use another file, or its whole."
        raise ValueError(_at(definition, message))


def _sts(definition: Definition, limit: int | None, seed: int) -> _Data:
    found = _read(definition)
    items = _drawn(found.items, [0] * len(found.items), limit, seed)
    _enough(definition, len(items), "pairs", found.where)
    first, second, scores = zip(*items, strict=True)
    _two(definition, scores, "pairs have the score", found.where)
    columns = {"sentence1": list(first), "sentence2": list(second), "score": list(scores)}
    return _Data({SPLIT: columns}, len(items), f"{len(items)} pairs", left_out=found.left_out)


def _pair_classification(definition: Definition, limit: int | None, seed: int) -> _Data:
    found = _read(definition)
    items = _drawn(found.items, [label for *_, label in found.items], limit, seed)
    _enough(definition, len(items), "pairs", found.where)
    first, second, labels = zip(*items, strict=True)
    _two(definition, labels, "pairs have the label", found.where)
    columns = {"sentence1": list(first), "sentence2": list(second), "labels": list(labels)}
    return _Data({SPLIT: columns}, len(items), f"{len(items)} pairs", left_out=found.left_out)


def _classification(definition: Definition, limit: int | None, seed: int) -> _Data:
    settings = dict(definition.settings)
    fraction = settings.pop("test_fraction", TEST_FRACTION)
    if "all" in definition.sources:
        found = _read(definition)
        where, left_out = {"train": found.where, SPLIT: found.where}, found.left_out
        _two(definition, [label for _, label in found.items], "texts have the label", found.where)
        divided = divide(found.items, ["train", "heldout"], fraction, seed, stratify=True)
        parts = {"train": divided["train"], SPLIT: divided["heldout"]}
    else:
        both = {part: _read(definition, part) for part in ("train", SPLIT)}
        where, left_out = {part: each.where for part, each in both.items()}, merged(x.left_out for x in both.values())
        parts = {part: each.items for part, each in both.items()}
    parts = {part: _drawn(items, [label for _, label in items], limit, seed) for part, items in parts.items()}
    for part, items in parts.items():
        _enough(definition, len(items), f"texts for {part}", where[part])
        _two(definition, [label for _, label in items], f"texts for {part} have the label", where[part])
    trained, tested = ({label for _, label in parts[part]} for part in ("train", SPLIT))
    if strange := _sorted(tested - trained):
        message = (
            f"{where[SPLIT]}: test has the label {strange[0]!r}, which train has no text of; train's are "
            f"{_sorted(trained)[:20]}. Take files of the same labels, or map it to null in labels to leave it out."
        )
        raise ValueError(_at(definition, message))
    # The labels of test first: where they are two, mteb computes a score that takes them for 0 and 1.
    codes = {label: code for code, label in enumerate([*_sorted(tested), *_sorted(trained - tested)])}
    columns = {
        part: {"text": [text for text, _ in items], "label": [codes[label] for _, label in items]}
        for part, items in parts.items()
    }
    words = f"{len(parts['train'])} texts for train, {len(parts[SPLIT])} for test, {len(codes)} labels"
    return _Data(columns, len(parts[SPLIT]), words, settings, left_out)


def _clustering(definition: Definition, limit: int | None, seed: int) -> _Data:
    found = _read(definition)
    items = _drawn(found.items, [label for _, label in found.items], limit, seed)
    _enough(definition, len(items), "texts", found.where)
    counts = Counter(label for _, label in items)
    _two(definition, list(counts), "texts have the label", found.where)
    settings = dict(definition.settings)
    fraction = mteb_module("mteb.abstasks").AbsTaskClustering.max_fraction_of_documents_to_embed
    if "max_document_to_embed" in settings:
        settings["max_fraction_of_documents_to_embed"] = None
    elif len(items) < len(found.items) and "max_fraction_of_documents_to_embed" not in settings:
        # The limit caps what mteb's own sample would be, rather than being sampled once more.
        settings["max_document_to_embed"] = min(len(items), max(len(counts), int(fraction * len(found.items))))
        settings["max_fraction_of_documents_to_embed"] = None
    share = settings.get("max_fraction_of_documents_to_embed", fraction)
    embedded = settings.get("max_document_to_embed") if share is None else int(share * len(items))
    if embedded is None or min(embedded, len(items)) < len(counts):
        message = (
            f"{found.where}: mteb embeds {embedded} of {len(items)} texts, fewer than their {len(counts)} labels. Set "
            "max_fraction_of_documents_to_embed: 1 in a tasks file, or use a larger file."
        )
        raise ValueError(_at(definition, message))
    codes = {label: code for code, label in enumerate(_sorted(counts))}
    columns = {"sentences": [text for text, _ in items], "labels": [codes[label] for _, label in items]}
    words = f"{len(items)} texts, {len(codes)} labels, {min(embedded, len(items))} texts embedded"
    return _Data({SPLIT: columns}, len(items), words, settings, found.left_out)


def _ranking(definition: Definition, limit: int | None, seed: int) -> _Data:
    source, kind = definition.sources["all"], definition.kind
    if isinstance(source, Path) and source.is_dir():
        source = in_folder(source)
    if not isinstance(source, Path) and set(source) == set(PARTS):
        if definition.labels is not None or definition.bad_lines != "error":
            raise ValueError(f"{definition.where}: labels and bad_lines are not for files of {list(PARTS)}. Drop them.")
        whole: Ranking = from_files(source, definition.columns)
    else:
        whole = from_items(_read(definition))
    chosen = whole.chosen(kind, limit, seed)
    parts = {
        "queries": chosen.queries,
        "corpus": chosen.documents,
        "relevant_docs": chosen.judged,
        "top_ranked": {query: list(grades) for query, grades in chosen.judged.items()} if kind == "Reranking" else None,
    }
    words = f"{len(chosen.queries)} queries, {len(chosen.documents)} documents"
    return _Data(parts, len(chosen.queries), words, dict(definition.settings), chosen.left_out)


def _sorted(labels: Any) -> list[str]:
    """Labels in order; as numbers, where they all are."""
    names = [as_label(label) for label in labels]
    return sorted(names, key=(lambda each: (int(each), each)) if all(map(str.isdecimal, names)) else None)


_READERS = {
    "STS": _sts,
    "PairClassification": _pair_classification,
    "Classification": _classification,
    "Clustering": _clustering,
    "Reranking": _ranking,
    "Retrieval": _ranking,
}
