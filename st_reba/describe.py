"""What a model folder holds, read from its configuration without loading the weights."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import AutoConfig, AutoTokenizer

from .filtered import told
from .inspection import check_repository, read_json
from .modules import DecoderTransformer, LayerPlan, NoSinkTransformer, RepeatTransformer, named_plan
from .modules.depth import Reading, resolve_reading
from .modules.templates import ensemble_templates
from .modules.tokens import frame, position_limit

# The input modules of this package, by the names that modules.json holds.
_FIRST = {each.__name__: each for each in (RepeatTransformer, NoSinkTransformer, DecoderTransformer)}
# Settings that older models lack.
_LATER = frozenset(("layer", "join", "final_norm", "prepend", "postfilter", "base_layers"))
# The poolings, and the settings that each must have.
_POOLINGS = {
    "ReBAPooling": ("embedding_dimension", "pooling"),
    "ChunkedReBAPooling": ("embedding_dimension", "pooling", "chunk", "repeats"),
    "Pooling": ("embedding_dimension", "pooling_mode"),
}


@dataclass(frozen=True)
class Description:
    """A published or saved model.

    Args:
        base: Name of the base model.
        revision: Its revision, if one was pinned.
        architecture: The backbone's class.
        method: ``reba``, ``echo``, ``classical``, ``prompteol`` or ``nosink``.
        variant: ``paper`` or ``published`` (reba).
        pooling: How token vectors become a sentence vector.
        copies: Number of copies k, of the text or of each piece.
        chunk: Content tokens L0 that a piece holds at most; None: the text is not cut into pieces.
        template: The template, or None for plain repetition.
        setting: The NoSink paper's setting, if the model was built by one.
        layers: What each layer that runs sees.
        reads: The layer whose hidden states are pooled, and how many layers run, where that is not the last.
        max_seq_length: Positions M of a whole sequence, if limited.
        tokens_per_copy: Content tokens that fit a copy (of a text cut into pieces: all of it), if limited.
        dimension: Of the vectors.
        normalized: Whether vectors have length 1.
        postfilter: The filter behind the pooling, and on how many texts it was fitted, if there is one.
        dtype: Of the stored weights.
        prompts: The saved prompts.
    """

    base: str | None
    revision: str | None
    architecture: str
    method: str
    variant: str | None
    pooling: str
    copies: int
    chunk: int | None
    template: str | dict[str, str] | list[str | dict[str, str]] | None
    setting: str | None
    layers: str
    reads: str | None
    max_seq_length: int | None
    tokens_per_copy: int | None
    dimension: int
    normalized: bool
    postfilter: str | None
    dtype: str | None
    prompts: dict[str, str]

    def __str__(self) -> str:
        width = max(map(len, asdict(self)))
        return "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in asdict(self).items())


def describe(
    model: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> Description:
    """Read what a model folder or Hub repository holds.

    Args:
        model: A folder written by ``save_pretrained``, or a Hub id.
        revision: Hub revision.
        trust_remote_code: Allow the backbone's own configuration code.

    Returns:
        Its description.

    Raises:
        ValueError: It is not a model of this package, is refused by :func:`st_reba.inspection.check_repository`, or
            the base that has its tokenizer is not to be had.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st_reba.build("mini", "echo").save_pretrained(folder)
        ...     describe(folder).tokens_per_copy
        511
    """
    path = os.fspath(model)
    modules = read_json(path, "modules.json", revision=revision)
    if modules is not None and not (isinstance(modules, list) and all(isinstance(each, dict) for each in modules)):
        raise ValueError(f"MODEL={path!r}: modules.json is no list of modules.")
    types = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules or []]
    if not modules or types[0] not in _FIRST:
        missing = (
            "it holds no modules.json"
            if os.path.isdir(path)
            else "no such folder, and no such model on the Hub (a base model's name is none)"
        )
        found = f"its modules are {types}" if modules else missing
        raise ValueError(f"MODEL={path!r} was not made by st_reba: {found}. Make one with: st-reba build BASE OUT")
    if len(modules) < 2 or types[1] not in _POOLINGS or "path" not in modules[1]:
        raise ValueError(f"MODEL={path!r}: its modules are {types}: no pooling that st_reba knows follows the first.")
    reba = types[1] != "Pooling"
    own = [key for key in _FIRST[types[0]].config_keys if key not in Transformer.config_keys and key not in _LATER]
    first = _settings(path, "sentence_bert_config.json", revision, *own)
    pooling = _settings(path, f"{modules[1]['path']}/config.json", revision, *_POOLINGS[types[1]])
    settings = read_json(path, "config_sentence_transformers.json", revision=revision) or {}
    check_repository(path, trust_remote_code=trust_remote_code, revision=revision)
    backbone = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
    tokenizer = _tokenizer(path, first, revision, trust_remote_code)
    # A sentence-transformers model that was converted keeps its own input: the text once, without a template.
    plain: dict[str, Any] = {"template": None, "repeats": 1, "separator": "", "compute_matched": False}
    repeat = first if "repeats" in own else plain
    templates = ensemble_templates(repeat["template"], repeat["repeats"], repeat["separator"])
    documents = [each["document"] for each in templates]
    filled = [each.fill(dict.fromkeys(each.fields, repeat.get("instruction", ""))) for each in documents]
    # Of an ensemble the longest template counts, to whose budget all are cut.
    framed = max((frame(tokenizer, each) for each in filled), key=lambda each: each.overhead)
    if repeat.get("prepend"):
        framed = framed.with_placeholder(0)
    text = backbone.get_text_config()
    depth = int(text.num_hidden_layers)
    reading = resolve_reading(first.get("layer"), first.get("final_norm", True), depth, first.get("join", "mean"))
    stack = _plan(first, named="setting" in own).resolve(reading.runs)
    limits = [position_limit(tokenizer), getattr(text, "max_position_embeddings", None)]
    limit = min((each for each in limits if each is not None and each > 0), default=None)
    budget = framed.budget(limit)
    if budget is not None and repeat["compute_matched"]:
        budget = max(1, budget // 2)
    over = f" over {first['span']}" if "span" in own else ""
    return Description(
        base=first["base_model"],
        revision=first["base_revision"],
        architecture=(backbone.architectures or [backbone.model_type])[0],
        method="reba" if reba else _method(first, framed.copies, converted="setting" in own or not stack.is_plain),
        variant=pooling.get("variant"),
        pooling=str(pooling["pooling"]) if reba else "+".join(_modes(pooling)) + over,
        copies=framed.copies * pooling.get("repeats", 1),
        chunk=pooling.get("chunk"),
        template=repeat["template"],
        setting=first["setting"] if "setting" in own else None,
        layers=str(stack),
        reads=_reads(reading, first.get("base_layers") or depth),
        max_seq_length=limit,
        tokens_per_copy=budget,
        dimension=settings.get("truncate_dim") or _dimension(path, modules, pooling, revision),
        normalized="Normalize" in types,
        postfilter=None if first.get("postfilter") is None else told(first["postfilter"]),
        dtype=None if backbone.dtype is None else str(backbone.dtype).removeprefix("torch."),
        prompts={name: prompt for name, prompt in settings.get("prompts", {}).items() if prompt},
    )


def _reads(reading: Reading, depth: int) -> str | None:
    """Which layer is read of a base with ``depth`` layers, of which the model may hold the lowest alone."""
    shown = replace(reading, depth=depth)
    if shown.is_plain:
        return None
    held = f", and {reading.depth} are held" if reading.depth != depth else ""
    return f"{shown}; {reading.runs} run{held}"


def _tokenizer(model: str, first: dict[str, Any], revision: str | None, trust_remote_code: bool) -> Any:
    """The model's tokenizer: its own, or that of the base which has its weights."""
    place, at, whose = model, {"revision": revision}, "its tokenizer"
    if first.get("from_base"):
        place, at = first["base_model"], {"revision": first["base_revision"], **(first.get("processor_kwargs") or {})}
        pinned = f" at revision {at['revision']!r}" if at["revision"] else ""
        whose = f"it takes its tokenizer from {place!r}{pinned}, which"
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code, **at)
    except Exception as error:
        remedy = " Download that model first, or log in where it asks for it." if first.get("from_base") else ""
        raise ValueError(f"MODEL={model!r}: {whose} could not be read: {error}{remedy}") from error


def _method(first: dict[str, Any], copies: int, *, converted: bool) -> str:
    if copies > 1:
        return "echo"
    if first.get("span") == "end" and first.get("template"):
        return "prompteol"
    return "nosink" if converted else "classical"


def _modes(pooling: dict[str, Any]) -> list[str]:
    modes = pooling.get("pooling_mode", [])
    return [modes] if isinstance(modes, str) else list(modes)


def _dimension(model: str, modules: list[dict[str, Any]], pooling: dict[str, Any], revision: str | None) -> int:
    """Of the vectors: several poolings stand side by side, and a dense layer may follow."""
    dimension = int(pooling["embedding_dimension"]) * max(1, len(_modes(pooling)))
    for module in modules[2:]:
        if str(module.get("type", "")).endswith(".Dense"):
            settings = _settings(model, f"{module['path']}/config.json", revision, "out_features")
            dimension = int(settings["out_features"])
    return dimension


def _plan(first: dict[str, Any], *, named: bool) -> LayerPlan:
    if named:
        return named_plan(first["setting"], first["k"], first["k0"], first["m"], first["plan_variant"])
    return LayerPlan.from_dict({} if first["layers"] is None else first["layers"])


def _settings(model: str, name: str, revision: str | None, *keys: str) -> dict[str, Any]:
    """A module's settings, complete."""
    settings = read_json(model, name, revision=revision)
    if not isinstance(settings, dict):
        raise ValueError(f"MODEL={model!r}: {name} is missing, or no JSON object. Build the model again.")
    if missing := [key for key in keys if key not in settings]:
        raise ValueError(f"MODEL={model!r}: {name} lacks {missing}. Build the model again.")
    return settings


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else "-" if value is None else str(value)
