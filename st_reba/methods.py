"""The methods as data: one frozen dataclass that `build`, recipes, cards and the command line share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .modules.settings import SETTINGS, plan_layers
from .poolings import (
    POOLINGS,
    POSITIONS,
    PoolingSpec,
    describe_poolings,
    find_pooling,
    methods_with_option,
    pooling_names,
)
from .prompts import ENSEMBLES, TEMPLATES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

METHODS = {
    "reba": "Backward attention over a repeated text (ReBA, section 3).",
    "echo": "The last copy of a repeated text (Echo, section 3).",
    "classical": "The text once (the baseline of all three papers).",
    "prompteol": "The very last position of a prompt that asks for one word (Echo, section 4.2 and appendix D).",
    "nosink": "The text once, through layers whose masks are changed (NoSink, section 3).",
}
# Where none is named: on real bases, the best of those that need no texts and no numbers (docs/results).
DEFAULT = "prompteol:template=prompteol-search,read=attention"
# Options that only some methods have; those of a pooling stand in its declaration.
_METHODS_WITH_OPTION: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("repeats", "compute_matched"), ("reba", "echo")),
    **{option: methods_with_option(option) for spec in POOLINGS for option in spec.options},
    "pooled": ("echo", "classical", "prompteol", "nosink"),
}
_NUMBERS = {"repeats": 1, "max_seq_length": 1, "chunk": 1, "k0": 0, "m": 0}  # whole numbers: the least
_CHOICES = {"implementation": ("paper", "authors"), "join": ("mean", "concat"), "read": ("states", "attention")}
# Arguments that encode takes for itself: a field of such a name could never get a value.
_RESERVED = (
    "self|inputs|sentences|prompt|prompt_name|batch_size|show_progress_bar|output_value|precision|convert_to_numpy|"
    "convert_to_tensor|device|normalize_embeddings|truncate_dim|pool|chunk_size|processing_kwargs|task"
)


def _option(default: Any, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Method:
    """What a pipeline computes.

    Raises:
        ValueError: A value that is not allowed, or options that do not go together.

    Example:
        >>> str(Method("echo", pooling="mean", layer=12))
        'echo:pooling=mean,layer=12'
        >>> Method.parse("echo:pooling=mean,layer=12").layer
        12
    """

    name: str = _option("prompteol", "one of " + ", ".join(METHODS))
    pooling: str | None = _option(None, f"sentence vector: {describe_poolings()}; default: last, mean for nosink")
    repeats: int | None = _option(None, "copies of the text; default: 2, or the template's {text} slots")
    template: Any = _option(None, "text with a {text} slot a copy, a name, a mapping by task, or a list")
    weights: tuple[float, ...] | None = _option(None, "one for each template of a list; default: their average")
    equal_norms: bool = _option(True, "of several templates: divide each vector by its length first")
    instruction: str = _option("", "value of the template's {instruction} where no prompt is given")
    pooled: str | None = _option(None, f"positions that are pooled: {', '.join(POSITIONS)}; default: by method")
    compute_matched: bool = _option(False, "halve the tokens that a copy may hold, so that two cost what one did")
    max_seq_length: int | None = _option(None, "positions of a sequence, all copies together")
    normalize: bool = _option(True, "scale vectors to length 1")
    implementation: str = _option("paper", "the paper's formulas (paper), or what its authors' code computes (authors)")
    include_special: bool = _option(False, "sum over template and special tokens too")
    normalize_weights: bool = _option(False, "divide each token's weights by their sum")
    chunk: int | None = _option(None, "for long texts: repeat only pieces of so many tokens")
    setting: str | None = _option(None, f"masks of the layers: {', '.join(SETTINGS)}")
    k: Any = _option(None, "converted layers from the top: a number, all, or a list of layers, -1 being the topmost")
    k0: int | None = _option(None, "the topmost of the converted layers that hide the sink")
    m: int = _option(1, "sink tokens that are hidden")
    layer: Any = _option(None, "layer to read, 0 (embeddings) to L or -1 (L) downwards; or first and last of several")
    read: str = _option("states", "states, or attention: mean of the layers' attention outputs, default: upper half")
    join: str = _option("mean", "of several layers' states: mean, or concat")
    final_norm: bool = _option(True, "read states after the model's final norm")
    filter: str | None = _option(None, "file of a fitted filter")

    def __post_init__(self) -> None:
        for name in ("weights", "template", "k", "layer"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if not isinstance(self.filter, str | os.PathLike | None):
            raise ValueError(f"filter={self.filter!r} must be a file's name.")
        object.__setattr__(self, "filter", self.filter and os.fspath(self.filter))
        if self.name not in METHODS:
            raise ValueError(f"method={self.name!r} is not known. Choose from {', '.join(METHODS)}.")
        choices: dict[str, Iterable[str]] = {
            "pooling": pooling_names(self.name),
            "pooled": POSITIONS,
            "setting": SETTINGS,
            **_CHOICES,
        }
        for option, known in choices.items():
            if (value := getattr(self, option)) not in (_DEFAULTS[option], *known):
                raise ValueError(f"{self.name}: {option}={value!r} is not known. Choose from {', '.join(known)}.")
        for name, least in _NUMBERS.items():
            value, most = getattr(self, name), 64 if name == "repeats" else 1 << 30
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise ValueError(f"{name}={value!r} must be a whole number from {least} to {most}.")
        for name, default in _DEFAULTS.items():
            if isinstance(default, bool | str) and not isinstance(value := getattr(self, name), type(default)):
                raise ValueError(f"{name}={value!r} must be {'a text' if default == '' else 'True or False'}.")
        templates = self.template if isinstance(self.template, tuple) else (self.template,)
        texts = [text for each in templates for text in (each.values() if isinstance(each, Mapping) else (each,))]
        if self.template is not None and not all(isinstance(text, str) for text in texts):
            raise ValueError(f"template={self.template!r} must be a text, a mapping of texts, or a list of these.")
        layers = self.layer if isinstance(self.layer, tuple) else (self.layer, self.layer)
        if self.layer is not None and [type(each) for each in layers] != [int, int]:
            raise ValueError(f"layer={self.layer!r} must be a layer's number, or the first and the last of several.")
        for option, methods in _METHODS_WITH_OPTION.items():
            if (value := getattr(self, option)) not in (None, False) and self.name not in methods:
                raise ValueError(f"{option}={value!r} belongs to {', '.join(methods)}, not to {self.name}.")
        if self.name == "nosink" and self.setting is None:
            raise ValueError("nosink needs setting=…, as setting='mask0-bidir', k=4.")
        if self.implementation == "authors" and (self.chunk or self.include_special or self.normalize_weights):
            raise ValueError("implementation='authors': drop chunk, include_special and normalize_weights.")
        if self.chunk is not None and self.compute_matched:
            raise ValueError(f"chunk={self.chunk} does not go with compute_matched.")
        if re.search(rf"(?<!{{){{({_RESERVED})}}", str(self.layout)):
            raise ValueError(f"template={self.template!r}: a field may not bear the name of an argument of encode.")
        if self.setting is not None:
            plan = plan_layers(self.setting, None, k=self.k, k0=self.k0, m=self.m)
            is_apart = plan.architecture == "extra" and self.implementation == "paper"
            apart = is_apart and isinstance(self.layer, tuple)
            if plan.second and (self.read != "states" or apart):
                raise ValueError(f"setting={self.setting!r}: layers run twice, which goes with no such read or layer.")
        elif (self.k, self.k0, self.m) != (None, None, 1):
            raise ValueError(f"k={self.k!r}, k0={self.k0!r}, m={self.m!r} need setting=…, as setting='mask0-bidir'.")
        if (self.read != "states" or self.layer is None) and (self.join, self.final_norm) != ("mean", True):
            raise ValueError("join and final_norm belong to layer=… with read='states'. Drop them.")
        if self.implementation == "authors" and self.name != "reba" and self.setting is None:
            raise ValueError(f"implementation='authors' belongs to reba and to setting=…, not to {self.name}.")
        if not self.equal_norms and self.templates is None:
            raise ValueError("equal_norms=False needs several templates: template=[…, …].")
        kinds = [type(each) for each in self.weights] if isinstance(self.weights, tuple) else [None]
        if self.weights is not None and (not 0 < len(kinds) == len(self.templates or ()) or {*kinds} - {int, float}):
            raise ValueError(f"weights={self.weights!r} must be numbers, one for each of template=[…, …].")

    def __hash__(self) -> int:
        return hash(str(self))  # a template may be a mapping

    @property
    def templates(self) -> tuple[Any, ...] | None:
        """The templates of an ensemble; None: there is one at most."""
        found = ENSEMBLES.get(self.template) if isinstance(self.template, str) else self.template
        return found if isinstance(found, tuple) else None

    @property
    def layout(self) -> Any:
        """The template as RepeatTransformer takes it: a text, a mapping, a list, or None."""
        if self.templates is not None:
            return [TEMPLATES.get(each, each) if isinstance(each, str) else each for each in self.templates]
        named = "prompteol" if self.template is None and self.name == "prompteol" else self.template
        if isinstance(named, str) and "{" not in named and named not in TEMPLATES:
            raise ValueError(f"template={named!r} is no text with a {{text}} slot, and no template's name.")
        return TEMPLATES.get(named, named) if isinstance(named, str) else named

    @property
    def template_weights(self) -> tuple[float, ...]:
        """The weights of an ensemble's templates."""
        count = len(self.templates or ())
        return self.weights or ((1.0, -0.25) if self.template == "contrastive" else (1 / count,) * count)

    @property
    def sentence_pooling(self) -> str:
        """The pooling, its default filled in."""
        return self.pooling or pooling_names(self.name)[0]

    @property
    def pooling_spec(self) -> PoolingSpec:
        """The declaration of the pooling."""
        return find_pooling(self.name, self.sentence_pooling)

    def to_dict(self) -> dict[str, Any]:
        """The name and what is not at its default, JSON-serializable; ``Method(**values)`` reads it."""
        changed = {key: value for key, value in vars(self).items() if key == "name" or value != _DEFAULTS[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in changed.items()}

    def __str__(self) -> str:
        written = ",".join(f"{key}={_written(value)}" for key, value in self.to_dict().items() if key != "name")
        return f"{self.name}:{written}" if written else self.name

    @classmethod
    def parse(cls, text: str, **given: Any) -> Method:
        """Read a name or the short form, ``name:option=value,option=[1,2],option="a text"``; what is given wins."""
        name, _, rest = str(text).partition(":")
        values: dict[str, Any] = {}
        while rest:
            key, equals, rest = rest.partition("=")
            if not equals:
                raise ValueError(f"method={text!r}: {key!r} must be written option=value.")
            if rest[:1] in ('"', "[", "{"):
                try:
                    values[key.strip()], end = json.JSONDecoder().raw_decode(rest)
                except ValueError as error:
                    raise ValueError(f"method={text!r}: the value of {key} is no JSON ({error}).") from error
                rest = rest[end:].lstrip(" ,")
            else:
                value, _, rest = rest.partition(",")
                values[key.strip()] = read_value(value.strip())
        values |= given
        if unknown := sorted(values.keys() - OPTIONS.keys()):
            raise ValueError(f"{unknown[0]}={values[unknown[0]]!r} is not known. Choose from {', '.join(OPTIONS)}.")
        return cls(name.strip(), **values)


_DEFAULTS = {each.name: each.default for each in fields(Method)}
OPTIONS = {each.name: each.metadata["help"] for each in fields(Method) if each.name != "name"}


def method_of(model: SentenceTransformer) -> Method | None:
    """What a model computes, as it was built; None: modules put together by hand, or another's.

    Example:
        >>> import st_reba
        >>> print(method_of(st_reba.build("mini", "echo", pooling="mean")))
        echo:pooling=mean
    """
    recipe = getattr(model[0], "recipe", None)
    try:
        return None if recipe is None else Method(**recipe)
    except (TypeError, ValueError):
        return None


def read_value(text: str) -> Any:
    """A value of the short form or the command line: JSON where it is, else the text itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def _written(value: Any) -> str:
    special = r'[,="\[\]{}]|^\s|\s$'
    plain = isinstance(value, str) and not re.search(special, value) and isinstance(read_value(value), str)
    return value if plain else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
