"""Base model + method → SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .methods import DEFAULT, OPTIONS, Method
from .recipe import recipe_for

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer


def build(
    base: str | os.PathLike[str] | Any,
    method: str | Method | None = None,
    *,
    tokenizer: Any = None,
    dtype: str | torch.dtype | None = None,
    quantization: str | None = None,
    gguf_file: str | None = None,
    check: bool = True,
    texts: Any = None,
    purpose: str | None = None,
    **options: Any,
) -> SentenceTransformer:
    """Turn a pretrained decoder into a text embedder, without training.

    Args:
        base: ``"mini"`` (the embedded tiny model), a folder, a Hub id, a GGUF file or a folder that holds one, a recipe
            (a YAML file), a model of the zoo as ``"zoo:qwen3-0.6b-reba"``; or a loaded model of transformers, whose
            weights are shared, so that one model in memory both writes and embeds (give its ``tokenizer``).
        method: ``"reba"``, ``"echo"``, ``"classical"``, ``"prompteol"``, ``"nosink"``; the short form, as
            ``"echo:pooling=mean"``; or a :class:`Method`. None: the recipe's, else PromptEOL, worded as
            ``template="prompteol-search"``: ``encode`` for similarity, ``encode_query`` and ``encode_document`` for
            search; it reads attention outputs where the base shows them. ``"auto"``: what suits ``texts``.
        tokenizer: Folder or Hub id of another tokenizer than the base's; of a loaded model, its tokenizer.
        dtype: Number type of the weights; None: float32 on a CPU, as stored on a GPU.
        quantization: ``"nf4"`` (4 bits) or ``"int8"``, by bitsandbytes.
        gguf_file: Name of the GGUF file in the folder or Hub repository ``base``.
        check: Check on a few tokens that every layer sees what its mask says.
        texts: With ``"auto"``: texts like those to be embedded, without labels.
        purpose: With ``"auto"``: ``"similarity"``, the default, or ``"search"``, where the texts are documents.
        **options: Options of the method (see :class:`Method`), and what ``SentenceTransformer`` takes, as ``device``,
            ``prompts``, ``revision``, ``token``, ``trust_remote_code`` and ``model_kwargs``.

    Returns:
        RepeatTransformer or NoSinkTransformer, a pooling, PromptEnsemble for several templates, a filter's Dense, and
        Normalize. (``nosink`` keeps a sentence-transformers model's input and pooling, unless ``pooling`` is given.)

    Raises:
        ValueError: An unknown name or value, options that exclude each other, or a base that cannot be embedded.
        OSError: The base was not found.
        ImportError: The base needs an extra that is not installed.

    Source:
        ReBA, Echo and NoSink; ``st_reba.methods.METHODS`` names the sections.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> model.encode_query("天气怎么样？").shape
        (192,)
    """
    named = {"tokenizer": tokenizer, "dtype": dtype, "quantization": quantization, "gguf_file": gguf_file}
    loading = {**options, **{name: value for name, value in named.items() if value is not None}}
    given = {name: loading.pop(name) for name in OPTIONS if name in loading}
    if method == "auto":
        if texts is None or (other := sorted(given.keys() - {"max_seq_length"})):
            what = "needs texts=…, like those to be embedded" if texts is None else f"chooses {other[0]}. Drop it"
            raise ValueError(f"method='auto' {what}.")
        from .evaluation.tune import auto

        return auto(base, texts, purpose=purpose or "similarity", check=check, **given, **loading)
    if texts is not None or purpose is not None:
        raise ValueError("texts=… and purpose=… belong to method='auto'. Drop them.")
    told = {**loading, **given, **({} if method is None else {"method": method})}
    if isinstance(base, (str, os.PathLike)) and (recipe := recipe_for(base, told)) is not None:
        base, loading = recipe.base, {**recipe.loading, **loading}
        if method is None or method == recipe.method["name"]:
            given = {**recipe.method, **given}
            method = given.pop("name")
    prompts = {} if loading.get("prompts") is None else loading["prompts"]
    if not isinstance(prompts, Mapping) or any(not isinstance(each, str) for pair in prompts.items() for each in pair):
        raise ValueError(f"prompts={prompts!r:.80} must map names to texts, as {{'query': 'Query: '}}.")
    chosen = replace(method, **given) if isinstance(method, Method) else Method.parse(method or DEFAULT, **given)
    # Here, so that most errors come before torch is imported.
    from .assembly import Assembly

    takes_default = method is None and "read" not in given
    return Assembly(base, chosen, loading, check=check, may_read_states=takes_default).run()
