"""Linear classifiers on frozen vectors: named entities by word vectors, classes of texts by sentence vectors."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..batches import check_sizes, position_counts
from ..optional import required
from .counting import accuracy, class_counts, entity_counts, entity_scores, f1, macro_f1
from .labelled import Sentence
from .methods import Base, Limit, Method, identity
from .resampling import interval
from .results import Result, Results
from .tasks import ClassTask, TagTask, logistic_regression
from .vectors import sentence_vectors, unread_sentences, word_vectors

NER, DOMAIN = "NER", "Domain"
NO_LIMIT = Limit()
# Sentences whose word vectors exist at a time, where they are only to be classified.
_TOGETHER = 1000


def evaluate_ner(
    base: Base,
    methods: Sequence[Method],
    task: TagTask,
    results: Results,
    *,
    limit: Limit = NO_LIMIT,
    prompt: str | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    settings: Mapping[str, Any] | None = None,
    command: str = "",
    show_progress_bar: bool | None = None,
) -> list[Result]:
    """Score methods on named entities: a logistic regression on frozen word vectors, entity F1 as seqeval counts it.

    The vectors of all training words are held at once: words × dimension × 4 bytes (CoNLL-2003 with 4,096 dimensions:
    3.1 GiB). Where the machine has less memory than that, this is said before any text is run.

    Args:
        base: The base model.
        methods: The methods; a ReBA pipeline gives the words' e_i, others their hidden states in the last copy, so that
            the sentence pooling changes nothing.
        task: The sentences, as :func:`st_reba.evaluation.read_task` reads them.
        results: Where the results go, and are found again.
        limit: How much of a sentence a method reads. One that it does not read whole is not trained on, and nothing is
            found in it; it is named in the result.
        prompt: In front of every sentence.
        batch_size: Sentences a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass.
        settings: What else tells the results apart, as the sample's size; for the record.
        command: What runs it again, for the record.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A result a method: precision, recall and F1 of the held-out part, F1 of each type of entity, and the validation
        part's F1. The interval is that of other sentences.

    Raises:
        ValueError: A word has no token, a method reads too few sentences whole to train on, or the vectors do not fit.
        ImportError: The extra ``evaluation`` is not installed.

    Source:
        NoSink, section 3.2 (CoNLL-2003), where the linear classifier is trained in a way that is not told.

    Example:
        >>> from st_reba.evaluation.methods import read_methods
        >>> sentences = [((town, "is", "far"), ("B-LOC", "O", "O")) for town in ("Rome", "Oslo", "Lima") * 4]
        >>> task = TagTask("towns", *[tuple(sentences)] * 3)
        >>> found = evaluate_ner(Base("mini"), read_methods("classical,reba"), task, Results("out"))
        >>> [(result.method, result.scores["entity F1"]) for result in found]
        [('classical last', 1.0), ('reba-2 last', 1.0)]
    """
    required("seqeval.metrics", "evaluation")
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    check_sizes(**sizes)

    def score(model: SentenceTransformer, progress: Callable[[int], object]) -> dict[str, Any]:
        words = {
            "separator": task.separator,
            "subtoken": task.subtoken,
            "prompt": prompt,
            "progress": progress,
            **sizes,
        }
        unread = {part: _unread(model, sentences, words) for part, sentences in task.parts.items()}
        train = [each for place, each in enumerate(task.train) if place not in unread["train"]]
        if len({tag for _, tags in train for tag in tags}) < 2:
            raise ValueError(
                f"{task.name}: max_seq_length={model.max_seq_length} leaves {len(train)} of {len(task.train)} "
                "sentences to train on, with fewer than two tags. Raise --max-tokens."
            )
        check_memory(sum(len(tags) for _, tags in train), _dimension(model))
        vectors = word_vectors(model, [one for one, _ in train], **words)  # type: ignore[arg-type]
        classifier = logistic_regression(vectors, [tag for _, tags in train for tag in tags])
        del vectors
        found = {}
        for part in ("validation", "heldout"):
            sentences: Sequence[Sentence] = getattr(task, part)
            tagged = _tagged(model, classifier, sentences, unread[part], words)
            found[part] = entity_counts([tags for _, tags in sentences], list(tagged))
        progress(sum(map(len, unread.values())))
        counts, types = found["heldout"]
        scores = entity_scores(counts, types)
        scores["validation F1"] = entity_scores(*found["validation"])["entity F1"]
        overall = counts.sum(axis=1)
        return {
            "main": "entity F1",
            "scores": scores,
            "intervals": {"entity F1": interval(overall, f1)},
            "items": len(task.heldout),
            "left_out": _named(task, unread),
        }

    texts = [task.separator.join(words) for part in task.parts.values() for words, _ in part]
    runs = sum(len({words for words, _ in part}) for part in _pieces(task))
    work = _Work(NER, task, score, texts, runs, prompt, limit, settings or {}, command)
    return work.results(base, methods, results, show_progress_bar)


def evaluate_domain(
    base: Base,
    methods: Sequence[Method],
    task: ClassTask,
    results: Results,
    *,
    limit: Limit = NO_LIMIT,
    prompt: str | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    settings: Mapping[str, Any] | None = None,
    command: str = "",
    show_progress_bar: bool | None = None,
) -> list[Result]:
    """Score methods on classes of texts: a logistic regression (LBFGS, 100 iterations) on frozen sentence vectors.

    Args:
        base: The base model.
        methods: The methods.
        task: The texts, as :func:`st_reba.evaluation.read_task` reads them.
        results: Where the results go, and are found again.
        limit: How much of a text a method reads.
        prompt: In front of every text.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass.
        settings: What else tells the results apart, as the sample's size; for the record.
        command: What runs it again, for the record.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A result a method: accuracy and macro F1 of the held-out part, with the intervals of other texts, and the
        validation part's accuracy.

    Raises:
        ImportError: The extra ``evaluation`` is not installed.

    Source:
        NoSink, section 4.1 (domain tasks), without its oversampling of small data.

    Example:
        >>> from st_reba.evaluation.methods import read_methods
        >>> texts = [(f"{n} cats sleep", "cat") if n % 2 else (f"{n} ships sail", "ship") for n in range(30)]
        >>> task = ClassTask("cats or ships", tuple(texts[:10]), tuple(texts[10:20]), tuple(texts[20:]))
        >>> found = evaluate_domain(Base("mini"), read_methods("classical:pooling=mean"), task, Results("out"))
        >>> found[0].scores["accuracy"]
        1.0
    """
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    check_sizes(**sizes)
    examples = task.train + task.validation + task.heldout
    texts = [text for text, _ in examples]

    def score(model: SentenceTransformer, progress: Callable[[int], object]) -> dict[str, Any]:
        vectors = sentence_vectors(model, texts, prompt=prompt, progress=progress, **sizes)
        train, validation, heldout = np.split(vectors, [len(task.train), len(texts) - len(task.heldout)])
        classifier = logistic_regression(train, [label for _, label in task.train])
        right = classifier.predict(validation) == np.asarray([label for _, label in task.validation])
        counts = class_counts([label for _, label in task.heldout], classifier.predict(heldout).tolist())
        total = counts.sum(axis=0, keepdims=True)
        return {
            "main": "accuracy",
            "scores": {
                "accuracy": float(accuracy(total)[0]),
                "macro F1": float(macro_f1(total)[0]),
                "validation accuracy": float(right.mean()),
            },
            "intervals": {"accuracy": interval(counts, accuracy), "macro F1": interval(counts, macro_f1)},
            "items": len(task.heldout),
        }

    runs = len(set(texts))
    work = _Work(DOMAIN, task, score, texts, runs, prompt, limit, settings or {}, command)
    return work.results(base, methods, results, show_progress_bar)


def check_memory(words: int, dimension: int) -> None:
    """Whether so many word vectors can be held at once.

    Args:
        words: Their number.
        dimension: Of each.

    Raises:
        ValueError: They take more than all memory of the machine, where that is known.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    needed = words * dimension * 4
    if needed > memory > 0:
        raise ValueError(
            f"The vectors of {words} training words of {dimension} dimensions take {needed / 2**30:.1f} GiB, but the "
            f"machine has {memory / 2**30:.1f} GiB of memory. Train on a sample: limit (--limit)."
        )


@dataclass(frozen=True)
class _Work:
    """What is done with each method.

    Args:
        kind: Of the results.
        task: What is scored.
        score: The metrics of a model, as keyword arguments of ``Result``; tells how many texts it has run.
        texts: All texts of the task.
        runs: How many of them ``score`` runs.
        prompt: In front of every text.
        limit: How much of a text is read.
        settings: What else tells the results apart.
        command: What runs it again.
    """

    kind: str
    task: TagTask | ClassTask
    score: Callable[[SentenceTransformer, Callable[[int], object]], dict[str, Any]]
    texts: Sequence[str]
    runs: int
    prompt: str | None
    limit: Limit
    settings: Mapping[str, Any]
    command: str

    def results(
        self, base: Base, methods: Sequence[Method], results: Results, show_progress_bar: bool | None
    ) -> list[Result]:
        """A result a method: the one that is there, or a new one."""
        found = []
        disable = None if show_progress_bar is None else not show_progress_bar
        total, title = len(methods) * self.runs, f"{self.kind} {self.task.name}"
        with tqdm(total=total, desc=title, unit=" texts", disable=disable) as bar:
            for method in methods:
                bar.set_postfix_str(method.name)
                chosen = {**self.limit.settings, **({} if self.prompt is None else {"prompt": self.prompt})}
                same = identity(base, method, kind=self.kind, task=self.task.fingerprint, **chosen)
                result = results.find(same)
                if result is None:
                    result = self.result(base, method, same, chosen, bar.update)
                    results.add(result)
                    # The model is gone with the call; its memory is the next one's.
                    gc.collect()
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                else:
                    bar.update(self.runs)
                found.append(result)
        return found

    def result(
        self, base: Base, method: Method, same: str, chosen: Mapping[str, Any], progress: Callable[[int], object]
    ) -> Result:
        """Build a method's model, and score it."""
        model = self.limit.build(method, base, self.prompt)
        began = time.perf_counter()
        values = self.score(model, progress)
        seconds = time.perf_counter() - began
        distinct = list(dict.fromkeys(self.texts))
        counts = position_counts(model, distinct, prompt=self.prompt)
        return Result(
            kind=self.kind,
            task=self.task.name,
            base=base.label,
            method=method.name,
            identity=same,
            settings={**chosen, **self.settings},
            arguments=dict(method.arguments),
            texts=len(distinct),
            tokens=None if counts is None else sum(counts),
            seconds=round(seconds, 3),
            command=self.command,
            **values,
        )


def _pieces(task: TagTask) -> Iterator[Sequence[Sentence]]:
    """The sentences as they are run: the training part at once, the others some at a time."""
    yield task.train
    for part in (task.validation, task.heldout):
        for start in range(0, len(part), _TOGETHER):
            yield part[start : start + _TOGETHER]


def _tagged(
    model: SentenceTransformer,
    classifier: Any,
    sentences: Sequence[Sentence],
    unread: set[int],
    options: Mapping[str, Any],
) -> Iterator[Sequence[str]]:
    """The tags that a classifier gives; in a sentence that the method does not read whole it finds nothing."""
    for start in range(0, len(sentences), _TOGETHER):
        places = range(start, min(start + _TOGETHER, len(sentences)))
        words = [sentences[place][0] for place in places if place not in unread]
        predicted = iter(classifier.predict(word_vectors(model, words, **options)).tolist() if words else ())
        for place in places:
            size = len(sentences[place][0])
            yield ["O"] * size if place in unread else [next(predicted) for _ in range(size)]


def _unread(model: SentenceTransformer, sentences: Sequence[Sentence], options: Mapping[str, Any]) -> set[int]:
    if not hasattr(model[0], "content"):
        return set()  # Refused with the first vectors.
    words = [one for one, _ in sentences]
    return unread_sentences(model, words, separator=options["separator"], prompt=options["prompt"])


def _named(task: TagTask, unread: Mapping[str, set[int]]) -> dict[str, list[str]]:
    """The sentences that a method does not read whole, by what that means for each part."""
    meaning = {
        "train": "longer than the method reads: not trained on",
        "validation": "longer than the method reads: nothing found in it (validation)",
        "heldout": "longer than the method reads: nothing found in it",
    }
    return {
        meaning[part]: [
            f"{place + 1}: {task.separator.join(task.parts[part][place][0])[:40]}" for place in sorted(places)
        ]
        for part, places in unread.items()
        if places
    }


def _dimension(model: SentenceTransformer) -> int:
    transformer: Any = model[0]
    return int(transformer.get_embedding_dimension()) if hasattr(transformer, "content") else 0
