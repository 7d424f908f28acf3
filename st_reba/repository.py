"""A sentence-transformers repository as the base: its input, prompts, pooling and all that follows stay its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import load_file_path

from .bases import HUB
from .modules import Stage
from .modules.decoder import DecoderTransformer
from .selfcheck import check_plan


def is_repository(path: str, hub: Mapping[str, Any]) -> bool:
    """Whether a folder or Hub repository holds a sentence-transformers model, not just a backbone."""
    return load_file_path(path, "modules.json", **hub) is not None


def convert_repository(
    path: str, stages: Sequence[Stage], *, check: bool, base_model: str, **kwargs: Any
) -> SentenceTransformer:
    """Load a sentence-transformers model and give its decoder a layer plan (NoSink, sections 3.6 and 4).

    ``check``: see on a few tokens that every layer obeys. ``kwargs`` are those of ``SentenceTransformer``.
    """
    from .inspection import check_repository

    hub = {name: kwargs[name] for name in HUB if name in kwargs}
    check_repository(path, trust_remote_code=kwargs.get("trust_remote_code", False), **hub)
    kwargs["model_kwargs"] = {"use_safetensors": True, **(kwargs.get("model_kwargs") or {})}
    model = SentenceTransformer(path, **kwargs)
    first: Any = model[0]
    # A class of its own may treat its input or output in a way of its own, which would be lost.
    if type(first) is not Transformer:
        own = isinstance(first, DecoderTransformer)
        raise ValueError(
            f"base={base_model!r} starts with {type(first).__name__}, whose layers stay as they are. "
            + ("Build from its base model." if own else "Give pooling=….")
        )
    if getattr(first.model.config, "output_hidden_states", False):
        raise ValueError(
            f"base={base_model!r}: {type(model[1]).__name__} reads the hidden states of every layer, which a converted "
            "model does not hand out. Give pooling=…."
        )
    if others := sorted(set(first.modalities) - {"text", "message"}):
        raise ValueError(f"base={base_model!r} embeds {others} too, which a converted model does not. Give pooling=….")
    revision = kwargs.get("revision")
    model[0] = adopted = DecoderTransformer.adopt(first, stages, base_model=base_model, base_revision=revision)
    if check:
        check_plan(adopted)
    return model
