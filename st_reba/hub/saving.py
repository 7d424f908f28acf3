"""Save a model whole or not at all: weights or the name of a base, code, golden vectors, card."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from ..bases import EMBEDDED, adapted_model
from ..folders import check_folder, new_folder
from ..modules.at_base import left_at_base
from ..modules.decoder import DecoderTransformer, has_adapter
from ..persistence import load
from ..recipe import About
from ..truncation import truncate_layers as truncated
from .card import write_card
from .golden import FILE as GOLDEN
from .golden import compare, read_golden, write_golden

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHTS = "Save with weights=True"
_KIND = "a saved model"


def save(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    golden: bool = True,
    weights: bool = True,
    truncate_layers: bool = False,
    check: bool = True,
    about: About | None = None,
    name: str | None = None,
    base: str | None = None,
    base_revision: str | None = None,
) -> None:
    """Save a model as ``model.save_pretrained(folder)`` does, with golden vectors and card, whole or not at all.

    Args:
        model: The model.
        folder: The folder to make; an empty one may be there.
        overwrite: Replace a saved model that is there, with all its files.
        golden: Write golden.json, by which ``st-reba verify`` knows the model again.
        weights: Write the weights; False: only the base's name and revision, from which backbone and tokenizer are
            then loaded.
        truncate_layers: Write the layers that run, and none above (see :func:`st_reba.truncate_layers`).
        check: With ``weights=False`` or ``truncate_layers=True``, load the result and compare it with ``model`` before
            it is put in place; both are in memory then. False leaves this to :func:`st_reba.hub.verify.verify`.
        about: What a recipe says of the model, for its card.
        name: What the card calls the model; None: its base and method.
        base: For ``weights=False``: the base's Hub id, or its folder (the result then loads on this machine only);
            None: the Hub id that the model was built from.
        base_revision: For ``weights=False``: the base's commit; None: the one that the model was built from.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ValueError: The weights are not those of a base that has a name, or no layer can be left out.

    Example:
        >>> import st_reba, tempfile
        >>> from st_reba.hub.saving import save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(st_reba.build("mini"), folder)
        ...     sorted(name for name in os.listdir(folder) if name.endswith("json"))[1:4]
        ['config_sentence_transformers.json', 'golden.json', 'modules.json']
    """
    if weights and (base is not None or base_revision is not None):
        raise ValueError(f"base={base!r}, base_revision={base_revision!r} belong to weights=False. Drop them.")
    if truncate_layers and not weights:
        raise ValueError("truncate_layers=True: with weights=False all of the base's layers are loaded. Drop one.")
    source = None if weights else _source(model, base, base_revision)
    short = truncated(model) if truncate_layers else model
    first: Any = short[0]
    ours = isinstance(first, DecoderTransformer)
    place = str(first.model.name_or_path) if ours and has_adapter(first.model) else ""
    if os.path.isdir(place):
        warnings.warn(
            f"The adapter's base is the folder {place!r}: the saved model loads on this machine only. Build from a Hub "
            "id, or save all weights: st_reba.bases.merge_adapter(model[0].model) before.",
            stacklevel=2,
        )
    check = check and (source is not None or truncate_layers)
    with new_folder(folder, overwrite=overwrite, kind=_KIND, is_kind=_is_model) as temporary:
        with nullcontext() if source is None else left_at_base(first, *source):
            short.save_pretrained(str(temporary))
        if golden or check:
            write_golden(model, temporary)
        if check:
            _check(model, temporary, source)
            if not golden:
                (temporary / GOLDEN).unlink()
        # A model that is not ours keeps sentence-transformers' own card.
        if ours:
            write_card(short, temporary, about=about, name=name)


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`save` would raise for its folder, before the work of building is done."""
    check_folder(Path(folder), overwrite=overwrite, kind=_KIND, is_kind=_is_model)


def _is_model(folder: Path) -> bool:
    return (folder / "modules.json").is_file()


def _source(model: SentenceTransformer, base: str | None, revision: str | None) -> tuple[str, str | None]:
    """Name and revision of the base whose weights are not saved."""
    first: Any = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(f"weights=False: the model starts with {type(first).__name__}, not with a module of st_reba.")
    config: Any = first.model.config
    if getattr(first.model, "hf_quantizer", None) is not None:
        raise ValueError(f"weights=False: the weights are quantized, which the base's need not be. {_WEIGHTS}.")
    if has_adapter(first.model):
        raise ValueError(
            "weights=False: the model has an adapter, which no base holds. Save it as it is: the adapter alone is "
            "written, or, after st_reba.bases.merge_adapter(model[0].model), all weights."
        )
    for module in list(model)[1:]:
        # A filter is small, and stored by itself.
        if any(True for _ in module.parameters()) and not (first.stage("filter") and isinstance(module, Dense)):
            raise ValueError(
                f"weights=False: {type(module).__name__} has weights of its own, which no base holds. {_WEIGHTS}."
            )
    if base is None:
        base = first.base_model or ""
        if base in EMBEDDED:
            raise ValueError(f"weights=False: {base!r} is embedded in st_reba, not on the Hub. {_WEIGHTS}.")
        if not _HUB_ID.fullmatch(base):
            raise ValueError(
                f"weights=False: the model was built from a folder, and {base!r} says nothing to another machine. Give "
                f"base='organization/name', where the Hub has that model. Or: {_WEIGHTS}."
            )
    if revision is None and base == first.base_model:
        revision = first.base_revision
    if not _COMMIT.fullmatch(revision or "") and config.name_or_path == base:
        # A branch or tag moves; this is what was loaded.
        revision = getattr(config, "_commit_hash", None) or revision
    if not os.path.isdir(base) and not _COMMIT.fullmatch(revision or ""):
        warnings.warn(
            f"base_revision={revision!r} is no commit: when {base!r} changes, so do this model's vectors. Give "
            "base_revision=….",
            stacklevel=3,
        )
    if adapted_model(base, base, {"revision": revision}) is not None:
        raise ValueError(f"weights=False: {base!r} is an adapter, and what it was merged into is no base. {_WEIGHTS}.")
    return base, revision


def _check(model: SentenceTransformer, folder: Path, source: tuple[str, str | None] | None) -> None:
    """Load what was written: a model that was trained since, another base, or fewer layers may give other vectors."""
    option = "truncate_layers=True" if source is None else "weights=False"
    try:
        again = load(folder, device=str(model.device), dtype=cast(Any, model.transformers_model).dtype)
    except ValueError as error:
        raise ValueError(f"{option}: what was written could not be loaded: {error.__cause__ or error}") from error
    report = compare(again, read_golden(folder / GOLDEN))
    if not report.ok:
        of = "" if source is None else f" with the weights and tokenizer of {source[0]!r} (revision {source[1]!r})"
        raise ValueError(
            f"{option}:{of} the loaded model gives other vectors (cosine {report.worst.cosine:.4f} for "
            f"{report.worst.text[:20]!r}). {_WEIGHTS if source else 'Save it with all layers'}."
        )
