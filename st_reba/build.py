"""Base model + method → SentenceTransformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .methods import Method
from .request import Base, BuildRequest, split_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from sentence_transformers import SentenceTransformer

    from .evaluation.tune_plan import Purpose


def build(
    base: Base,
    method: str | Method | None = None,
    *,
    tokenizer: Any = None,
    dtype: str | torch.dtype | None = None,
    quantization: str | None = None,
    gguf_file: str | None = None,
    check: bool = True,
    texts: Sequence[str] | None = None,
    purpose: Purpose | None = None,
    **options: Any,
) -> SentenceTransformer:
    """Turn a pretrained decoder into a text embedder, without training.

    Args:
        base: ``"mini"`` (the bundled tiny model), a folder, a Hub id, a GGUF file or a folder that
            holds one, a recipe (a YAML file), a model of the zoo such as
            ``"zoo:qwen3-0.6b-reba"``; or a loaded model of transformers, whose weights are shared,
            so that one model in memory both writes and embeds (give its ``tokenizer``).
        method: ``"reba"``, ``"echo"``, ``"classical"``, ``"prompteol"``, ``"nosink"``; the short
            form, such as ``"echo:pooling=mean"``; or a :class:`Method`. None: the recipe's, else
            PromptEOL, worded as ``template="prompteol-search"``: ``encode`` for similarity,
            ``encode_query`` and ``encode_document`` for search; it reads attention outputs where
            the base shows them. ``"auto"``: what suits ``texts``.
        tokenizer: Folder or Hub id of another tokenizer than the base's; of a loaded model, its
            tokenizer.
        dtype: Number type of the weights; None: float32 on a CPU, as stored on a GPU.
        quantization: ``"nf4"`` (4 bits) or ``"int8"``, by bitsandbytes.
        gguf_file: Name of the GGUF file in the folder or Hub repository ``base``.
        check: Check on a few tokens that every layer sees what its mask says.
        texts: With ``"auto"``: texts like those to be embedded, without labels.
        purpose: With ``"auto"``: ``"similarity"``, the default, or ``"search"``, where the texts
            are documents.
        **options: Options of the method (see :class:`Method`), and what ``SentenceTransformer``
            takes, such as ``device``, ``prompts``, ``revision``, ``token``, ``trust_remote_code``
            and ``model_kwargs``.

    Returns:
        RepeatTransformer or NoSinkTransformer, a pooling, PromptEnsemble for several templates, a
        filter's Dense, and Normalize. (``nosink`` keeps a sentence-transformers model's input and
        pooling, unless ``pooling`` is given.)

    Raises:
        ValueError: An unknown name or value, options that exclude each other, or a base that cannot
            be embedded.
        OSError: The base was not found.
        ImportError: The base needs an extra that is not installed.

    Source:
        ReBA, Echo and NoSink; ``st_reba.methods.METHOD_SOURCES`` names the sections.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> model.encode_query("天气怎么样？").shape
        (192,)
    """
    named_options = {
        "tokenizer": tokenizer,
        "dtype": dtype,
        "quantization": quantization,
        "gguf_file": gguf_file,
    }
    options |= {name: value for name, value in named_options.items() if value is not None}
    if method == "auto":
        return _build_automatic(base, texts, purpose or "similarity", check=check, **options)
    if texts is not None or purpose is not None:
        raise ValueError("texts=… and purpose=… belong to method='auto'. Drop them.")
    request = BuildRequest.read(base, method, options)
    from .assembly import Assembly  # imports torch

    return Assembly(request, check=check).run()


def _build_automatic(
    base: Base,
    texts: Sequence[str] | None,
    purpose: Purpose,
    **options: Any,
) -> SentenceTransformer:
    """Build what suits texts best."""
    if texts is None:
        raise ValueError("method='auto' needs texts=…, like those to be embedded.")
    method_options, _ = split_options(options)
    chosen_options = sorted(method_options.keys() - {"max_seq_length"})
    if chosen_options:
        raise ValueError(f"method='auto' chooses {chosen_options[0]}. Drop it.")
    from .evaluation.tune import build_for_texts  # imports torch

    return build_for_texts(base, texts, purpose=purpose, **options)
