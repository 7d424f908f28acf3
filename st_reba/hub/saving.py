"""Save a model whole or not at all: weights or the name of a base, code, golden vectors, card."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from .. import truncation
from ..bases import EMBEDDED, adapted_model
from ..files import check_folder, whole_folder
from ..modules import DecoderTransformer
from ..modules.adapters import has_adapter
from ..modules.stored import left_at_base
from ..persistence import load
from .golden import FILE as GOLDEN
from .golden import Report, compare, read_golden, write_golden

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHTS = "Save with weights=True"


def save(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    golden: bool = True,
    weights: bool = True,
    truncate_layers: bool = False,
    recipe: Any = None,
    base: str | None = None,
    base_revision: str | None = None,
) -> None:
    """Save a model as ``model.save_pretrained(folder)`` does, with golden vectors and card, whole or not at all.

    Args:
        model: The model.
        folder: The folder to make; an empty one may be there.
        overwrite: Replace a saved model that is there, with all its files.
        golden: Write golden.json, by which ``st-reba verify`` knows the model again.
        weights: Write the weights. False: only where they are: the base model's name and revision, from which the
            backbone and its tokenizer are then loaded. The result is loaded and compared before it is put in place.
        truncate_layers: Write the layers that run, and none above (see :func:`st_reba.truncate_layers`). The result is
            loaded and compared with the whole model before it is put in place.
        recipe: What the model was built by, for its card: as :func:`st_reba.hub.card.write_card` takes it.
        base: For ``weights=False``: the base's Hub id, or its folder, where the result stays on this machine; None:
            the Hub id that the model was built from.
        base_revision: For ``weights=False``: the base's commit; None: the one that the model was built from.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ValueError: The weights cannot be left at the base, as they are not the base's, or the base has no name; or no
            layer can be left out.

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
        raise ValueError(
            "truncate_layers=True: with weights=False the base's are loaded, all layers. Drop one of both."
        )
    source = None if weights else _source(model, base, base_revision)
    short = truncation.truncate_layers(model) if truncate_layers else model
    with whole_folder(folder, overwrite=overwrite, kind="a saved model", is_kind=_is_model) as temporary:
        with _left(model, source):
            short.save_pretrained(str(temporary))
        _warn_of_local_base(model)
        checked = source is not None or truncate_layers
        if golden or checked:
            write_golden(model, temporary)
        if source is not None:
            _check_base(model, temporary, source)
        if truncate_layers:
            _check_truncated(model, temporary)
        if checked and not golden:
            (temporary / GOLDEN).unlink()
        _card(short, temporary, recipe)


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`save` would raise, before the work of building is done."""
    check_folder(Path(folder), overwrite=overwrite, kind="a saved model", is_kind=_is_model)


def _warn_of_local_base(model: SentenceTransformer) -> None:
    """An adapter says where its base is, which a folder of this machine is to nobody else."""
    backbone: Any = model[0].model if isinstance(model[0], DecoderTransformer) else None
    if has_adapter(backbone) and os.path.isdir(backbone.name_or_path):
        warnings.warn(
            f"The adapter's base is the folder {backbone.name_or_path!r}: the saved model loads on this machine only. "
            "Build from a Hub id, or save all weights: st_reba.bases.merge_adapter(model[0].model) before.",
            stacklevel=3,
        )


def _is_model(folder: Path) -> bool:
    return (folder / "modules.json").is_file()


def _card(model: SentenceTransformer, folder: Path, recipe: Any) -> None:
    """The one place where README.md is written anew; a model that is not ours keeps sentence-transformers' own."""
    from .card import write_card

    if isinstance(model[0], DecoderTransformer):
        write_card(model, folder, recipe=recipe)


@contextmanager
def _left(model: SentenceTransformer, source: tuple[str, str | None] | None) -> Iterator[None]:
    if source is None:
        yield
        return
    first: Any = model[0]
    with left_at_base(first, *source):
        yield


def _source(model: SentenceTransformer, base: str | None, revision: str | None) -> tuple[str, str | None]:
    """Name and revision of the base whose weights are not saved."""
    first: Any = model[0]
    if not isinstance(first, DecoderTransformer):
        raise ValueError(f"weights=False: the model starts with {type(first).__name__}, not with a module of st_reba.")
    backbone: Any = first.model
    if getattr(backbone, "hf_quantizer", None) is not None:
        raise ValueError(
            f"weights=False: the weights are quantized, which the base of that name need not be. {_WEIGHTS}."
        )
    if has_adapter(backbone):
        raise ValueError(
            "weights=False: the model has an adapter, which no base holds. Save it as it is: the adapter alone is "
            "written, or, after st_reba.bases.merge_adapter(model[0].model), all weights."
        )
    # A post-filter is small, and stored by itself.
    kept = [module for module in list(model)[1:] if not (first.postfilter and isinstance(module, Dense))]
    if others := [type(module).__name__ for module in kept if any(True for _ in module.parameters())]:
        raise ValueError(f"weights=False: {others[0]} has weights of its own, which no base holds. {_WEIGHTS}.")
    if base is None:
        base = first.base_model
        if base in EMBEDDED:
            raise ValueError(f"weights=False: {base!r} is embedded in st_reba and no model on the Hub. {_WEIGHTS}.")
        if base is None or not _HUB_ID.fullmatch(base):
            raise ValueError(
                f"weights=False: the model was built from a folder, and {base!r} says nothing to another machine. Give "
                f"base='organization/name', where the Hub has that model. Or: {_WEIGHTS}."
            )
    if revision is None and base == first.base_model:
        revision = first.base_revision
    commit = getattr(backbone.config, "_commit_hash", None)
    if not _COMMIT.fullmatch(revision or "") and commit and backbone.config.name_or_path == base:
        # A branch or tag moves; this is what was loaded.
        revision = commit
    if not os.path.isdir(base) and not _COMMIT.fullmatch(revision or ""):
        warnings.warn(
            f"base_revision={revision!r} is no commit: when {base!r} changes, so do this model's vectors. Give "
            "base_revision=….",
            stacklevel=3,
        )
    if adapted_model(base, base, {"revision": revision}) is not None:
        raise ValueError(f"weights=False: {base!r} is an adapter, and what it was merged into is no base. {_WEIGHTS}.")
    return base, revision


def _check_base(model: SentenceTransformer, folder: Path, source: tuple[str, str | None]) -> None:
    """Load what was written: a model that was trained since, or another base, gives other vectors."""
    report = _report(model, folder, "weights=False")
    if not report.ok:
        worst = min(report.texts, key=lambda each: each.cosine)
        raise ValueError(
            f"weights=False: with the weights and tokenizer of {source[0]!r} (revision {source[1]!r}) the model gives "
            f"other vectors (cosine {worst.cosine:.4f} for {worst.text[:20]!r}), so its own are not that base's. "
            f"{_WEIGHTS}."
        )


def _check_truncated(model: SentenceTransformer, folder: Path) -> None:
    """Load what was written: a backbone may be set up by its number of layers when it is loaded, too."""
    report = _report(model, folder, "truncate_layers=True")
    if not report.ok:
        worst = min(report.texts, key=lambda each: each.cosine)
        raise ValueError(
            f"truncate_layers=True: without its upper layers the loaded model gives other vectors (cosine "
            f"{worst.cosine:.4f} for {worst.text[:20]!r}). Save it with all its layers."
        )


def _report(model: SentenceTransformer, folder: Path, option: str) -> Report:
    """How a saved model's vectors compare with its golden ones."""
    backbone: Any = model.transformers_model
    try:
        again = load(folder, device=str(model.device), dtype=backbone.dtype)
    except ValueError as error:
        raise ValueError(f"{option}: what was written could not be loaded: {error.__cause__}") from error
    return compare(again, read_golden(folder / GOLDEN))
