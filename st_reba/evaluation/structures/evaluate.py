"""How often is the query nearer to the sentence that means the same?"""

from __future__ import annotations

import csv
import gc
import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ...batches import check_sizes, position_counts
from ...encode import encode_texts
from ...files import whole_file
from ...tables import csv_rows
from ...words import encode_words
from ..methods import Base, Limit, Method, identity
from ..resampling import interval
from ..results import Result, Results
from .triples import LANGUAGES, STRUCTURES, Part, Sentence, Triple, triples

KIND = "toy structures"
NO_LIMIT = Limit()
# Cosines that differ by no more than rounding in float32 are equal: of a part that stands in all three sentences, and
# that sees nothing else, no sentence is nearer.
TIE = 1e-6
COLUMNS = ("id", "topic", "sim(q,s+)", "sim(q,s-)")


def evaluate_structures(
    base: Base,
    methods: Sequence[Method],
    results: Results,
    *,
    structures: Sequence[str] = tuple(STRUCTURES),
    languages: Sequence[str] = LANGUAGES,
    parts: Sequence[Part] = ("whole",),
    sample: int | None = None,
    seed: int = 0,
    limit: Limit = NO_LIMIT,
    prompt: str | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    command: str = "",
    show_progress_bar: bool | None = None,
) -> list[Result]:
    """Score methods on triples (q, s+, s-): the share for which cos(q, s+) > cos(q, s-).

    A tie, of cosines that differ by rounding only, counts as a half. The cosines are kept in a file beside each result,
    see :func:`similarities`, for the figure. The interval is that of other topics.

    Args:
        base: The base model.
        methods: The methods.
        results: Where the results go, and are found again.
        structures: Which of ``"S1"``, ``"S2"``, ``"S3"``; see :func:`triples`.
        languages: Which of ``"zh"``, ``"en"``.
        parts: What stands for a sentence: ``"whole"``: its embedding; ``"early"`` or ``"late"``: the embedding of the
            words of its part A or B alone, where they stand (:func:`st_reba.encode_words`: a mean over their tokens,
            whatever the pooling). ``early`` in S3 shows whether early tokens hold what is said later: A is the same in
            all three sentences.
        sample: Use so many triples of each structure and language, drawn by the seed.
        seed: Of the triples and of the sample.
        limit: How much of a sentence is read.
        prompt: In front of every sentence.
        batch_size: Sentences a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass.
        command: What runs it again, for the record.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A result a method, structure, language and part.

    Raises:
        ValueError: There is no such structure, language or part, or one stands twice; a part is past the cut.

    Source:
        Echo, section 3.1, figure 2 (``early``: its panel C).

    Example:
        >>> from st_reba.evaluation.methods import read_methods
        >>> methods = read_methods("classical:pooling=mean,echo:pooling=mean")
        >>> found = evaluate_structures(Base("mini"), methods, Results("out"), languages=["en"], sample=10)
        >>> [(result.task, result.method, result.items) for result in found][:2]
        [('S1 en', 'classical mean', 10), ('S2 en', 'classical mean', 10)]
    """
    _check(structures=structures, languages=languages, parts=parts)
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    check_sizes(**sizes)
    sets = {
        (structure, language): _sampled(triples(structure, language, seed=seed), sample, seed)
        for language in languages
        for structure in structures
    }
    texts = {key: _distinct(chosen) for key, chosen in sets.items()}
    shared = {**limit.settings, **({} if prompt is None else {"prompt": prompt})}
    drawn = {**({} if sample is None else {"limit": sample}), **({"seed": seed} if seed else {})}
    found = []
    disable = None if show_progress_bar is None else not show_progress_bar
    total = len(methods) * len(parts) * sum(map(len, texts.values()))
    with tqdm(total=total, desc="Structures", unit=" texts", disable=disable) as bar:
        for method in methods:
            bar.set_postfix_str(method.name)
            model: SentenceTransformer | None = None
            for part in parts:
                settings = {**({} if part == "whole" else {"part": part}), **shared}
                for (structure, language), chosen in sets.items():
                    sentences = texts[structure, language]
                    same = identity(base, method, kind=KIND, task=_fingerprint(chosen), **settings)
                    result = results.find(same)
                    if result is None or not similarities_file(results, result).is_file():
                        if model is None:
                            model = limit.build(method, base, prompt)
                        began = time.perf_counter()
                        cosines = _cosines(model, chosen, sentences, part, prompt, sizes, bar.update)
                        seconds = time.perf_counter() - began
                        counts = position_counts(model, [one.text for one in sentences], prompt=prompt)
                        result = Result(
                            kind=KIND,
                            task=f"{structure} {language}",
                            base=base.label,
                            method=method.name,
                            identity=same,
                            **_scores(chosen, cosines),
                            settings={**settings, **drawn},
                            arguments=dict(method.arguments),
                            items=len(chosen),
                            texts=len(sentences),
                            tokens=None if counts is None else sum(counts),
                            seconds=round(seconds, 3),
                            command=command,
                        )
                        # First, so that no result is without it.
                        _write(similarities_file(results, result), chosen, cosines)
                        results.add(result)
                    else:
                        bar.update(len(sentences))
                    found.append(result)
            if model is not None:
                # The memory is the next model's.
                del model
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    return found


def similarities(results: Results, result: Result) -> NDArray[np.float64]:
    """The cosines behind a result: [triples, 2]: of q and s+, of q and s-.

    Args:
        results: The folder that holds it.
        result: One of this evaluation.

    Raises:
        FileNotFoundError: The file beside the result is gone.
        ValueError: It does not hold them.
    """
    path = similarities_file(results, result)
    remedy = "Run the evaluation again: it makes what is missing."
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. {remedy}")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for _, header, row in csv_rows(stream, path, ",") if row is not header]
    try:
        values = np.asarray([[float(row[2]), float(row[3])] for row in rows])
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: not the cosines of {result.items} triples ({error}). Delete it. {remedy}") from None
    if values.shape != (result.items, 2):
        raise ValueError(f"{path}: {len(values)} triples, not {result.items}. Delete it. {remedy}")
    return values


def similarities_file(results: Results, result: Result) -> Path:
    """Where the cosines behind a result are: beside it, as CSV."""
    return results.path(result).with_suffix(".csv")


def score_cosines(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where the first cosine of a row is larger, 0 where the second one is, a half where they are equal."""
    difference = cosines[:, 0] - cosines[:, 1]
    return np.where(np.abs(difference) <= TIE, 0.5, (difference > 0).astype(np.float64))


def _check(**chosen: Sequence[str]) -> None:
    allowed = {"structures": tuple(STRUCTURES), "languages": LANGUAGES, "parts": get_args(Part)}
    for name, values in chosen.items():
        if isinstance(values, str) or not values:
            raise ValueError(f"{name}={values!r}: give a list of {list(allowed[name])}.")
        if unknown := [value for value in values if value not in allowed[name]]:
            raise ValueError(f"{name}={list(values)!r}: {unknown[0]!r} is none of {list(allowed[name])}.")
        if len(set(values)) < len(values):
            raise ValueError(f"{name}={list(values)!r}: one stands twice. Keep one.")


def _sampled(made: Sequence[Triple], sample: int | None, seed: int) -> Sequence[Triple]:
    if sample is None or sample >= len(made):
        return made
    if isinstance(sample, bool) or sample < 1:
        raise ValueError(f"sample={sample!r} must be a whole number from 1 on, or None.")
    order = sorted(range(len(made)), key=lambda index: hashlib.sha256(f"{seed}:sample:{index}".encode()).digest())
    return [made[index] for index in sorted(order[:sample])]


def _distinct(chosen: Sequence[Triple]) -> list[Sentence]:
    return list(dict.fromkeys(sentence for triple in chosen for sentence in triple.sentences))


def _fingerprint(chosen: Sequence[Triple]) -> str:
    content = json.dumps([asdict(triple) for triple in chosen], sort_keys=True)
    return hashlib.sha256(f"{TIE}{content}".encode()).hexdigest()


def _cosines(
    model: SentenceTransformer,
    chosen: Sequence[Triple],
    sentences: Sequence[Sentence],
    part: Part,
    prompt: str | None,
    sizes: Mapping[str, int | None],
    progress: Callable[[int], object],
) -> NDArray[np.float64]:
    """[triples, 2]: cos(q, s+) and cos(q, s-); each distinct sentence is run once."""
    options: dict[str, Any] = {"prompt": prompt, **sizes}
    if part == "whole":
        vectors = encode_texts(model, [one.text for one in sentences], progress=progress, **options)
    else:
        vectors = encode_words(model, [(one.text, one.span(part)) for one in sentences], **options)
        progress(len(sentences))
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        bad = sentences[int(np.flatnonzero(~np.isfinite(lengths[:, 0]) | (lengths[:, 0] == 0))[0])]
        raise ValueError(f"The vector of {bad.text!r} is zero or not finite, so that it is like nothing else.")
    unit = dict(zip(sentences, exact / lengths, strict=True))
    return np.asarray(
        [[unit[each.query] @ unit[each.positive], unit[each.query] @ unit[each.negative]] for each in chosen]
    )


def _scores(chosen: Sequence[Triple], cosines: NDArray[np.float64]) -> dict[str, Any]:
    right = score_cosines(cosines)
    # Triples of a topic are alike, so that topics are what is drawn.
    topics = {name: number for number, name in enumerate(dict.fromkeys(triple.topic for triple in chosen))}
    counts = np.zeros((len(topics), 2))
    for triple, value in zip(chosen, right, strict=True):
        counts[topics[triple.topic]] += (value, 1.0)
    return {
        "main": "accuracy",
        "scores": {
            "accuracy": float(right.mean()),
            "ties": float((right == 0.5).mean()),
            "mean sim(q,s+)": float(cosines[:, 0].mean()),
            "mean sim(q,s-)": float(cosines[:, 1].mean()),
        },
        "intervals": {"accuracy": interval(counts, lambda sums: sums[:, 0] / sums[:, 1])},
    }


def _write(path: Path, chosen: Sequence[Triple], cosines: NDArray[np.float64]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for triple, (positive, negative) in zip(chosen, cosines.tolist(), strict=True):
        writer.writerow([triple.id, triple.topic, repr(positive), repr(negative)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as stream:
        stream.write(text.getvalue().encode())
