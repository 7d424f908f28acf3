"""Models with a post-filter: fitted on texts, or read from a file, and appended to a pipeline."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from .encode import encode_stream
from .fingerprint import PROBES
from .modules import DecoderTransformer
from .postfilter import Kind, PostFilter, check_count, check_options

__all__ = ["fit_postfilter", "postfilter_of", "sample_texts", "with_postfilter"]

# How far a probe's vector may be from the one that was kept, in parts of the sample's spread: rounding stays below,
# whatever machine it is done by; another base, layer, template or pooling does not.
TOLERANCE = 0.005
# Where the model's weights are of 16 bits, or were.
TOLERANCE_16 = 0.05


def fit_postfilter(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float = 1.0,
    sample: int | None = None,
    seed: int = 0,
    prompt: str | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    show_progress_bar: bool | None = None,
) -> SentenceTransformer:
    """Fit a linear filter on unlabelled texts, and append it to a model.

    Sentence vectors are filtered. Token vectors and those of words (:func:`st_reba.encode_words`) are not.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded; not changed.
        texts: Texts like those to be embedded, without labels. Blank and repeated ones are left out.
        kind: ``"center"``, ``"abtt"`` (all but the top ``r`` principal directions), ``"standardize"`` or ``"whiten"``;
            see :class:`PostFilter`.
        r: For abtt and whiten: principal directions that are taken away; None: 3 of abtt, none of whiten.
        dimensions: For whiten: d' that are kept; None: all.
        power: For whiten: of the standard deviations that are divided by, above 0 and at most 1; less than 1 whitens in
            part, which depends less on the sample.
        sample: Fit on so many of the texts, drawn at random; None: on all.
        seed: Of that draw.
        prompt: As for ``encode``; None: the model's default prompt, if it has one. A text counts as a document.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_stream`.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A new model that shares the modules of ``model``, sentence-transformers' own ``Dense`` behind them, and a
        ``Normalize`` behind that where ``model`` ended with one.

    Raises:
        ValueError: An option of another kind, too few texts, a variance that is (nearly) zero and would be divided by,
            or a model that st_reba did not build or that has a post-filter already.

    Source:
        Mu and Viswanath (2018), All-but-the-Top, algorithm 1.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> texts = [f"{name} sells {goods} in {place}." for name in ("Ann", "Ben", "王芳", "Li", "Eve", "Tom")
        ...     for goods in ("rice", "books", "苹果", "shoes", "tea", "maps") for place in ("Rome", "北京", "Oslo")]
        >>> filtered = st_reba.fit_postfilter(model, texts, "center")
        >>> [type(module).__name__ for module in filtered]
        ['RepeatTransformer', 'Pooling', 'Normalize', 'Dense', 'Normalize']
        >>> filtered[0].postfilter["texts"]
        108
    """
    fitted = postfilter_of(
        model,
        texts,
        kind,
        r=r,
        dimensions=dimensions,
        power=power,
        sample=sample,
        seed=seed,
        prompt=prompt,
        batch_size=batch_size,
        batch_tokens=batch_tokens,
        show_progress_bar=show_progress_bar,
    )
    return _appended(model, fitted)


def postfilter_of(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float = 1.0,
    sample: int | None = None,
    seed: int = 0,
    prompt: str | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    show_progress_bar: bool | None = None,
) -> PostFilter:
    """The filter alone that :func:`fit_postfilter` appends; arguments and errors as there.

    Returns:
        The filter, which knows its model again.
    """
    check_model(model)
    width = model_width(model)
    check_options(kind, width, r=r, dimensions=dimensions, power=power)
    chosen, digest = sample_texts(texts, sample, seed)
    if width is not None:
        # Before the work of encoding.
        check_count(len(chosen), kind, width, dimensions=dimensions)
    sizes: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    stream = encode_stream(_whole(model), chosen, prompt=prompt, show_progress_bar=show_progress_bar, **sizes)
    vectors = np.concatenate([part for _, part in stream] or [np.zeros((0, width or 1), np.float32)])
    fitted = PostFilter.fit(vectors, kind, r=r, dimensions=dimensions, power=power, seed=seed, sha256=digest)
    return replace(fitted, prompt=prompt, dtype=weights_of(model), probe=probe(model, prompt))


def with_postfilter(model: SentenceTransformer, postfilter: PostFilter | str | os.PathLike[str]) -> SentenceTransformer:
    """Append a filter to the model that it was fitted for.

    Args:
        model: The model; not changed.
        postfilter: The filter, or the file that :meth:`PostFilter.save` wrote.

    Returns:
        A new model, as of :func:`fit_postfilter`.

    Raises:
        ValueError: The filter is of another dimension, or was fitted on vectors of another model; or the model is none
            of st_reba's, or has a post-filter already.
        FileNotFoundError: There is no such file.
    """
    name = "" if isinstance(postfilter, PostFilter) else f"={os.fspath(postfilter)!r}"
    fitted = postfilter if isinstance(postfilter, PostFilter) else PostFilter.load(postfilter)
    check_model(model)
    width = model_width(model)
    if width is not None and width != fitted.dimension:
        raise ValueError(
            f"postfilter{name} was fitted on vectors of {fitted.dimension} dimensions, but this model's have {width}. "
            "Fit one on this model: st_reba.fit_postfilter(model, texts)."
        )
    if fitted.probe is not None:
        apart = float(np.linalg.norm(probe(model, fitted.prompt) - fitted.probe, axis=1).max())
        exact = {fitted.dtype, weights_of(model)} == {"float32"}
        allowed = TOLERANCE if exact else TOLERANCE_16
        if not apart <= allowed * fitted.spread:
            raise ValueError(
                f"postfilter{name} was fitted on vectors of another model: those of a fixed text differ by "
                f"{apart:.3g}, where the sample's are {fitted.spread:.3g} from their mean (at most {allowed:g} of that "
                "is allowed). Base, method, layers, template, pooling and prompt must be those that it was fitted "
                "with; else fit one on this model: st_reba.fit_postfilter(model, texts)."
            )
    return _appended(model, fitted)


def sample_texts(texts: Iterable[str], sample: int | None = None, seed: int = 0) -> tuple[list[str], str]:
    """The texts that a filter is fitted on.

    Args:
        texts: All texts.
        sample: How many to draw; None: all.
        seed: Of the draw.

    Returns:
        Texts in their order, blank and repeated ones left out before any are drawn; and the SHA-256 of them.

    Raises:
        TypeError: ``texts`` is one string, or holds something else than strings.
        ValueError: ``sample`` or ``seed`` is no whole number, or there are fewer different texts than ``sample``.

    Example:
        >>> sample_texts(["b", "a", " ", "b", "c"], sample=2)[0]
        ['a', 'c']
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    for name, value, least in (("sample", sample, 1), ("seed", seed, 0)):
        if value is None and name == "sample":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number from {least} on.")
    different = dict.fromkeys(texts)
    if wrong := next((text for text in different if not isinstance(text, str)), None):
        raise TypeError(f"texts holds {wrong!r:.80}, which is no str")
    chosen = [text for text in different if text.strip()]
    if sample is not None:
        if sample > len(chosen):
            raise ValueError(
                f"sample={sample}: there are only {len(chosen)} different texts. Give more, or a smaller sample."
            )
        rows = np.sort(np.random.default_rng(seed).choice(len(chosen), sample, replace=False))
        chosen = [chosen[row] for row in rows]
    digest = hashlib.sha256()
    for text in chosen:
        data = text.encode("utf-8", "surrogatepass")
        # With its length, so that no two samples read alike.
        digest.update(len(data).to_bytes(8, "big") + data)
    return chosen, digest.hexdigest()


def probe(model: SentenceTransformer, prompt: str | None = None) -> NDArray[np.float32]:
    """Vectors [2, d] of two fixed texts, by which a filter knows its model again; ``prompt`` as for ``encode``."""
    vectors = _whole(model).encode(list(PROBES), prompt=prompt, show_progress_bar=False)
    return np.asarray(vectors, dtype=np.float32)


def check_model(model: SentenceTransformer) -> None:
    """Refuse a model that no filter can be appended to.

    Raises:
        ValueError: Its first module keeps no record, or it has a post-filter.
    """
    first = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(
            f"the model starts with {type(first).__name__}, which has no place for the record of a post-filter. Build "
            "it with st_reba.build(…, pooling=…); or fit by hand, PostFilter.fit(vectors), and append its .dense()."
        )
    if first.postfilter is not None:
        raise ValueError(
            f"the model has a post-filter already ({told(first.postfilter)}), and two would follow one another. Fit on "
            "the model without it: build that anew, or load it from where it was saved before."
        )


def model_width(model: SentenceTransformer) -> int | None:
    """Dimension of a model's vectors, before they are cut by ``truncate_dim``."""
    return _whole(model).get_embedding_dimension()


def weights_of(model: SentenceTransformer) -> str:
    """Dtype of the model's weights, as ``"float32"``."""
    return str(model.dtype).removeprefix("torch.")


def told(record: dict[str, Any]) -> str:
    """A record in words.

    Example:
        >>> told({"kind": "abtt", "r": 3, "texts": 2000, "seed": 0, "sha256": None})
        'abtt, r=3, fitted on 2,000 texts'
    """
    plain = {"r": 0, "power": 1.0}
    numbers = ((name, record[name]) for name in ("r", "dimensions", "power") if name in record)
    number = "".join(f", {name}={value}" for name, value in numbers if value != plain.get(name))
    return f"{record['kind']}{number}, fitted on {record['texts']:,} texts"


def _whole(model: SentenceTransformer) -> SentenceTransformer:
    """The model without ``truncate_dim``: the filter stands before the cut."""
    if model.truncate_dim is None:
        return model
    whole = copy.copy(model)
    whole.truncate_dim = None
    return whole


def _appended(model: SentenceTransformer, fitted: PostFilter) -> SentenceTransformer:
    # Copies of the outer objects alone: weights, tokenizer and the rest of the modules are shared.
    first = cast(DecoderTransformer, copy.copy(model[0]))
    first.postfilter = fitted.record()
    weight = next(first.parameters(), None)
    # What stands behind the first module has its dtype, as where sentence-transformers puts a model together.
    dense = fitted.dense() if weight is None else fitted.dense(weight.dtype)
    modules: list[Any] = [first, *list(model)[1:], dense.to(model.device)]
    if isinstance(modules[-2], Normalize):
        modules.append(Normalize())
    filtered = copy.copy(model)
    filtered._modules = {str(number): module for number, module in enumerate(modules)}
    filtered.prompts = dict(model.prompts)
    filtered.model_card_data = copy.copy(model.model_card_data)
    filtered.model_card_data.register_model(filtered)
    return filtered
