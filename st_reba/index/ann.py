"""FAISS indexes: made by a factory string, trained, written, and measured against exact search."""

from __future__ import annotations

import errno
import logging
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ..files import whole_path
from .vectors import Keys, Matrix, Vectors

logger = logging.getLogger(__name__)

EXAMPLES = (
    "'Flat' (exact), 'HNSW32', 'IVF1024,Flat', 'IVF1024,SQ8', 'IVF4096,PQ48', 'IVF4096,PQ48,RFlat', "
    "'OPQ48,IVF4096,PQ48'"
)
AUTO = "auto"
# Bounds of `auto_factory`.
FLAT_UP_TO, IVF_UP_TO, SQ_UP_TO = 200_000, 2_000_000, 50_000_000
# FAISS asks for at least 39 training vectors a centroid and uses at most 256.
SAMPLED_PER_CENTROID, FEWEST_PER_CENTROID = 64, 39
# Rotations, scalar quantizers and the like are trained on so many.
FEWEST_SAMPLED = 2**16
TRAINING_BYTES = 2**32
# Recall@K is measured with so many documents as queries.
QUERIES, K = 256, 10
# Parts of a million: equal vectors in different blocks may differ by a rounding.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Recipe:
    """Which FAISS index is built, and how.

    Args:
        factory: A FAISS factory string; "auto" chooses one by the number of vectors.
        parameters: FAISS search parameters, as "nprobe=32"; None: found by measuring.
        recall_aim: The recall@10 that they are to reach.
        train_size: How many vectors an index that needs it is trained on; None: by its centroids.
        seed: Of the training sample and of the queries that recall is measured with.
    """

    factory: str = "Flat"
    parameters: str | None = None
    recall_aim: float = 0.95
    train_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.recall_aim <= 1:
            raise ValueError(f"recall_aim={self.recall_aim} must be above 0 and at most 1 (--recall-aim)")
        if self.train_size is not None and self.train_size < 1:
            raise ValueError(f"train_size={self.train_size} must be a whole number from 1 on (--train-size)")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must be a whole number from 0 on (--seed)")

    def check(self, dim: int, count: int | None = None) -> None:
        """Refuse, before anything is encoded, what cannot be built."""
        if self.factory == AUTO:
            return
        index = make_index(self.factory, dim)
        if count is not None:
            _check_size(index, self.factory, count)
        if self.parameters is not None:
            set_parameters(index, self.parameters)


@dataclass(frozen=True)
class Recall:
    """Recall against exact search.

    Args:
        recall: The mean share of exact neighbours that were found. A document that scores as high as the last of
            them counts, whichever of equals was found.
        k: How many neighbours were looked for.
        queries: How many documents were queries, each without itself.
        seed: Of the drawing of queries.
    """

    recall: float
    k: int
    queries: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """What the index keeps."""
        return asdict(self)


def load_faiss() -> Any:
    """Import FAISS, which has no type stubs, when it is first needed."""
    import faiss  # type: ignore[import-untyped, unused-ignore]

    return faiss


def make_index(factory: str, dim: int) -> Any:
    """An empty FAISS index that compares by inner product.

    Raises:
        ValueError: FAISS does not know the string, or it does not fit the dimension or what an index folder is.

    Example:
        >>> make_index("IVF16,SQ8", 64).nlist
        16
    """
    faiss = load_faiss()
    told = f"factory={factory!r} (--factory)"
    if "IDMap" in factory:
        raise ValueError(f"{told}: leave IDMap out; every index gets the keys of its documents")
    if moves := re.search(r"PCA|ITQ", factory):
        raise ValueError(
            f"{told}: {moves[0]} subtracts the mean, after which products of vectors are others; take OPQM_D, which "
            "only turns them"
        )
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        last = str(error).rsplit(": ", 1)[-1].strip()
        if "number of subquantizers" in str(error):
            reduced = re.findall(r"(?:OPQ\d+_|RR|Pad)(\d+)(?:,|$)", factory)
            of = int(reduced[-1]) if reduced else dim
            fitting = ", ".join(str(m) for m in range(1, of + 1) if of % m == 0)
            raise ValueError(
                f"{told}: M of PQ must divide the dimension, {of}: it may be one of {fitting}; or put OPQM_D "
                "in front, D a multiple of M"
            ) from None
        if "metric" in last.lower():
            raise ValueError(
                f"{told}: FAISS has no such index for the inner product, which cosine needs too; use one of {EXAMPLES}"
            ) from None
        raise ValueError(f"{told} is no index that FAISS knows ({last}); use one as {EXAMPLES}, or --auto") from None
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None and inverted.nlist < 1:
        raise ValueError(f"{told}: IVF needs at least one list; four times the square root of the corpus is usual")
    for part in parts(index):
        if part in parts(index)[:2] and part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"{told}: FAISS compares by the Euclidean distance there; use one of {EXAMPLES}")
        if hasattr(part, "do_polysemous_training"):
            # It sorts centroids for a kind of search that is not used, and takes most of the training's time.
            part.do_polysemous_training = False
    return index


def parts(index: Any) -> list[Any]:
    """An index and those that it is made of."""
    faiss = load_faiss()
    found = [index]
    if isinstance(index, (faiss.IndexPreTransform, faiss.IndexIDMap)):
        found += parts(faiss.downcast_index(index.index))
    elif isinstance(index, faiss.IndexRefine):
        found += parts(faiss.downcast_index(index.base_index)) + parts(faiss.downcast_index(index.refine_index))
    elif isinstance(index, faiss.IndexIVF):
        found += parts(faiss.downcast_index(index.quantizer))
    return found


def keeps_ids(index: Any) -> bool:
    """Whether an index stores ids itself, as inverted lists do; others are wrapped in an IDMap."""
    faiss = load_faiss()
    return faiss.try_extract_index_ivf(index) is not None and not isinstance(index, faiss.IndexRefine)


def set_parameters(index: Any, parameters: str) -> None:
    """Set FAISS search parameters, as "nprobe=16" or "nprobe=16,k_factor_rf=4".

    Raises:
        ValueError: FAISS does not know them for such an index.
    """
    try:
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise ValueError(
            f"parameters={parameters!r} do not fit a FAISS index of class {type(index).__name__}: write as "
            "'nprobe=16' (IVF), 'efSearch=64' (HNSW) or 'k_factor_rf=4' (RFlat), joined by commas (--parameters)"
        ) from error


def auto_factory(count: int, dim: int) -> tuple[str, str]:
    """The index that suits a corpus of some size.

    Args:
        count: How many vectors.
        dim: Their dimension.

    Returns:
        The factory string, and why. HNSW is never chosen: adding is slow, and the whole graph is in memory.

    Example:
        >>> auto_factory(1_000_000, 768)[0], auto_factory(100_000_000, 768)[0]
        ('IVF4000,Flat', 'IVF65536,PQ192')
    """
    lists = ceil(4 * sqrt(count))
    if count <= FLAT_UP_TO:
        return "Flat", f"{count:,} vectors are few enough (up to {FLAT_UP_TO:,}) to compare with all of them"
    if count <= IVF_UP_TO:
        return f"IVF{lists},Flat", f"{count:,} vectors: 4√n lists, of which a query looks at some; vectors as they are"
    if count <= SQ_UP_TO:
        return f"IVF{lists},SQ8", f"{count:,} vectors: 4√n lists, a byte a value"
    m = max(m for m in range(1, max(1, dim // 4) + 1) if dim % m == 0)
    return f"IVF65536,PQ{m}", f"{count:,} vectors: 65,536 lists, {m} bytes a vector in place of {4 * dim:,}"


# Building


def write_index(
    path: Path, vectors: Vectors, recipe: Recipe, *, show: bool | None = None
) -> tuple[Recipe, str | None, Recall | None]:
    """Train an index, fill it and write its file, whole or not at all.

    Args:
        path: The file.
        vectors: What it is to hold.
        recipe: Which index.
        show: Show a bar; None: on a terminal.

    Returns:
        The recipe with the factory and the parameters that were found; why that factory was chosen; and the recall,
        None where the search is exact.

    Raises:
        ValueError: The factory does not fit the vectors.
        OSError: The disk is full, or the folder may not be written.
    """
    faiss = load_faiss()
    why = None
    if recipe.factory == AUTO:
        factory, why = auto_factory(vectors.count, vectors.dim)
        recipe = replace(recipe, factory=factory)
        logger.info("%s: %s", factory, why)
    recipe.check(vectors.dim, vectors.count)
    index = make_index(recipe.factory, vectors.dim)
    disable = None if show is None else not show
    with tqdm(total=vectors.count, desc="Indexing", unit=" vectors", unit_scale=True, disable=disable) as bar:

        def blocks() -> Iterator[Matrix]:
            for block in vectors.blocks():
                yield block
                bar.update(len(block))

        if isinstance(index, faiss.IndexFlat):
            write_flat(path, blocks(), vectors.keys, vectors.dim)
            return recipe, why, None
        if not index.is_trained:
            rows = sample_rows(index, vectors.count, vectors.dim, recipe)
            bar.set_description(f"Training on {len(rows):,} vectors")
            _seed_training(index, recipe.seed)
            index.train(vectors.take(rows))
            bar.set_description("Indexing")
        whole = fill(index, blocks(), vectors.keys)
        bar.set_description("Measuring recall")
        recall, parameters = measure_recall(whole, vectors, recipe)
    save_faiss(path, whole)
    return replace(recipe, parameters=parameters), why, recall


def fill(index: Any, blocks: Iterable[Matrix], keys: Keys) -> Any:
    """Add vectors with their keys to a trained index; the index that knows the keys."""
    faiss = load_faiss()
    if not (keeps_ids(index) or isinstance(index, faiss.IndexIDMap)):
        index = faiss.IndexIDMap(index)
    start = 0
    for block in blocks:
        index.add_with_ids(block, keys[start : start + len(block)])
        start += len(block)
    return index


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the disk with the file's name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def save_faiss(path: Path, index: Any) -> None:
    """Write an index that is in memory, whole or not at all."""
    with _told(path), whole_path(path) as temporary:
        try:
            # Through Python's file: FAISS itself cannot open names of every script on every system.
            with temporary.open("wb") as stream:
                load_faiss().write_index(index, load_faiss().PyCallbackIOWriter(stream.write, 2**24))
        except RuntimeError as error:
            full = "No space" in str(error) or "space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write vectors ({error})", str(path)) from error


def write_flat(path: Path, blocks: Iterable[Matrix], keys: Keys, dim: int) -> None:
    """Write an ``IndexIDMap`` of an ``IndexFlatIP`` as FAISS itself would, in memory that does not grow with it.

    FAISS can only write an index that it holds in memory. Its file is two short heads, the vectors as they are, and the
    keys; the heads are those of an empty index with the true counts. FAISS reads the file back before it counts.

    Raises:
        OSError: The disk is full, or the folder may not be written.
    """
    faiss = load_faiss()
    head = bytearray(faiss.serialize_index(faiss.IndexIDMap(faiss.IndexFlatIP(dim))).tobytes())
    # Each head: four letters, int32 dimension, int64 count, …; behind the second the numbers of values and of keys.
    size = (len(head) - 16) // 2
    for start in (0, size):
        struct.pack_into("<q", head, start + 8, len(keys))
    written, last = 0, None
    with _told(path), whole_path(path) as temporary:
        with temporary.open("wb") as stream:
            stream.write(head[: 2 * size] + struct.pack("<Q", len(keys) * dim))
            for block in blocks:
                stream.write(np.ascontiguousarray(block, dtype="<f4").data)
                written, last = written + len(block), block[-1]
            stream.write(struct.pack("<Q", len(keys)) + keys.astype("<i8").tobytes())
        index = read_faiss(temporary)
        same = index.ntotal == len(keys) == written and isinstance(index, faiss.IndexIDMap)
        if same and last is not None:
            same = (
                np.array_equal(index.index.reconstruct(written - 1), last) and index.id_map.at(written - 1) == keys[-1]
            )
        if not same:
            raise RuntimeError(
                f"{path}: this version of FAISS ({faiss.__version__}) lays out flat indexes in another way; install "
                "another version of faiss-cpu"
            )


def read_faiss(path: Path, *, mmap: bool = True) -> Any:
    """Read a FAISS file, mapped where this build of FAISS can: the system loads what is searched.

    Raises:
        ValueError: FAISS cannot read it.
    """
    faiss = load_faiss()
    try:
        if mmap:
            try:
                return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            except (RuntimeError, AttributeError):
                logger.debug("%s: not mapped", path, exc_info=True)
        with path.open("rb") as stream:
            return faiss.read_index(faiss.PyCallbackIOReader(stream.read, 2**24))
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{path}: not a FAISS index, or damaged ({error}); build the index again") from error


def sample_rows(index: Any, count: int, dim: int, recipe: Recipe) -> Keys:
    """Which rows an index is trained on: drawn over all of them, none twice, the same for the same seed; ascending.

    Raises:
        ValueError: There are more centroids than ``train_size``.

    Example:
        >>> sample_rows(make_index("IVF4,Flat", 8), 100, 8, Recipe(train_size=10)).shape
        (10,)
    """
    needed = max(*_centroids(index), 1)
    if recipe.train_size is None:
        wanted = max(SAMPLED_PER_CENTROID * needed, FEWEST_SAMPLED)
        size = min(count, max(min(wanted, TRAINING_BYTES // (4 * dim)), needed))
    elif recipe.train_size < needed:
        raise ValueError(f"train_size={recipe.train_size} (--train-size) is less than the {needed} centroids to train")
    else:
        size = min(count, recipe.train_size)
    if size < min(FEWEST_PER_CENTROID * needed, count):
        logger.warning(
            "trained on %s vectors, fewer than %d for each of %s centroids; raise train_size (--train-size)",
            f"{size:,}", FEWEST_PER_CENTROID, f"{needed:,}",
        )  # fmt: skip
    if size == count:
        return np.arange(count)
    drawn = np.random.Generator(np.random.PCG64(recipe.seed)).choice(count, size, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def _centroids(index: Any) -> tuple[int, int]:
    """How many inverted lists an index has, and how many centroids each of its codes; 0: none."""
    faiss = load_faiss()
    inverted = faiss.try_extract_index_ivf(index)
    quantizers = [part.pq for part in parts(index) if isinstance(getattr(part, "pq", None), faiss.ProductQuantizer)]
    return (0 if inverted is None else int(inverted.nlist)), max((int(one.ksub) for one in quantizers), default=0)


def _check_size(index: Any, factory: str, count: int) -> None:
    """Refuse an index that cannot be trained on so few vectors; warn of one that will be poor."""
    lists, codes = _centroids(index)
    told, most = f"factory={factory!r} (--factory)", count // FEWEST_PER_CENTROID
    sensible = f"use at most IVF{most}, or 'Flat'" if most else "use 'Flat'"
    if lists > count:
        raise ValueError(f"{told}: {lists} lists are too many for {count:,} vectors; {sensible}")
    if codes > count:
        raise ValueError(
            f"{told}: PQ trains {codes} centroids, more than the {count:,} vectors; use 'Flat', or SQ8 in its place"
        )
    if lists * FEWEST_PER_CENTROID > count:
        logger.warning("%s: %d lists are many for %s vectors; %s", told, lists, f"{count:,}", sensible)


def _seed_training(index: Any, seed: int) -> None:
    """Give the seed to the k-means of an index; and let it say nothing of few points, which is said here."""
    for part in parts(index):
        for holder in (part, getattr(part, "pq", None)):
            if (clustering := getattr(holder, "cp", None)) is not None:
                clustering.seed = seed + 1234  # FAISS's own, where the seed is 0
                clustering.min_points_per_centroid = 1


# Recall


def measure_recall(index: Any, vectors: Vectors, recipe: Recipe) -> tuple[Recall, str | None]:
    """Measure recall on documents as queries, and set the search parameters that reach the aim.

    Args:
        index: The FAISS index of all the vectors, by key; the parameters found are set in it.
        vectors: The vectors.
        recipe: Its parameters are used as they are. None: FAISS's own are doubled until the aim is reached, or nothing
            is gained.

    Returns:
        The recall, and the parameters.
    """
    count, k = vectors.count, min(K, vectors.count - 1)
    random = np.random.Generator(np.random.PCG64(recipe.seed))
    rows = np.sort(random.choice(count, min(QUERIES, count), replace=False))
    queries = vectors.take(rows)
    thresholds = _exact_thresholds(vectors, queries, rows, k) if k else np.zeros(len(rows), np.float32)
    knobs = _knobs(index)

    def tried(values: dict[str, int]) -> float:
        if values:
            set_parameters(index, _written(values))
        found = _share(index, vectors, queries, rows, thresholds, k) if k else 1.0
        logger.info("recall@%d %.3f with %s", K, found, _written(values) or "no parameters")
        return found

    if recipe.parameters is not None:
        set_parameters(index, recipe.parameters)
        if (given := tried({})) < recipe.recall_aim:
            logger.warning("%s", _below(given, recipe.parameters, recipe))
        return Recall(given, k, len(rows), recipe.seed), recipe.parameters
    values = latest = {name: low for name, (low, _) in knobs.items()}
    top, misses = tried(values), 0
    # One step without a gain may be chance.
    while top < recipe.recall_aim and misses < 2:
        steps = [
            {**latest, name: min(2 * latest[name], high)} for name, (_, high) in knobs.items() if latest[name] < high
        ]
        if not steps:
            break
        recall, _, latest = max(
            ((tried(step), -place, step) for place, step in enumerate(steps)), key=lambda one: one[:2]
        )
        misses = 0 if recall > top else misses + 1
        if recall > top:
            top, values = recall, latest
    if values:
        set_parameters(index, _written(values))
    if top < recipe.recall_aim:
        logger.warning("%s", _below(top, _written(values), recipe))
    return Recall(top, k, len(rows), recipe.seed), _written(values) or None


def _written(values: dict[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _knobs(index: Any) -> dict[str, tuple[int, int]]:
    """The parameters that trade time for recall, each with FAISS's own value and the highest that makes sense."""
    faiss = load_faiss()
    inner = parts(index)
    inverted = faiss.try_extract_index_ivf(index)
    knobs = {}
    if inverted is not None:
        knobs["nprobe"] = (1, int(inverted.nlist))
    elif any(isinstance(part, faiss.IndexHNSW) for part in inner):
        knobs["efSearch"] = (16, 4096)
    if any(isinstance(part, faiss.IndexRefine) for part in inner):
        knobs["k_factor_rf"] = (1, 256)
    return knobs


def _exact_thresholds(vectors: Vectors, queries: Matrix, own: Keys, k: int) -> Matrix:
    """The k-th best score of each query, itself left out, found a block at a time."""
    top = np.full((len(queries), k), -np.inf, np.float32)
    start = 0
    for block in vectors.blocks():
        scores = queries @ block.T
        inside = np.flatnonzero((own >= start) & (own < start + len(block)))
        scores[inside, own[inside] - start] = -np.inf
        top = -np.partition(-np.concatenate([top, scores], axis=1), k - 1, axis=1)[:, :k]
        start += len(block)
    return np.asarray(top.min(axis=1), np.float32)


def _share(index: Any, vectors: Vectors, queries: Matrix, own: Keys, thresholds: Matrix, k: int) -> float:
    _, found = index.search(queries, k + 1)
    rows = np.where(found < 0, -1, np.searchsorted(vectors.keys, found))
    # Each query's own row is left out, or else the last.
    dropped = rows == own[:, None]
    dropped[~dropped.any(axis=1), -1] = True
    rows = rows[~dropped].reshape(len(queries), k)
    there = np.unique(rows[rows >= 0])
    values, hits = vectors.take(there), 0
    for query, mine, threshold in zip(queries, rows, thresholds, strict=True):
        scores = values[np.searchsorted(there, mine[mine >= 0])] @ query
        hits += int((scores >= threshold - _EQUAL * max(1.0, abs(float(threshold)))).sum())
    return float(hits / rows.size)


def _below(recall: float, parameters: str, recipe: Recipe) -> str:
    if recipe.parameters is not None:
        remedy = "leave the parameters out (--parameters), then they are found"
    elif "HNSW" in recipe.factory and "IVF" not in recipe.factory:
        remedy = "take a graph of more links, as 'HNSW64'"
    else:
        remedy = "keep the vectors as they are beside the codes (add ',RFlat'), or take longer codes"
    return (
        f"recall@{K} of {recipe.factory} is {recall:.3f}, below the aim of {recipe.recall_aim} "
        f"({parameters or 'no search parameters'}); {remedy}, or use 'Flat', which is exact"
    )
