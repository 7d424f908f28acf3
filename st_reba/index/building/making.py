"""From documents to an index folder: encode them into a corpus within it, or take corpora that are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...corpus.folder import Corpus, is_corpus
from ...corpus.model_source import moved
from ...fingerprint import ModelFingerprint, check, difference, fingerprint
from ..folder.manifest import BUILDING, METRICS
from ..folder.marks import clean_up, remove_building
from .build import BuildReport, IndexSettings, make_generation, writing

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ...corpus.source import Input, Source


def build_index(
    model: SentenceTransformer,
    texts: Input,
    folder: Path,
    settings: IndexSettings,
    *,
    overwrite: bool,
    show_progress_bar: bool | None,
    model_source: str | None,
    **corpus_options: Any,
) -> BuildReport:
    """Encode documents into ``.building`` in the index folder, then index them; see `Index.build`."""
    metric = _checked_metric(model.similarity_fn_name)
    mark = fingerprint(model)
    settings.check(mark.dimension, len(texts) if isinstance(texts, (list, tuple)) else None)
    with writing(folder, overwrite=overwrite) as old:
        corpus = encode_within(folder, model, texts, show_progress_bar=show_progress_bar, **corpus_options)
        report = make_generation(
            folder,
            [corpus.path],
            mark,
            metric,
            settings,
            old,
            model_source=model_source,
            show_progress_bar=show_progress_bar,
        )
        seconds = {**corpus.header().get("seconds", {}), **report.seconds}
        clean_up(folder)
    return BuildReport(report.factory, report.why, report.recall, report.rejected, report.rejects, seconds)


def index_corpora(
    corpora: Sequence[Path],
    folder: Path,
    settings: IndexSettings,
    *,
    model: SentenceTransformer | None,
    overwrite: bool,
    show_progress_bar: bool | None,
    model_source: str | None,
    verify: bool,
) -> BuildReport:
    """Index corpora that are encoded; see `Index.from_corpus`."""
    if not corpora:
        raise ValueError("there is no corpus to index; name at least one folder")
    mark, metric, source = _identity(corpora, folder)
    if model is not None:
        check(mark, model, "the corpus")
    settings.check(mark.dimension, None)
    for path in corpora:
        Corpus(path).check(content=verify)
    with writing(folder, overwrite=overwrite) as old:
        report = make_generation(
            folder,
            corpora,
            mark,
            metric,
            settings,
            old,
            model_source=source if model_source is None else model_source,
            show_progress_bar=show_progress_bar,
        )
        # Of a build that was interrupted, and that this index takes the place of.
        clean_up(folder)
    return report


def encode_within(folder: Path, model: SentenceTransformer, input: Input | Source, **corpus_options: Any) -> Corpus:
    """Encode documents into ``.building`` in an index folder. What a killed call left there goes on, if it fits."""
    from ...corpus import encode_corpus

    building = folder / BUILDING
    if not is_corpus(building):  # of no use, and nothing else is written there
        remove_building(folder)
    return encode_corpus(model, input, building, overwrite="misfit", **corpus_options)


def _identity(corpora: Sequence[Path], folder: Path) -> tuple[ModelFingerprint, str, str | None]:
    """The model of the corpora, how it compares vectors, and where it is as seen from the index."""
    found: list[tuple[ModelFingerprint, str]] = []
    source = None
    for path in corpora:
        header = Corpus(path).header()
        try:
            mark = ModelFingerprint.from_json(header.get("model"))
        except ValueError as error:
            raise ValueError(f"{path}: model: {error}; encode the corpus again") from None
        found.append((mark, _checked_metric(header.get("metric"))))
        source = source or moved(header.get("model_source"), path, folder)
    (first, metric), others = found[0], found[1:]
    for path, (mark, other) in zip(corpora[1:], others, strict=True):
        if other != metric or difference(first, mark):
            raise ValueError(
                f"{path} was encoded with another model than {corpora[0]}; an index holds the vectors of one model. "
                f"Fingerprint of {corpora[0]}: {first}, {metric}; of {path}: {mark}, {other}. Encode one of them again"
            )
    return first, metric, source


def _checked_metric(metric: object) -> str:
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(
            f"the model compares vectors by {metric!r}; an index needs model.similarity_fn_name to be "
            f"{' or '.join(repr(known) for known in METRICS)}"
        )
    return metric
