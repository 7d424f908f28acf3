"""What is compared: a base model, and the methods that turn it into an embedder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..modules.options import unknown
from ..modules.stages import as_stored
from ..persistence import load
from ..recipe import read_recipe
from ..spec import METHODS, Spec, cut, read_fields

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Arguments of ``build`` that change vectors and are no field of a method.
_BESIDE = ("prompts", "default_prompt_name", "truncate_dim")
_REPEATING = ("reba", "echo")
_DEFAULT_REPEATS = 2
SAVED = "as saved"


@dataclass(frozen=True)
class Base:
    """A model, and where it runs.

    Args:
        name: ``"mini"``, a local folder or a Hub id; also of a saved embedder.
        revision: Of a Hub id.
        tokenizer: As for :func:`st_reba.build`.
        dtype: Of the weights, as for ``build``.
        device: Where to run.
        trust_remote_code: Allow the model's own Python code.

    Example:
        >>> base = Base("mini")
        >>> base.saved, base.label
        (False, 'mini')
    """

    name: str
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    trust_remote_code: bool = False

    @property
    def saved(self) -> bool:
        """Whether it is an embedder already: it has a method of its own, and takes no other."""
        from ..bases import EMBEDDED, is_repository  # here, as names of methods are read before torch is loaded

        return self.name not in EMBEDDED and is_repository(self.name, {"revision": self.revision})

    @property
    def label(self) -> str:
        """What tables call it: of a local folder its last name."""
        return Path(os.path.abspath(self.name)).name if os.path.isdir(self.name) else self.name

    @property
    def identity(self) -> dict[str, Any]:
        """What scores depend on, as values that JSON can hold: the weights themselves, wherever they lie.

        Of a folder that is a hash of all its files, of a Hub id the commit that its revision is now.

        Raises:
            OSError: The Hub id is not in the cache, and the Hub cannot be asked.
        """
        from ..bases import weights_dtype

        return {
            "weights": _weights(self.name, self.revision),
            "tokenizer": None if self.tokenizer is None else _weights(self.tokenizer, None),
            # By default it depends on where the model runs.
            "dtype": str(weights_dtype(self.dtype, self.device)).removeprefix("torch."),
        }

    @property
    def commit(self) -> str | None:
        """What :attr:`identity` names of a Hub id, so that this is what is built; of a local folder its revision."""
        return self.revision if _folder(self.name) is not None else _commit(self.name, self.revision)


@dataclass(frozen=True)
class Method:
    """A way to turn a base model into an embedder.

    Args:
        arguments: Keyword arguments of :func:`st_reba.build`, ``method`` among them, none of the base's; empty: the
            model is an embedder already, and stays as it was saved.
        label: What tables call it; None: a name made of the arguments.

    Raises:
        ValueError: There is no such method or option.

    Example:
        >>> Method({"method": "reba", "repeats": 3}).name
        'reba-3 last'
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        if not self.arguments:
            return
        if self.arguments.get("method") not in METHODS:
            raise ValueError(unknown("method", self.arguments.get("method"), list(METHODS)))
        spec = Spec.of({name: value for name, value in self.arguments.items() if name not in _BESIDE})
        if self.arguments.get("stages"):
            # Flat fields of nosink stay flat, as they were given.
            own = [each for each in spec.stages if each.name != "nosink" or "setting" not in self.arguments]
            object.__setattr__(self, "arguments", {**self.arguments, "stages": as_stored(own)})

    @property
    def name(self) -> str:
        """A name that differs where an option differs: the method, its copies, its pooling, then what else is set."""
        return self.label or name_of(self.arguments)

    @property
    def identity(self) -> dict[str, Any]:
        """What of it scores depend on: a filter by what its file holds, wherever it lies."""
        stages = []
        for stage in self.arguments.get("stages") or ():
            own = dict(stage.get("filter", {}))
            if own.get("file"):
                stage = {"filter": {**own, "file": hashlib.sha256(Path(own["file"]).read_bytes()).hexdigest()}}
            stages.append(stage)
        return {**self.arguments, "stages": stages}

    def build(self, base: Base, **options: Any) -> SentenceTransformer:
        """Build the embedder; ``options`` are further arguments of ``build``, such as ``max_seq_length``.

        Raises:
            ValueError, OSError: As ``build``; or a saved embedder is to be turned into another.
        """
        from .. import build

        running: dict[str, Any] = {
            "device": base.device,
            "dtype": base.dtype,
            "revision": base.commit,
            "trust_remote_code": base.trust_remote_code,
        }
        if self.arguments:
            return build(base.name, tokenizer=base.tokenizer, **running, **{**self.arguments, **options})
        positions = options.pop("max_seq_length", None)
        if options or base.tokenizer is not None:
            raise ValueError(f"{base.name!r} is an embedder already: {options or base.tokenizer} cannot be changed.")
        model = load(base.name, **running)
        if positions is not None:
            model.max_seq_length = positions
        return model


@dataclass(frozen=True)
class Limit:
    """How much of a text a model reads.

    Args:
        tokens: Positions or content tokens, as ``of`` says; None: what the model takes.
        of: ``"total"``: positions of a sequence, which all copies, the template and special tokens share, so that
            methods are matched by what they cost; ``"content"``: tokens of a text, whatever the method makes of them.

    Raises:
        ValueError: ``tokens`` is no whole number from 1 on, or ``of`` is not known.

    Source:
        Echo, sections 4.6 and 4.7 (token budgets).
    """

    tokens: int | None = None
    of: Literal["total", "content"] = "total"

    def __post_init__(self) -> None:
        if self.of not in ("total", "content"):
            raise ValueError(f"budget={self.of!r} is not known: choose 'total' or 'content'.")
        if self.tokens is not None and (isinstance(self.tokens, bool) or self.tokens < 1):
            raise ValueError(f"max_tokens={self.tokens!r} must be a whole number from 1 on, or None.")

    def build(self, method: Method, base: Base, prompt: str | None = None) -> SentenceTransformer:
        """Build a method's embedder so that it reads no more, whatever stands before a text (``prompt``: the longest).

        Example:
            >>> model = Limit(40, "content").build(Method({"method": "echo"}), Base("mini"))
            >>> model.max_seq_length, model[0].budget()
            (81, 40)
        """
        if self.tokens is None:
            return method.build(base)
        if self.of == "total":
            return method.build(base, max_seq_length=self.tokens)
        model = method.build(base)
        _limit_content(model, self.tokens, prompt)
        return model

    def fit(self, model: SentenceTransformer, prompt: str | None = None, task: str | None = None) -> None:
        """Limit a built embedder anew, where each task has a prompt of its own; a total stays as it was built.

        ``prompt`` stands before the next texts, and ``task`` is what they are, as ``preprocess`` takes both.
        """
        if self.tokens is not None and self.of == "content":
            _limit_content(model, self.tokens, prompt, (task,))

    @property
    def settings(self) -> dict[str, Any]:
        """For a result's settings and identity: nothing where there is no limit."""
        return {} if self.tokens is None else {"max_tokens": self.tokens, "budget": self.of}


def read_methods(words: str | Sequence[str]) -> tuple[Method, ...]:
    """Read methods as people write them.

    Args:
        words: Methods, or one string with commas between them. Each is a name (``reba``), with its copies
            (``reba-3``), in the short form (``nosink:setting=mask0-bidir,k=4+read:layers=3``), or a recipe file, whose
            base is left out.

    Returns:
        The methods, in their order.

    Raises:
        ValueError: There is none, one is unknown, or one stands twice.

    Example:
        >>> [method.name for method in read_methods("classical,reba-3:pooling=mean,nosink:setting=mask0-bidir,k=4")]
        ['classical last', 'reba-3 mean', 'nosink mask0-bidir mean k=4']
    """
    parts: list[str] = []
    for part in cut(words, ",") if isinstance(words, str) else words:
        # A field of the method before it, not another method.
        if parts and re.match(r"\s*\w+\s*=", part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    methods = tuple(_method(part.strip()) for part in parts if part.strip())
    if not methods:
        raise ValueError(f"methods={words!r}: name one at least, as classical,echo,reba.")
    names = [method.name for method in methods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"methods={words!r}: {twice[0]!r} stands twice. Keep one.")
    return methods


def methods_for(base: Base, words: str | Sequence[Any] | None, default: str = "classical,echo,reba") -> list[Method]:
    """The methods to compare on a base: those asked for (methods, or words for :func:`read_methods`), a default, or a
    saved embedder's own.

    Raises:
        ValueError: Methods are asked for, but the base is an embedder already.
    """
    if not base.saved:
        if words and not isinstance(words, str) and all(isinstance(each, Method) for each in words):
            return list(words)
        return list(read_methods(words or default))
    if words:
        raise ValueError(f"methods={words!r}: {base.name!r} is an embedder already, of one method. Drop the option.")
    return [Method()]


def name_of(arguments: Mapping[str, Any]) -> str:
    """A method's name, by its arguments: as :attr:`Method.name`, of any that a paper leaves open too.

    Example:
        >>> name_of({"method": "nosink", "setting": "mask0-bidir"})
        'nosink mask0-bidir mean'
    """
    if not arguments:
        return SAVED
    rest = flat(arguments)
    method = rest.pop("method")
    stages = {name: own for each in rest.pop("stages", ()) for name, own in each.items()}
    repeats = rest.pop("repeats", None) or _DEFAULT_REPEATS
    pooling = rest.pop("pooling", None) or ("mean" if method == "nosink" else "last")
    words = [f"{method}-{repeats}" if method in _REPEATING and "template" not in rest else method]
    if "setting" in rest:
        words.append(str(rest.pop("setting")).lower())
    words.append(pooling)
    words += [f"{key}={_short(rest[key])}" for key in sorted(rest)]
    # A stage whose options are all at their default is named all the same.
    words += [" ".join([name, *(f"{key}={_short(own[key])}" for key in sorted(own))]) for name, own in stages.items()]
    return " ".join(words)


def flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A method's arguments with the NoSink setting's fields among them, however they were given.

    Example:
        >>> flat({"method": "classical", "pooling": "mean", "stages": [{"nosink": {"setting": "mask0-bidir", "k": 4}}]})
        {'method': 'nosink', 'pooling': 'mean', 'setting': 'mask0-bidir', 'k': 4}
    """
    values = {name: value for name, value in arguments.items() if name != "stages"}
    stages = [dict(each) for each in arguments.get("stages", ())]
    for each in stages:
        values |= each.pop("nosink", {})
    if stages := [each for each in stages if each]:
        values["stages"] = stages
    if values.get("method") == "classical" and ("setting" in values or any("layers" in each for each in stages)):
        values["method"] = "nosink"
    return values


def _limit_content(
    model: SentenceTransformer,
    tokens: int,
    prompt: str | None,
    tasks: Sequence[str | None] = (None, "query", "document"),
) -> None:
    """Give every copy of a text so many tokens, whatever stands around it and however often it is repeated."""
    transformer: Any = model[0]
    needed = tokens
    if hasattr(transformer, "frames"):
        frames = [frame for task in tasks for frame in transformer.frames(prompt, task)]
        share = 2 if transformer.layout.compute_matched else 1
        needed = max(frame.overhead + frame.copies * tokens * share for frame in frames)
    positions = getattr(transformer.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and needed > positions > 0:
        raise ValueError(
            f"{tokens} content tokens take {needed} positions with this method, but the backbone has {positions}. "
            "Give fewer, or a total budget."
        )
    model.max_seq_length = needed


def _method(word: str) -> Method:
    if word.endswith((".yaml", ".yml")):
        recipe = read_recipe(word)
        beside = {name: value for name, value in recipe.loading.items() if name in _BESIDE}
        path = Path(word).resolve()
        # A filter's numbers make no name. Of a run's recipe its folder tells what it is.
        name = path.parent.name if path.stem == "recipe" else path.stem
        filtered = any(stage.name == "filter" for stage in recipe.spec.stages)
        return Method({"method": "reba", **beside, **recipe.values}, name if filtered else None)
    if copied := re.match(r"(\w+)-(\d+)(?![^:+])", word):
        name, repeats = copied.groups()
        if name not in _REPEATING:
            raise ValueError(f"methods: {word!r}: only {list(_REPEATING)} take a number of copies, as reba-3.")
        rest = word[copied.end() :]
        word = f"{name}:repeats={repeats}" + (f",{rest[1:]}" if rest.startswith(":") else rest)
    first, *stages = cut(word, "+")
    name, _, text = first.partition(":")
    if name not in METHODS:
        raise ValueError(f"methods: {unknown(repr(word), name, list(METHODS))} Or name a recipe (.yaml).")
    try:
        # What is not given stays open: a sentence-transformers base keeps its own pooling.
        values = {"method": name, **read_fields(text, METHODS[name], name), **({"stages": stages} if stages else {})}
        return Method(values)
    except ValueError as error:
        raise ValueError(f"methods: {word!r}: {error}") from None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 40 else f"{text[:24]}…{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _weights(name: str, revision: str | None) -> str:
    """What stands for a model's files: of a folder their hash, of a Hub id its commit."""
    folder = _folder(name)
    if folder is None:
        return f"{name}@{_commit(name, revision)}"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        # Hidden files, as those of git, are no part of a model.
        if path.is_file() and not any(part.startswith(".") for part in place.parts):
            known = path.stat()
            digest.update(f"{place.as_posix()}\0".encode())
            digest.update(_hashed_file(path, known.st_size, known.st_mtime_ns))
    return digest.hexdigest()


def _folder(name: str) -> Path | None:
    """A local folder, or None of a Hub id."""
    from ..bases import EMBEDDED

    folder = Path(EMBEDDED.get(name, name))
    return folder if folder.is_dir() else None


@lru_cache
def _commit(name: str, revision: str | None) -> str:
    """The commit of a Hub repository that a revision is now; without a network, the one that the cache has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["config.json", "modules.json"])).name
    except HFValidationError:
        raise FileNotFoundError(f"{name}: there is no such folder, and no id of the Hub is written so.") from None
    except OSError as error:
        raise OSError(
            f"{name}: neither a folder, nor to be had from the Hub ({' '.join(str(error).split())})"
        ) from error


@lru_cache(maxsize=256)
def _hashed_file(path: Path, size: int, changed: int) -> bytes:
    """SHA-256 of a file; of one that has not changed it is made once a process."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
