"""Some rows of a FAISS index, as codes, so that what is kept does not change by a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flat import load_faiss

_PROBED = 256
_ROWS_A_TIME = 65536


def keep_rows(index: Any, rows: NDArray[np.int64]) -> Any:
    """Keep some rows of a FAISS index and number them anew from 0.

    Codes are moved, not made again: a vector that is encoded from its own reconstruction may fall into another list.
    A graph (HNSW) has to be built again over the rows that stay.

    Args:
        index: An index that was read into memory, not mapped; it is used up.
        rows: Which rows, ascending.

    Returns:
        The index of those rows, trained as before: more can be added.

    Raises:
        ValueError: An index of this kind cannot lose rows without changing others.
    """
    probes = rows[np.unique(np.linspace(0, len(rows) - 1, min(_PROBED, len(rows)), dtype=np.int64))]
    expected = reconstructed(index, probes)
    part = load_faiss().downcast_index(index)
    kept = _kept(part, rows)
    # What is seen through `part` lives only as long as `index` does.
    index = index if kept is part else kept
    found = reconstructed(index, np.searchsorted(rows, probes))
    if index.ntotal != len(rows) or not np.array_equal(expected, found):
        raise ValueError(_refusal(index))
    return index


def reconstructed(index: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The vectors [rows, d] as far as the index knows them.

    Args:
        index: Any FAISS index that stores its vectors or their codes.
        rows: Which, in any order.

    Returns:
        The vectors; those of a quantized index are approximations.
    """
    if not len(rows):
        return np.zeros((0, index.d), dtype=np.float32)
    faiss = load_faiss()
    lists = faiss.try_extract_index_ivf(index)
    if lists is not None:
        if isinstance(faiss.downcast_index(lists), faiss.IndexIVFFastScan):  # reading a row of these ends the process
            raise ValueError(_refusal(lists))
        if lists.direct_map.no():
            lists.make_direct_map()
    vectors: NDArray[np.float32] = index.reconstruct_batch(np.ascontiguousarray(rows, dtype=np.int64))
    return vectors


def _kept(index: Any, rows: NDArray[np.int64]) -> Any:
    faiss = load_faiss()
    if isinstance(index, (faiss.IndexPreTransform, faiss.IndexRefine)):
        for name in ("index",) if isinstance(index, faiss.IndexPreTransform) else ("base_index", "refine_index"):
            part = faiss.downcast_index(getattr(index, name))
            fewer = _kept(part, rows)
            if fewer is not part:  # the outer index owns its parts
                setattr(index, name, fewer)
                fewer.this.disown()
                part.this.own(True)
        index.ntotal = len(rows)
        return index
    if isinstance(index, faiss.IndexIVF):
        return _lists_kept(index, rows)
    if isinstance(index, faiss.IndexFlatCodes):
        chosen = np.zeros(index.ntotal, dtype=bool)
        chosen[rows] = True
        # The selectors do not hold on to what they are made of.
        selector = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        index.remove_ids(faiss.IDSelectorNot(selector))
        return index
    return _added_again(index, rows)


def _lists_kept(index: Any, rows: NDArray[np.int64]) -> Any:
    faiss = load_faiss()
    lists = faiss.downcast_InvertedLists(index.invlists)
    if not isinstance(lists, faiss.ArrayInvertedLists):
        raise ValueError(_refusal(index))
    index.set_direct_map_type(faiss.DirectMap.NoMap)
    number = np.full(index.ntotal, -1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    fewer = faiss.ArrayInvertedLists(index.nlist, index.code_size)
    for place in range(index.nlist):
        size = lists.list_size(place)
        if not size:
            continue
        ids = number[faiss.rev_swig_ptr(lists.get_ids(place), size)]
        stay = ids >= 0
        codes = faiss.rev_swig_ptr(lists.get_codes(place), size * index.code_size).reshape(size, index.code_size)
        ids, codes = np.ascontiguousarray(ids[stay]), np.ascontiguousarray(codes[stay])
        if len(ids):
            fewer.add_entries(place, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes))
    index.replace_invlists(fewer, True)
    fewer.this.disown()
    index.ntotal = len(rows)
    return index


def _added_again(index: Any, rows: NDArray[np.int64]) -> Any:
    faiss = load_faiss()
    again = faiss.clone_index(index)
    again.reset()
    for start in range(0, len(rows), _ROWS_A_TIME):
        again.add(reconstructed(index, rows[start : start + _ROWS_A_TIME]))
    return again


def _refusal(index: Any) -> str:
    return (
        f"an index of the kind {type(load_faiss().downcast_index(index)).__name__} cannot lose rows without changing "
        "the others; build the index again from its texts (st-reba index), or keep the deleted rows"
    )
