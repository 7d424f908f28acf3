"""The methods as data: one frozen dataclass that `build`, recipes, cards and the command line share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from .modules.settings import MAX_REPEATS, SETTINGS, LayerPlan, plan_layers
from .poolings import POSITIONS, PoolingSpec, describe_poolings, poolings_of
from .prompts import ENSEMBLES, TEMPLATES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# One wording, or one for each task; and a template for each row of a text.
Wordings: TypeAlias = "str | Mapping[str, str]"
Template: TypeAlias = "Wordings | Sequence[Wordings]"

Options: TypeAlias = Mapping[str, Any]
MutableOptions: TypeAlias = dict[str, Any]

METHODS = {
    "reba": "Backward attention over a repeated text",
    "echo": "The last copy of a repeated text",
    "classical": "The text is read once",
    "prompteol": "The very last position of a prompt that asks for one word",
    "nosink": "The text is read once, with changed attention masks",
}
# Where they are described; classical is the baseline of all three papers.
METHOD_SOURCES = {
    "reba": "section 3 of the ReBA paper",
    "echo": "section 3 of the Echo paper",
    "prompteol": "the PromptEOL paper",
    "nosink": "section 3 of the NoSink paper",
}
# The default: on real bases, the best of the methods that need neither texts nor numbers
# (docs/results).
DEFAULT_METHOD = "prompteol:template=prompteol-search,read=attention"
_SINGLE_COPY_METHODS = ("classical", "prompteol", "nosink")
# Options that change what a layer sees.
MASK_OPTIONS = ("setting", "k", "k0", "m")
# Options that only some methods have, and those methods.
_METHODS_OF_OPTIONS = {
    "repeats": ("reba", "echo"),
    "compute_matched": ("reba", "echo"),
    "pooled": ("echo", *_SINGLE_COPY_METHODS),
    "include_special": ("reba",),
    "normalize_weights": ("reba",),
    "chunk": ("reba",),
}
# The smallest values of options that are whole numbers.
_MIN_VALUES = {"repeats": 1, "max_seq_length": 1, "chunk": 1, "k0": 0, "m": 0}
_LARGEST_NUMBER = 1 << 30
_CHOICES: dict[str, Iterable[str]] = {
    "pooled": POSITIONS,
    "setting": SETTINGS,
    "implementation": ("paper", "authors"),
    "join": ("mean", "concat"),
    "read": ("states", "attention"),
}
# Arguments of encode, encode_texts and encode_words: a field of such a name could never get a value.
_RESERVED_FIELDS = (
    "self|inputs|sentences|prompt|prompt_name|batch_size|show_progress_bar|output_value|precision|"
    "convert_to_numpy|convert_to_tensor|device|normalize_embeddings|truncate_dim|pool|chunk_size|"
    "processing_kwargs|task|features|capture|normalize|model|texts|items|batch_tokens|progress|"
    "on_truncated"
)
_RESERVED_FIELD = re.compile(rf"(?<!{{){{({_RESERVED_FIELDS})}}")
# In the recipe of a model: how its base was loaded. All else there are options of the method.
LOADING_RECORD = "loading"
_CONTRASTIVE_WEIGHTS = (1.0, -0.25)
# Characters that mean something in the short form.
_SPECIAL_CHARACTERS = re.compile(r'[,="\[\]{}]|^\s|\s$')


def _option(default: Any, description: str) -> Any:
    return field(default=default, metadata={"help": description})


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
    pooling: str | None = _option(
        None, f"sentence vector: {describe_poolings()}; default: last, mean for nosink"
    )
    repeats: int | None = _option(
        None, "copies of the text; default: 2, or the template's {text} slots"
    )
    template: Template | None = _option(
        None,
        "the words around the text, written out or by their name; with one {text} for each copy; "
        "a mapping by task; or a list",
    )
    weights: tuple[float, ...] | None = _option(
        None, "the weights of the templates; one for each of a list; default: their average"
    )
    equal_norms: bool = _option(
        True, "whether each template's vector is divided by its length first"
    )
    instruction: str = _option("", "value of the template's {instruction} where no prompt is given")
    pooled: str | None = _option(
        None, f"positions that are pooled: {', '.join(POSITIONS)}; default: by method"
    )
    compute_matched: bool = _option(
        False, "halve the tokens that a copy may hold, so that two cost what one did"
    )
    max_seq_length: int | None = _option(
        None, "the most positions of an input, all copies together"
    )
    normalize: bool = _option(True, "scale vectors to length 1")
    implementation: str = _option(
        "paper", "the paper's formulas (paper), or what its authors' code computes (authors)"
    )
    include_special: bool = _option(False, "sum over template and special tokens too")
    normalize_weights: bool = _option(False, "divide each token's weights by their sum")
    chunk: int | None = _option(
        None, "split long texts into pieces of at most this many tokens, and repeat only these"
    )
    setting: str | None = _option(None, f"masks of the layers: {', '.join(SETTINGS)}")
    k: Any = _option(
        None,
        "converted layers from the top: a number, all, or a list of layers, -1 being the topmost",
    )
    k0: int | None = _option(None, "the topmost of the converted layers that hide the sink")
    m: int = _option(1, "how many tokens at the start of the input are the sink")
    layer: Any = _option(
        None,
        "the layer that is read, or the first and the last of several (0 is the embeddings, -1 the "
        "topmost layer)",
    )
    read: str = _option(
        "states",
        "what is read, hidden states (states), or the mean of attention outputs (attention); by "
        "default those of the upper half of layers",
    )
    join: str = _option("mean", "how the states of several layers are joined, mean or concat")
    final_norm: bool = _option(True, "read states after the model's final norm")
    filter: str | None = _option(None, "file of a fitted filter")

    def __post_init__(self) -> None:
        for option_name in ("weights", "template", "k", "layer"):
            option_value = getattr(self, option_name)
            if isinstance(option_value, list):
                object.__setattr__(self, option_name, tuple(option_value))
        if isinstance(self.filter, os.PathLike):
            object.__setattr__(self, "filter", os.fspath(self.filter))
        self._check_choices()
        self._check_numbers()
        self._check_types()
        self._check_method()
        self._check_template()
        self._check_weights()
        self._check_layers()
        self._check_masks()

    def _check_choices(self) -> None:
        if not isinstance(self.name, str) or self.name not in METHODS:
            raise ValueError(
                f"method={self.name!r} is not known. Choose from {', '.join(METHODS)}."
            )
        for option_name, choices in (("pooling", poolings_of(self.name)), *_CHOICES.items()):
            option_value = getattr(self, option_name)
            if option_value != _DEFAULTS[option_name] and option_value not in tuple(choices):
                raise ValueError(
                    f"{self.name}: {option_name}={option_value!r} is not known. Choose from {', '.join(choices)}."
                )

    def _check_numbers(self) -> None:
        for option_name, minimum in _MIN_VALUES.items():
            option_value = getattr(self, option_name)
            maximum = MAX_REPEATS if option_name == "repeats" else _LARGEST_NUMBER
            if option_value is not None and (
                type(option_value) is not int or not minimum <= option_value <= maximum
            ):
                raise ValueError(
                    f"{option_name}={option_value!r} must be a whole number from {minimum} to {maximum}."
                )

    def _check_types(self) -> None:
        if not isinstance(self.filter, str | None):
            raise ValueError(f"filter={self.filter!r} must be a file's name.")
        if not isinstance(self.instruction, str):
            raise ValueError(f"instruction={self.instruction!r} must be a text.")
        for option_name, default in _DEFAULTS.items():
            option_value = getattr(self, option_name)
            if isinstance(default, bool) and not isinstance(option_value, bool):
                raise ValueError(f"{option_name}={option_value!r} must be True or False.")

    def _check_method(self) -> None:
        """Refuse options of other methods, and of other implementations."""
        for option_name, method_names in _METHODS_OF_OPTIONS.items():
            option_value = getattr(self, option_name)
            if option_value not in (None, False) and self.name not in method_names:
                raise ValueError(
                    f"{option_name}={option_value!r} belongs to {', '.join(method_names)}, not to {self.name}."
                )
        if self.chunk is not None and self.compute_matched:
            raise ValueError(f"chunk={self.chunk} does not go with compute_matched.")
        if self.implementation != "authors":
            return
        if self.name != "reba" and self.setting is None:
            raise ValueError(
                f"implementation='authors' belongs to reba and to setting=…, not to {self.name}."
            )
        if self.chunk or self.include_special or self.normalize_weights:
            raise ValueError(
                "implementation='authors': drop chunk, include_special and normalize_weights."
            )

    def _check_template(self) -> None:
        if self.template is None:
            return
        is_list = isinstance(self.template, tuple)
        templates: Any = self.template if is_list else (self.template,)
        for template in templates:
            if is_list and isinstance(template, str) and template in ENSEMBLES:
                raise ValueError(
                    f"template={template!r} names an ensemble, which cannot stand in a list of templates. "
                    "Give it alone, or list its templates."
                )
            wordings = template.values() if isinstance(template, Mapping) else (template,)
            if not all(isinstance(wording, str) for wording in wordings):
                raise ValueError(
                    f"template={self.template!r} must be a text, a mapping of texts, or a list of these."
                )
        if _RESERVED_FIELD.search(str(self.full_template)):
            raise ValueError(
                f"template={self.template!r}: a field may not have the name of an argument of encode or encode_words."
            )

    def _check_weights(self) -> None:
        if self.templates is None and not self.equal_norms:
            raise ValueError("equal_norms=False needs several templates: template=[…, …].")
        if self.weights is None:
            return
        is_list = isinstance(self.weights, tuple)
        are_numbers = is_list and set(map(type, self.weights)) <= {int, float}
        if not are_numbers or not 0 < len(self.weights) == len(self.templates or ()):
            raise ValueError(
                f"weights={self.weights!r} must be numbers, one for each of template=[…, …]."
            )

    def _check_layers(self) -> None:
        if self.layer is not None:
            bounds = self.layer if isinstance(self.layer, tuple) else (self.layer, self.layer)
            if list(map(type, bounds)) != [int, int]:
                raise ValueError(
                    f"layer={self.layer!r} must be a layer's number, or the first and the last of several."
                )
        if self.layer is not None and self.read == "states":
            return
        if self.join != "mean" or not self.final_norm:
            raise ValueError("join and final_norm belong to layer=… with read='states'. Drop them.")

    def _check_masks(self) -> None:
        if self.setting is None:
            if self.name == "nosink":
                raise ValueError("nosink needs setting=…, such as setting='mask0-bidir', k=4.")
            if (self.k, self.k0, self.m) != (None, None, 1):
                numbers = f"k={self.k!r}, k0={self.k0!r}, m={self.m!r}"
                raise ValueError(f"{numbers} need setting=…, such as setting='mask0-bidir'.")
            return
        layer_plan = self.plan_layers(None)
        has_two_streams = layer_plan.architecture == "extra" and self.implementation == "paper"
        reads_two_streams = has_two_streams and isinstance(self.layer, tuple)
        if layer_plan.second and (self.read != "states" or reads_two_streams):
            raise ValueError(
                f"setting={self.setting!r}: layers run twice, which excludes this read or layer."
            )

    def __hash__(self) -> int:
        return hash(str(self))  # a template may be a mapping

    @property
    def has_one_copy(self) -> bool:
        """Whether the input holds one copy of a text."""
        return self.name in _SINGLE_COPY_METHODS or self.chunk is not None

    @property
    def templates(self) -> tuple[Any, ...] | None:
        """The templates of an ensemble; None: there is one at most."""
        template = self.template
        if isinstance(template, str):
            return ENSEMBLES.get(template)
        return template if isinstance(template, tuple) else None

    @property
    def full_template(self) -> Template | None:
        """The template as RepeatTransformer takes it, without names: a text, a mapping, a list, or None."""
        if self.templates is not None:
            return [_template_of_name(template) for template in self.templates]
        if self.template is None and self.name == "prompteol":
            return _template_of_name("prompteol")
        template = _template_of_name(self.template)
        if isinstance(template, str) and "{" not in template:
            raise ValueError(
                f"template={template!r} is neither a text with a {{text}} slot nor the name of a template."
            )
        return template

    @property
    def template_weights(self) -> tuple[float, ...]:
        """The weights of an ensemble's templates."""
        if self.weights:
            return self.weights
        if self.template == "contrastive":
            return _CONTRASTIVE_WEIGHTS
        count = len(self.templates or ())
        return (1 / count,) * count

    @property
    def pooling_spec(self) -> PoolingSpec:
        """The declaration of the pooling, or of the method's default."""
        specs = poolings_of(self.name)
        return specs[self.pooling or next(iter(specs))]

    def plan_layers(self, depth: int | None) -> LayerPlan:
        """The masks of a model's layers; None: of a model that is not loaded."""
        return plan_layers(
            self.setting or "baseline",
            depth,
            k=self.k,
            k0=self.k0,
            m=self.m,
            implementation=self.implementation,
        )

    def read_layers(self, depth: int) -> tuple[int, int]:
        """First and last of the layers that are read, 0 (embeddings) to ``depth``."""
        lowest = 0
        layer = self.layer
        if self.read == "attention":
            lowest = 1
            if layer is None:
                layer = (depth // 2 + 1, depth)
        elif layer is None:
            layer = depth
        bounds = layer if isinstance(layer, tuple) else (layer, layer)
        # -1 is the topmost.
        first_layer, last_layer = (end_layer % (depth + 1) for end_layer in bounds)
        are_in_range = -depth - 1 <= min(bounds) and max(bounds) <= depth
        if not are_in_range or not lowest <= first_layer <= last_layer:
            raise ValueError(
                f"layer={layer!r}: give {lowest} to {depth}, or -1 (= {depth}) downwards, lower first."
            )
        return first_layer, last_layer

    def to_dict(self) -> MutableOptions:
        """The name and what is not at its default, JSON-serializable; ``Method(**values)`` reads it."""
        changed_values: MutableOptions = {}
        for option_name, option_value in vars(self).items():
            if option_name == "name" or option_value != _DEFAULTS[option_name]:
                changed_values[option_name] = (
                    list(option_value) if isinstance(option_value, tuple) else option_value
                )
        return changed_values

    def __str__(self) -> str:
        return write_short_form(self.to_dict())

    @classmethod
    def parse(cls, text: str, **options: Any) -> Method:
        """Read a name or the short form, ``name:option=value,option=[1,2],option="a text"``.

        Args:
            text: The text.
            **options: Options by name, which override those in the text.
        """
        method_name, _, short_form = str(text).partition(":")
        options = _parse_options(short_form, text) | options
        for option_name in sorted(options.keys() - OPTIONS.keys()):
            raise ValueError(
                f"{option_name}={options[option_name]!r} is not known. Choose from {', '.join(OPTIONS)}."
            )
        return cls(method_name.strip(), **options)


_DEFAULTS: MutableOptions = {}
OPTIONS: dict[str, str] = {}
for _field in fields(Method):
    _DEFAULTS[_field.name] = _field.default
    if _field.name != "name":
        OPTIONS[_field.name] = _field.metadata["help"]


def method_of(model: SentenceTransformer) -> Method | None:
    """The method that a model was built by; None: put together by hand, or by another package.

    Example:
        >>> import st_reba
        >>> print(method_of(st_reba.build("mini", "echo", pooling="mean")))
        echo:pooling=mean
    """
    recipe = getattr(model[0], "recipe", None)
    if recipe is None:
        return None
    try:
        return Method(**{name: recipe[name] for name in recipe if name != LOADING_RECORD})
    except (TypeError, ValueError):
        return None


def open_fields(
    model: SentenceTransformer,
    task: str | None,
    prompt: str | None,
) -> list[str]:
    """The fields of a task's template that have no value until ``encode`` gets one.

    Args:
        model: Any model; only those of st_reba have fields.
        task: The task; None: what ``encode`` does.
        prompt: The prompt that the model keeps for the task: the value of ``{instruction}``.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", template="echo-instruct")
        >>> open_fields(model, "query", None), open_fields(model, "document", None)
        (['instruction'], [])
    """
    transformer: Any = model[0]
    if not hasattr(transformer, "fields"):
        return []
    values = {"instruction": prompt or transformer.instruction}
    return sorted(name for name in transformer.fields(task) if not values.get(name))


def how_to_fill(field_name: str) -> str:
    """What to build a model with, so that a field of its template has a value."""
    if field_name == "instruction":
        return "instruction='…' (--set instruction=…)"
    return f"a template that has a text in place of {{{field_name}}}"


def _template_of_name(template: Any) -> Wordings:
    if isinstance(template, str):
        template = TEMPLATES.get(template, template)
    return template  # type: ignore[no-any-return]


def _parse_options(short_form: str, text: str) -> MutableOptions:
    """The options of a short form; ``text`` is the whole, for messages."""
    parsed_options: MutableOptions = {}
    while short_form:
        option_name, equals_sign, short_form = short_form.partition("=")
        if not equals_sign:
            raise ValueError(f"method={text!r}: {option_name!r} must be written KEY=VALUE.")
        if short_form.startswith(('"', "[", "{")):
            try:
                parsed_options[option_name.strip()], value_end = json.JSONDecoder().raw_decode(
                    short_form
                )
            except ValueError as error:
                raise ValueError(
                    f"method={text!r}: the value of {option_name} is not JSON ({error})."
                ) from error
            short_form = short_form[value_end:].lstrip(" ,")
        else:
            value, _, short_form = short_form.partition(",")
            parsed_options[option_name.strip()] = read_value(value.strip())
    return parsed_options


def read_value(text: str) -> Any:
    """A value of the short form or the command line: JSON if it is valid, else the text itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def write_short_form(values: Options) -> str:
    """The short form of a method, from its name and its options.

    Example:
        >>> write_short_form({"name": "echo", "pooling": "mean", "layer": 12})
        'echo:pooling=mean,layer=12'
    """
    method_name = str(values["name"])
    options = [f"{name}={write_value(values[name])}" for name in values if name != "name"]
    return f"{method_name}:{','.join(options)}" if options else method_name


def write_value(option_value: object) -> str:
    """A value as `read_value` reads it."""
    if (
        isinstance(option_value, str)
        and not _SPECIAL_CHARACTERS.search(option_value)
        and isinstance(read_value(option_value), str)
    ):
        return option_value
    return json.dumps(option_value, ensure_ascii=False, separators=(",", ":"))
