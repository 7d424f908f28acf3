"""Base model + method → SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .modules import Method, Stage
from .modules.options import shown
from .recipe import is_recipe, read_recipe
from .spec import METHODS, Spec
from .zoo import recipe_named

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer


def build(
    base: str | os.PathLike[str],
    method: str | Method | None = None,
    *,
    stages: Sequence[Stage | Mapping[str, Any] | str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype | None = None,
    check: bool = True,
    texts: Any = None,
    **fields: Any,
) -> SentenceTransformer:
    """Turn a pretrained decoder into a text embedder.

    Args:
        base: ``"mini"`` (the embedded tiny model), a local folder, a Hub id, a model of the zoo as
            ``"zoo:qwen3-0.6b-reba"``, or a recipe: a YAML file, whose values those given here override.
        method: ``"reba"``, ``"echo"``, ``"classical"``, ``"prompteol"`` or ``"nosink"``; the short form, as
            ``"echo:pooling=mean"``; or an object, as ``Echo(pooling="mean")``. None: the recipe's, else ReBA.
            ``"auto"``: what suits ``texts``.
        stages: What happens around the layers, with any method: :class:`NoSink`, :class:`LayerPlan`,
            :class:`ReadLayers`, :class:`Prepend`, :class:`Ensemble`.
        tokenizer: Folder or Hub id whose tokenizer is used instead of the base's own.
        dtype: Of the weights; None: float32 on a CPU, the checkpoint's own on a GPU.
        check: Check on a few tokens that every layer obeys its plan.
        texts: With ``"auto"``: a file, a folder or texts like those to be embedded, at least 50, without
            labels. By 300 of them layers, poolings and some filters are tried, beside the papers' methods; see
            :func:`st_reba.tune`, which searches more, and reports. On mini it takes about a minute. ``like="search"``
            or ``"topics"`` and ``budget="speed"`` or ``"quality"`` say what is wanted.
        **fields: The method's fields, as ``pooling="mean"``; and what ``SentenceTransformer`` takes, as ``device``,
            ``prompts``, ``revision``, ``token``, ``trust_remote_code``, ``model_kwargs``.

    Returns:
        RepeatTransformer (or NoSinkTransformer), a pooling (ReBAPooling, ChunkedReBAPooling or Pooling), PromptEnsemble
        where there are several templates, and Normalize. (nosink on a sentence-transformers model, without a pooling:
        the model's own input, prompts and pooling are kept.)

    Raises:
        ValueError: An unknown name or value, options that exclude each other, or a layer that does not obey its plan.
        OSError: The base was not found.

    Source:
        ReBA, Echo and NoSink; each method's class names the section.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> model.encode_query("天气怎么样？").shape
        (192,)
    """
    if method == "auto":
        return _auto(base, texts, stages, fields, tokenizer=tokenizer, dtype=dtype, check=check)
    if texts is not None:
        raise ValueError(f"texts belong to method='auto', not to method={shown(method)}. Drop them.")
    own = {field for kinds in METHODS.values() for kind in kinds for field in kind.names()}
    loading = {name: fields.pop(name) for name in list(fields) if name not in own}
    recipe = None
    if isinstance(base, str) and base.startswith("zoo:"):
        recipe = recipe_named(base.removeprefix("zoo:"), {**loading, **fields, "stages": stages})
    elif is_recipe(base):
        recipe = read_recipe(base)
    if recipe is not None:
        base, loading, values = recipe.base, {**recipe.loading, **loading}, dict(recipe.values)
        borrowed, recipe_stages = loading.pop("tokenizer", None), values.pop("stages", None)
        tokenizer = borrowed if tokenizer is None else tokenizer
        stages = recipe_stages if stages is None else stages
        if method is None or (isinstance(method, str) and ":" not in method):
            named = values.pop("method", None)
            method, fields = named if method is None else method, {**values, **fields}
    if method == "nosink" and not {"k", "pooling"} & set(fields):
        from . import bases

        setting = str(fields.get("setting", "baseline")).lower()
        if not setting.startswith(("baseline", "extend")) and bases.is_repository(bases.locate(base)[0], loading):
            # Of a sentence-transformers model all layers are converted, as in the paper.
            fields["k"] = "all"
    spec = Spec.make(method, stages, fields)
    # Here, so that most errors are told before torch is imported, which takes seconds.
    from .assembly import LOADING, Assembly

    if strange := {name: value for name, value in loading.items() if name not in LOADING}:
        # Says that they are not known.
        Spec.make(method, stages, {**fields, **strange})
    return Assembly(base, spec, loading, tokenizer, dtype, check).run(pooling_given="pooling" in fields)


def _auto(
    base: str | os.PathLike[str], texts: Any, stages: Any, fields: dict[str, Any], **loading: Any
) -> SentenceTransformer:
    """What suits texts: its own options are ``like``, ``budget`` and ``seed``."""
    if texts is None:
        raise ValueError("method='auto' needs texts=…: a file, a folder or texts like those to be embedded.")
    from .assembly import LOADING

    found = ["stages"] * (stages is not None)
    found += sorted(set(fields) - {*LOADING, "like", "budget", "seed", "max_seq_length"})
    if found:
        raise ValueError(f"{found[0]}: method='auto' finds what suits texts. Drop it, or name another method.")
    from .evaluation.tune import auto

    return auto(base, texts, **loading, **fields)
