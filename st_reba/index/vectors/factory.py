"""Which FAISS index: a factory string is checked before anything is encoded, or chosen by the size of the corpus."""

from __future__ import annotations

import logging
import re
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flat import load_faiss

logger = logging.getLogger(__name__)

EXAMPLES = (
    "'Flat' (exact), 'HNSW32', 'IVF1024,Flat', 'IVF1024,SQ8', 'IVF4096,PQ48', 'IVF4096,PQ48,RFlat', "
    "'OPQ48,IVF4096,PQ48'"
)
# Bounds of `auto_factory`.
FLAT_UP_TO = 200_000
IVF_UP_TO = 2_000_000
SQ_UP_TO = 50_000_000
# FAISS asks for at least 39 training vectors a centroid and uses at most 256.
SAMPLED_PER_CENTROID = 64
FEWEST_PER_CENTROID = 39
# Rotations, scalar quantizers and the like are trained on this many.
FEWEST_SAMPLED = 2**16
TRAINING_BYTES = 2**32


def make_index(factory: str, dim: int) -> Any:
    """An empty FAISS index that compares by inner product.

    Args:
        factory: A FAISS factory string.
        dim: The dimension of the vectors.

    Returns:
        The FAISS index.

    Raises:
        ValueError: FAISS does not know the string, or it does not fit the dimension or what an index folder is.

    Example:
        >>> make_index("IVF16,SQ8", 64).nlist
        16
    """
    faiss = load_faiss()
    told = f"factory={factory!r} (--factory)"
    if "IDMap" in factory:
        raise ValueError(f"{told}: leave IDMap out; ids are kept with the texts, and rows are the index's own")
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        if "number of subquantizers" in str(error):
            of = _reduced(factory) or dim
            fitting = ", ".join(str(m) for m in range(1, of + 1) if of % m == 0)
            raise ValueError(
                f"{told}: M of PQ must divide the dimension, {of}: it may be one of {fitting}; or put OPQM_D or "
                "PCAD in front, D a multiple of M"
            ) from None
        if "METRIC_L2" in str(error) or "metric" in str(error):
            raise ValueError(
                f"{told}: FAISS has no such index for the inner product, which cosine needs too; use one of {EXAMPLES}"
            ) from None
        raise ValueError(
            f"{told} is no index that FAISS knows ({_last(error)}); use one as {EXAMPLES}, or --auto"
        ) from None
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None and inverted.nlist < 1:
        raise ValueError(f"{told}: IVF needs at least one list; four times the square root of the corpus is usual")
    if _metric(index) != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(f"{told}: FAISS compares by the Euclidean distance there; use one of {EXAMPLES}")
    for part in parts(index):
        if hasattr(part, "do_polysemous_training"):
            # It sorts centroids for a kind of search that is not used, and takes most of the training's time.
            part.do_polysemous_training = False
    return index


def set_parameters(index: Any, parameters: str) -> None:
    """Set FAISS search parameters, as "nprobe=16" or "nprobe=16,k_factor_rf=4".

    Raises:
        ValueError: FAISS does not know them for such an index.
    """
    faiss = load_faiss()
    try:
        faiss.ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise ValueError(
            f"parameters={parameters!r} do not fit a FAISS index of class {type(index).__name__}: write as "
            "'nprobe=16' (IVF), 'efSearch=64' (HNSW) or 'k_factor_rf=4' (RFlat), joined by commas"
        ) from error


def check_size(index: Any, factory: str, count: int) -> None:
    """Refuse an index that cannot be trained on so few vectors; warn of one that will be poor.

    Args:
        index: What `make_index` gave.
        factory: The string that it was made by.
        count: How many vectors there are.

    Raises:
        ValueError: It has more centroids than there are vectors; the message names the largest sensible number.
    """
    lists, codes = centroids(index)
    told = f"factory={factory!r} (--factory)"
    if lists > count:
        raise ValueError(f"{told}: {lists} lists are too many for {count:,} documents; {_sensible(count)}")
    if codes > count:
        raise ValueError(
            f"{told}: PQ trains {codes} centroids, more than the {count:,} documents; use 'Flat', or SQ8 in its place"
        )
    if lists * FEWEST_PER_CENTROID > count:
        logger.warning("%s: %d lists are many for %s documents; %s", told, lists, f"{count:,}", _sensible(count))


def centroids(index: Any) -> tuple[int, int]:
    """How many inverted lists an index has, and how many centroids each of its codes; 0: none."""
    faiss = load_faiss()
    inverted = faiss.try_extract_index_ivf(index)
    codes = 0
    for part in parts(index):
        quantizer = getattr(part, "pq", None)
        if isinstance(quantizer, faiss.ProductQuantizer):
            codes = max(codes, int(quantizer.ksub))
    return (0 if inverted is None else int(inverted.nlist)), codes


def parts(index: Any) -> list[Any]:
    """An index and those that it is made of."""
    faiss = load_faiss()
    found = [index]
    if isinstance(index, faiss.IndexPreTransform):
        found += parts(faiss.downcast_index(index.index))
    elif isinstance(index, faiss.IndexRefine):
        found += parts(faiss.downcast_index(index.base_index)) + parts(faiss.downcast_index(index.refine_index))
    elif isinstance(index, faiss.IndexIVF):
        found += parts(faiss.downcast_index(index.quantizer))
    return found


def auto_factory(count: int, dim: int) -> tuple[str, str]:
    """The index that suits a corpus of some size.

    ================  ======================  =========================================================
    documents         factory                 why
    ================  ======================  =========================================================
    up to 200,000     ``Flat``                exact, and a query takes milliseconds
    up to 2 million   ``IVF⌈4√n⌉,Flat``       the vectors as they are, a part of them looked at
    up to 50 million  ``IVF⌈4√n⌉,SQ8``        a quarter of the memory, hardly less exact
    more              ``IVF65536,PQM``        M bytes a vector; M: the largest divisor of d up to d/4
    ================  ======================  =========================================================

    HNSW is never chosen: it is fast, but adding is slow, the whole graph is in memory, and nothing is saved on disk.

    Args:
        count: How many documents.
        dim: The dimension of their vectors.

    Returns:
        The factory string, and why.

    Example:
        >>> auto_factory(1_000_000, 768)[0], auto_factory(100_000_000, 768)[0]
        ('IVF4000,Flat', 'IVF65536,PQ192')
    """
    if count <= FLAT_UP_TO:
        return "Flat", f"{count:,} documents are few enough (up to {FLAT_UP_TO:,}) to compare with all of them"
    lists = int(np.ceil(4 * sqrt(count)))
    if count <= IVF_UP_TO:
        return (
            f"IVF{lists},Flat",
            f"{count:,} documents: 4√n lists, of which a query looks at some; vectors as they are",
        )
    if count <= SQ_UP_TO:
        return f"IVF{lists},SQ8", f"{count:,} documents: 4√n lists, a byte a value"
    m = max(m for m in range(1, max(1, dim // 4) + 1) if dim % m == 0)
    return f"IVF65536,PQ{m}", f"{count:,} documents: 65,536 lists, {m} bytes a vector in place of {4 * dim:,}"


def sample_rows(index: Any, count: int, dim: int, train_size: int | None, seed: int) -> NDArray[np.int64]:
    """Which rows an index is trained on: drawn over the whole corpus, none twice, the same for the same seed.

    Args:
        index: What `make_index` gave.
        count: How many vectors there are.
        dim: Their dimension.
        train_size: How many to draw; None: 64 a centroid, at least 65,536, in at most 4 GiB.
        seed: Of the drawing.

    Returns:
        Row numbers, ascending.

    Raises:
        ValueError: There are more centroids than `train_size`.

    Example:
        >>> sample_rows(make_index("IVF4,Flat", 8), 100, 8, 10, seed=0).shape
        (10,)
    """
    lists, codes = centroids(index)
    needed = max(lists, codes, 1)
    if train_size is None:
        wanted = max(SAMPLED_PER_CENTROID * needed, FEWEST_SAMPLED)
        size = min(count, max(min(wanted, TRAINING_BYTES // (4 * dim)), needed))
    elif train_size < needed:
        raise ValueError(f"train_size={train_size} (--train-size) is less than the {needed} centroids to be trained")
    else:
        size = min(count, train_size)
    if size < min(FEWEST_PER_CENTROID * needed, count):
        logger.warning(
            "trained on %s vectors, fewer than %d for each of %s centroids; raise train_size (--train-size)",
            f"{size:,}", FEWEST_PER_CENTROID, f"{needed:,}",
        )  # fmt: skip
    if size == count:
        return np.arange(count)
    drawn = np.random.Generator(np.random.PCG64(seed)).choice(count, size, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def seed_training(index: Any, seed: int) -> None:
    """Give the seed to the k-means of an index; and let it say nothing of few points, which is said here."""
    for part in parts(index):
        for holder in (part, getattr(part, "pq", None)):
            clustering = getattr(holder, "cp", None)
            if clustering is not None:
                clustering.seed = seed + 1234  # FAISS's own, where the seed is 0
                clustering.min_points_per_centroid = 1


def _metric(index: Any) -> int:
    """The first metric among the parts that is not the inner product, or that one."""
    expected = load_faiss().METRIC_INNER_PRODUCT
    return next((int(part.metric_type) for part in parts(index)[:2] if part.metric_type != expected), int(expected))


def _reduced(factory: str) -> int | None:
    """The dimension after the last transformation in front, if one changes it."""
    found = re.findall(r"(?:OPQ\d+_|PCA[RW]*|RR|ITQ|Pad)(\d+)(?:,|$)", factory)
    return int(found[-1]) if found else None


def _sensible(count: int) -> str:
    most = count // FEWEST_PER_CENTROID
    return f"use at most IVF{most}, or 'Flat'" if most else "use 'Flat'"


def _last(error: RuntimeError) -> str:
    return str(error).rsplit(": ", 1)[-1].strip()
