"""What is compared: a base model, and the methods that turn it into an embedder."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from sentence_transformers import SentenceTransformer

from ..bases import EMBEDDED
from ..build import METHODS, build
from ..persistence import load
from ..recipe import located, read_recipe
from ..repository import is_repository
from ..version import __version__

# Arguments of ``build`` that belong to the base, or to where it runs; the others belong to a method.
_OF_BASE = (
    "base",
    "revision",
    "tokenizer",
    "dtype",
    "device",
    "trust_remote_code",
    "token",
    "cache_folder",
    "local_files_only",
    "model_kwargs",
)
_REPEATING = ("reba", "echo")
_DEFAULT_REPEATS = 2
# Of a large file, this much at either end stands for all of it, with its size.
_SAMPLE = 1 << 20
SAVED = "as saved"


@dataclass(frozen=True)
class Base:
    """A model, and where it runs.

    Args:
        name: ``"mini"``, a local folder or a Hub id; also of a saved embedder.
        revision: Of a Hub id.
        tokenizer: As for :func:`st_reba.build`.
        dtype: Of the weights, as for ``build``.
        device: Where to run; changes no score.
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
        return self.name not in EMBEDDED and is_repository(self.name, {"revision": self.revision})

    @property
    def label(self) -> str:
        """What tables call it: of a local folder its last name."""
        return Path(os.path.abspath(self.name)).name if os.path.isdir(self.name) else self.name

    @property
    def identity(self) -> dict[str, Any]:
        """What scores depend on, as values that JSON can hold; of a folder its contents, wherever it lies."""
        folders = {name: value for name, value in (("name", self.name), ("tokenizer", self.tokenizer)) if value}
        values = {name: _contents(value) if os.path.isdir(value) else value for name, value in folders.items()}
        if self.name in EMBEDDED and not os.path.isdir(self.name):
            values["name"] = f"{self.name} of st-reba {__version__}"
        return {**values, "revision": self.revision, "dtype": self.dtype}


@dataclass(frozen=True)
class Method:
    """A way to turn a base model into an embedder.

    Args:
        arguments: Keyword arguments of :func:`st_reba.build`, ``method`` among them, none of the base's; empty: the
            model is an embedder already, and stays as it was saved.
        label: What tables call it; None: a name made of the arguments.

    Raises:
        ValueError: There is no such method or option, or it belongs to the base.

    Example:
        >>> Method({"method": "reba", "repeats": 3}).name
        'reba-3 last'
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        known = [name for name in inspect.signature(build).parameters if name not in _OF_BASE]
        for name in self.arguments:
            if name in _OF_BASE:
                raise ValueError(f"{name}={self.arguments[name]!r} belongs to the base model, not to a method.")
            if name not in known:
                raise ValueError(f"{name}={self.arguments[name]!r}: a method has no such option; it has {known}.")
        if self.arguments and self.arguments.get("method") not in METHODS:
            raise ValueError(f"method={self.arguments.get('method')!r} is not known: choose one of {list(METHODS)}.")

    @property
    def name(self) -> str:
        """A name that differs where an option differs: the method, its copies, its pooling, then what else is set."""
        if self.label is not None or not self.arguments:
            return self.label or SAVED
        rest = dict(self.arguments)
        method = rest.pop("method")
        repeats = rest.pop("repeats", _DEFAULT_REPEATS)
        pooling = rest.pop("pooling", None) or METHODS[method][0]
        words = [f"{method}-{repeats}" if method in _REPEATING and "template" not in rest else method]
        if "setting" in rest:
            words.append(str(rest.pop("setting")).lower())
        words.append(pooling)
        words += [f"{key}={_short(rest[key])}" for key in sorted(rest)]
        return " ".join(words)

    def changed(self, **changes: Any) -> Method:
        """The method with other options, under the name that these make."""
        return Method({**self.arguments, **changes})

    def build(self, base: Base, **options: Any) -> SentenceTransformer:
        """Build the embedder.

        Args:
            base: Of which.
            **options: Further arguments of ``build``, such as ``max_seq_length``.

        Raises:
            ValueError, OSError: As ``build``; or a saved embedder is to be turned into another.
        """
        running: dict[str, Any] = {
            "device": base.device,
            "dtype": base.dtype,
            "revision": base.revision,
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
        """Build a method's embedder so that it reads no more.

        Args:
            method: The method.
            base: The base model.
            prompt: The longest that stands before a text.

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

        Args:
            model: As :meth:`Method.build` made it.
            prompt: What stands before the next texts.
            task: What they are: ``"query"``, ``"document"`` or None, as ``preprocess`` takes it.
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
            (``reba-3``), with options (``nosink:setting=mask0-bidir:k=4``), or a recipe file, whose base is left out.

    Returns:
        The methods, in their order.

    Raises:
        ValueError: There is none, one is unknown, or one stands twice.

    Example:
        >>> [method.name for method in read_methods("classical,reba-3:pooling=mean,nosink:setting=mask0-bidir:k=4")]
        ['classical last', 'reba-3 mean', 'nosink mask0-bidir mean k=4']
    """
    parts = [part.strip() for part in (words.split(",") if isinstance(words, str) else words)]
    methods = tuple(_method(part) for part in parts if part)
    if not methods:
        raise ValueError(f"methods={words!r}: name one at least, as classical,echo,reba.")
    names = [method.name for method in methods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"methods={words!r}: {twice[0]!r} stands twice. Keep one.")
    return methods


def methods_for(base: Base, words: str | Sequence[str] | None, default: str = "classical,echo,reba") -> list[Method]:
    """The methods to compare on a base: those asked for, a default, or a saved embedder's own.

    Raises:
        ValueError: Methods are asked for, but the base is an embedder already.
    """
    if not base.saved:
        return list(read_methods(words or default))
    if words:
        raise ValueError(f"methods={words!r}: {base.name!r} is an embedder already, of one method. Drop the option.")
    return [Method()]


def identity(base: Base, method: Method, **settings: Any) -> str:
    """SHA-256 over all that decides a score; a result with the same one need not be made again.

    Args:
        base: The base model.
        method: The method.
        **settings: What else: the task's fingerprint, a prompt, a budget, a seed.
    """
    arguments = dict(method.arguments)
    if isinstance(arguments.get("postfilter"), (str, os.PathLike)):
        # By what it holds, wherever it lies.
        arguments["postfilter"] = hashlib.sha256(Path(arguments["postfilter"]).read_bytes()).hexdigest()
    values = [base.identity, arguments, settings]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _limit_content(
    model: SentenceTransformer,
    tokens: int,
    prompt: str | None,
    tasks: Sequence[str | None] = (None, "query", "document"),
) -> None:
    """Give every copy of a text so many tokens, whatever stands around it and however often it is repeated."""
    transformer: Any = model[0]
    needed = tokens
    if hasattr(transformer, "frame"):
        frames = [frame for task in tasks for frame in transformer.frames(prompt, task)]
        share = 2 if transformer.compute_matched else 1
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
        arguments = located(read_recipe(word, build)[0], Path(word))
        values: dict[str, Any] = {"method": "reba", **{key: arguments[key] for key in arguments if key not in _OF_BASE}}
        # A post-filter's numbers make no name.
        return Method(values, Path(word).stem if "postfilter" in values else None)
    name, *options = word.split(":")
    name, dash, repeats = name.partition("-")
    values = {"method": name}
    if name not in METHODS:
        raise ValueError(f"methods: {word!r} is not known: choose one of {list(METHODS)}, or a recipe (.yaml).")
    if dash:
        if name not in _REPEATING or not repeats.isdecimal():
            raise ValueError(f"methods: {word!r}: only {list(_REPEATING)} take a number of copies, as reba-3.")
        values["repeats"] = int(repeats)
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ValueError(f"methods: {word!r}: write options as :name=value, as in reba:pooling=mean.")
        values[key] = yaml.safe_load(value)
    return Method(values)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 40 else f"{text[:24]}…{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _contents(folder: str) -> str:
    """A hash of a folder's files: of large ones their size and both ends."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
            with path.open("rb") as stream:
                digest.update(stream.read(_SAMPLE))
                if size > _SAMPLE:
                    stream.seek(-min(_SAMPLE, size - _SAMPLE), os.SEEK_END)
                    digest.update(stream.read())
    return digest.hexdigest()
