"""What a saved model computes, read from its configuration without loading the weights."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, AutoTokenizer  # type: ignore[attr-defined]

from .inspection import check_repository, read_json
from .modules import Layout, ReadLayers, ReBA
from .modules.layout import NO_LIMIT, TokenLayout
from .modules.methods import ByHand, method_of
from .modules.plan import LayerPlan
from .modules.stages import stages_of
from .spec import Spec

_FIRST = "sentence_bert_config.json"


@dataclass(frozen=True)
class Description:
    """A published or saved model."""

    # The base model's name and pinned revision, and the backbone's class.
    base: str | None
    revision: str | None
    architecture: str
    # The method and its stages, as they were given to ``build``.
    spec: Spec
    modules: tuple[str, ...]
    # Of the text; of a text in pieces (chunk) of each piece.
    copies: int
    # What each layer that runs sees, and which are pooled, where that is not the last.
    layers: str
    reads: str | None
    # Positions of a whole sequence, and content tokens that fit a copy (of a text in pieces: all of it), if limited.
    max_seq_length: int | None
    tokens_per_copy: int | None
    # Of the vectors, and of the stored weights.
    dimension: int
    dtype: str | None
    prompts: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """All of it, JSON-serializable."""
        spec = {"method": self.spec.name, "spec": self.spec.to_dict()}
        return {**vars(self), **spec, "modules": list(self.modules)}

    def __str__(self) -> str:
        shown = {**vars(self), "modules": " → ".join(self.modules)}
        shown |= {"prompts": json.dumps(self.prompts, ensure_ascii=False)}
        width = max(map(len, shown))
        return "\n".join(f"{name:<{width}}  {'-' if value is None else value}" for name, value in shown.items())


def describe(
    model: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> Description:
    """Read what a model folder or Hub repository holds.

    Args:
        model: A folder written by ``save_pretrained``, or a Hub id.
        revision: Hub revision.
        trust_remote_code: Allow the backbone's own configuration code.

    Raises:
        ValueError: It is no model of this package, is refused by :func:`st_reba.inspection.check_repository`, or its
            base's tokenizer was not found.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st_reba.build("mini", "echo").save_pretrained(folder)
        ...     describe(folder).tokens_per_copy
        511
    """
    path = os.fspath(model)
    check_repository(path, trust_remote_code=trust_remote_code, revision=revision)
    listed = read_json(path, "modules.json", revision=revision) or []
    types = tuple(each["type"].rpartition(".")[2] for each in listed)
    first = read_json(path, _FIRST, revision=revision) or {}
    if "stages" not in first or not listed[0]["type"].startswith("st_reba."):
        found = f"its modules are {list(types)}" if types else "it holds no modules.json"
        if not types and not os.path.isdir(path):
            found = "no such folder, and no such model on the Hub (a base model's name is none)"
        raise ValueError(f"MODEL={path!r} was not made by st_reba: {found}. Make one with: st-reba build BASE OUT")
    settings = read_json(path, "config_sentence_transformers.json", revision=revision) or {}
    backbone = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
    # A sentence-transformers model that was converted keeps its own input: the text once.
    layout = Layout.of(first["layout"]) if "layout" in first else Layout(repeats=1)
    method, stages = method_of(first["method"]) if first.get("method") else ByHand(), stages_of(first["stages"])
    tokens = TokenLayout(_tokenizer(path, first, revision, trust_remote_code), layout, stages)
    # Fields may get their values with the text, and are counted as one token.
    frames = tokens.frames(task="document", **dict.fromkeys(tokens.fields(), layout.instruction or "-"))
    text = backbone.get_text_config()
    depth = int(text.num_hidden_layers)
    read = next((stage.resolve(depth) for stage in stages if isinstance(stage, ReadLayers)), None)
    plan: Any = next((stage for stage in stages if stage.order == LayerPlan.order), LayerPlan())
    limits = [tokens.limit(), getattr(text, "max_position_embeddings", None)]
    limit = min((each for each in limits if each is not None and 0 < each <= NO_LIMIT), default=None)
    return Description(
        base=first["base_model"],
        revision=first["base_revision"],
        architecture=(backbone.architectures or [backbone.model_type])[0],
        spec=Spec(method, stages),
        modules=types,
        copies=(method.repeats or 2) if isinstance(method, ReBA) and method.chunk is not None else tokens.copies,
        layers=str(plan.plan.resolve(depth if read is None else read.runs)),
        reads=None if read is None or read.is_plain else str(read),
        max_seq_length=limit,
        tokens_per_copy=None if limit is None else tokens.budget(frames, limit),
        dimension=settings.get("truncate_dim") or _dimension(path, listed, revision),
        dtype=None if backbone.dtype is None else str(backbone.dtype).removeprefix("torch."),
        prompts={name: prompt for name, prompt in (settings.get("prompts") or {}).items() if prompt},
    )


def _tokenizer(model: str, first: dict[str, Any], revision: str | None, trust_remote_code: bool) -> Any:
    """The model's tokenizer: its own, or that of the base which has its weights."""
    place, at, whose, remedy = model, {"revision": revision}, "its tokenizer", ""
    if first.get("from_base"):
        place, at = first["base_model"], {"revision": first["base_revision"], **(first.get("processor_kwargs") or {})}
        pinned = f" at revision {at['revision']!r}" if at["revision"] else ""
        whose = f"it takes its tokenizer from {place!r}{pinned}, which"
        remedy = " Download that model first, or log in where it asks for it."
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code, **at)
    except Exception as error:
        # transformers raises errors of many kinds.
        raise ValueError(f"MODEL={model!r}: {whose} could not be read: {error}{remedy}") from error


def _dimension(model: str, listed: list[dict[str, Any]], revision: str | None) -> int:
    """Of the vectors: several poolings stand side by side, and a dense layer may follow."""
    dimension = 0
    for each in listed[1:]:
        config = read_json(model, f"{each['path']}/config.json", revision=revision) or {}
        modes = config.get("pooling_mode")
        sides = len(modes) if isinstance(modes, list) else 1
        dimension = config.get("out_features") or sides * config.get("embedding_dimension", 0) or dimension
    return int(dimension)
