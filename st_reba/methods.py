"""The methods as data: one frozen dataclass that `build`, recipes, cards and the command line share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What each method is, and where it comes from.
METHODS = {
    "reba": "Backward attention over a repeated text (ReBA, section 3).",
    "echo": "The last copy of a repeated text (Echo, section 3).",
    "classical": "The text once (the baseline of all three papers).",
    "prompteol": "The very last position of a prompt that asks for one word (Echo, section 4.2 and appendix D).",
    "nosink": "The text once, through layers whose masks are changed (NoSink, section 3).",
}
# Options that only some methods have.
_OF: dict[str, tuple[str, ...]] = {
    "repeats": ("reba", "echo"),
    "compute_matched": ("reba", "echo"),
    "include_special": ("reba",),
    "normalize_weights": ("reba",),
    "chunk": ("reba",),
    "pooled": ("echo", "classical", "prompteol", "nosink"),
}
_POOLINGS = {
    "reba": ("last", "mean"),
    "echo": ("last", "mean"),
    "classical": ("last", "mean", "cls"),
    "prompteol": ("last",),
    "nosink": ("mean", "last", "cls"),
}
POOLED = ("last_copy", "repeats", "last_copy_and_end", "end", "all")
# Arguments that encode takes for itself: a field of such a name could never get a value.
_RESERVED = ("inputs", "sentences", "prompt", "prompt_name", "batch_size", "device", "output_value", "task")
# The NoSink paper's settings of the layers: architecture, mask of the converted layers, mask of the others, k0.
SETTINGS: dict[str, tuple[str, str, str, int | None]] = {
    "baseline": ("inplace", "forward", "forward", 0),
    "inplace-back": ("inplace", "backward", "forward", 0),
    "inplace-bidir": ("inplace", "bidirectional", "forward", 0),
    "inter-back": ("inter", "backward", "forward", 0),
    "inter-bidir": ("inter", "bidirectional", "forward", 0),
    "extra-back": ("extra", "backward", "forward", 0),
    "extra-bidir": ("extra", "bidirectional", "forward", 0),
    "extend-back": ("extend", "backward", "forward", 0),
    "extend-bidir": ("extend", "bidirectional", "forward", 0),
    "mask0-for": ("inplace", "nosink-forward", "forward", 0),
    "mask0-bidir": ("inplace", "nosink-bidirectional", "forward", 0),
    "mask0-all": ("inplace", "nosink-bidirectional", "nosink-forward", 0),
    "mask0&bidir": ("inplace", "bidirectional", "forward", None),
    "mask0-1": ("inplace", "bidirectional", "forward", 1),
    "mask0-2": ("inplace", "bidirectional", "forward", 2),
    "mask0-3": ("inplace", "bidirectional", "forward", 3),
    "mask0-last": ("inplace", "bidirectional", "forward", None),
    "mask0-mid": ("inplace", "bidirectional", "forward", None),
    # KV-Embedding (2026): every token also sees the last one.
    "rerouted": ("inplace", "rerouted", "forward", 0),
}
# Templates as the papers write them; a mapping has one for encode_query and one for encode_document.
TEMPLATES: dict[str, str | dict[str, str]] = {
    # Echo, section 4.2: zero-shot, and its classical counterpart.
    "echo": "Rewrite the following paragraph: {text}. The rewritten paragraph: {text}",
    "echo-classical": "Write a paragraph: {text}",
    # Echo, section 4.4: fine-tuned with instructions.
    "echo-instruct": {
        "query": "Instruct: {instruction}\nQuery: {text}\nQuery again: {text}",
        "document": "Document: {text}\nDocument again: {text}",
    },
    # PromptEOL, as in Echo, section 4.2 and appendix D.
    "prompteol": 'This sentence: "{text}" means in one word:"',
}
# What token i sees in a layer, by the name of its mask; {m}: number of sink tokens.
MASKS = {
    "forward": "the tokens up to i, as in the base",
    "backward": "the tokens from i on",
    "bidirectional": "all tokens",
    "nosink-forward": "the tokens up to i, but not the first {m} (the sink), which later tokens do not see",
    "nosink-bidirectional": "all tokens, but not the first {m} (the sink), which later tokens do not see",
    "rerouted": "the tokens up to i and the very last one, past any window",
}
# Named lists of templates. MetaEOL asks for one word from several sides; a contrastive list also asks for what is to be
# taken away. The wording is this project's own.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "metaeol": (
        'The text: "{text}" In one word, what it says is: "',
        'The text: "{text}" In one word, its subject is: "',
        'The text: "{text}" In one word, its mood is: "',
        'The text: "{text}" In one word, its main fact is: "',
        'The text: "{text}" In one word, said differently: "',
    ),
    "metaeol-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "这句话：“{text}”的主题用一个词说是：“",
        "这句话：“{text}”的感情用一个词说是：“",
        "这句话：“{text}”里最重要的事用一个词说是：“",
        "换一种说法，这句话：“{text}”用一个词说是：“",
    ),
    "contrastive": (
        'This sentence: "{text}" means in one word:"',
        'A word that has nothing to do with this sentence: "{text}" is: "',
    ),
    "contrastive-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "与这句话：“{text}”无关的一个词是：“",
    ),
}
_WEIGHTS = {"contrastive": (1.0, -0.25), "contrastive-zh": (1.0, -0.25)}


def _option(default: Any, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Method:
    """What a pipeline computes.

    Raises:
        ValueError: A value that is not allowed, or options that do not go together.

    Example:
        >>> method = Method("echo", pooling="mean", layer=12)
        >>> str(method)
        'echo:pooling=mean,layer=12'
        >>> Method.parse("echo:pooling=mean,layer=12") == method
        True
    """

    name: str = _option("reba", "one of " + ", ".join(METHODS))
    pooling: str | None = _option(
        None, "sentence vector: last, mean, or cls (classical); default: last, mean for nosink"
    )
    repeats: int | None = _option(None, "copies of the text; default: 2, or the template's {text} slots")
    template: Any = _option(
        None,
        "text with a {text} slot for each copy, a template's name, a mapping of query and document, or a list of these",
    )
    weights: tuple[float, ...] | None = _option(None, "one for each template of a list; default: their average")
    equal_norms: bool = _option(True, "of several templates: divide each vector by its length first")
    instruction: str = _option("", "value of the template's {instruction} where no prompt is given")
    pooled: str | None = _option(None, f"positions that are pooled: {', '.join(POOLED)}; default: last_copy")
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
    layer: Any = _option(
        None, "layer to read, 0 (embeddings) to L or -1 (L) downwards; or the first and last of several"
    )
    join: str = _option("mean", "of several layers: mean, or concat")
    final_norm: bool = _option(True, "read layers behind the model's final norm")
    filter: str | None = _option(None, "file of a fitted filter")

    def __post_init__(self) -> None:
        for name in ("weights", "template", "k", "layer"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        _choose("method", self.name, METHODS)
        self._check_values()
        for option, methods in _OF.items():
            if getattr(self, option) not in (None, False) and self.name not in methods:
                raise ValueError(
                    f"{option}={getattr(self, option)!r} belongs to {', '.join(methods)}, not to {self.name}."
                )
        if self.name == "nosink" and self.setting is None:
            raise ValueError("nosink needs setting=…, as setting='mask0-bidir', k=4.")
        if self.chunk is not None and (self.compute_matched or self.implementation != "paper"):
            raise ValueError(f"chunk={self.chunk} goes with neither compute_matched nor implementation='authors'.")
        self.layout  # noqa: B018 - refuses an unknown name
        if any(f"{{{name}}}" in str(self.layout) for name in _RESERVED):
            raise ValueError(f"template={self.template!r}: a field may not bear the name of an argument of encode.")
        if self.setting is not None:
            masks_of(self.setting, 64, k=self.k, k0=self.k0, m=self.m, check_depth=False)
        elif (self.k, self.k0, self.m) != (None, None, 1):
            raise ValueError(f"k={self.k!r}, k0={self.k0!r}, m={self.m!r} need setting=…, as setting='mask0-bidir'.")
        listed = self.templates
        if self.weights is not None and (listed is None or len(self.weights) != len(listed)):
            raise ValueError(f"weights={self.weights} need as many templates: template=[…, …].")

    def __hash__(self) -> int:
        return hash(str(self))  # a template may be a mapping

    def _check_values(self) -> None:
        _choose("pooling", self.pooling, (None, *_POOLINGS[self.name]))
        _choose("pooled", self.pooled, (None, *POOLED))
        _choose("implementation", self.implementation, ("paper", "authors"))
        _choose("setting", self.setting, (None, *SETTINGS))
        _choose("join", self.join, ("mean", "concat"))
        for name, least in (("repeats", 1), ("max_seq_length", 1), ("chunk", 1), ("k0", 0), ("m", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= 1 << 30):
                raise ValueError(f"{name}={value!r} must be a whole number from {least} on.")
        for name in (
            "equal_norms",
            "compute_matched",
            "normalize",
            "include_special",
            "normalize_weights",
            "final_norm",
        ):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False.")
        if (self.repeats or 1) > 64:
            raise ValueError(f"repeats={self.repeats}: at most 64 copies.")
        layers = self.layer if isinstance(self.layer, tuple) else (self.layer, self.layer)
        if self.layer is not None and not (len(layers) == 2 and all(type(each) is int for each in layers)):
            raise ValueError(f"layer={self.layer!r} must be a layer's number, or the first and the last of several.")
        if not isinstance(self.instruction, str):
            raise ValueError(f"instruction={self.instruction!r} must be a text.")

    @property
    def templates(self) -> tuple[Any, ...] | None:
        """The templates of an ensemble; None: there is one at most."""
        if isinstance(self.template, str):
            return ENSEMBLES.get(self.template)
        return self.template if isinstance(self.template, tuple) else None

    @property
    def layout(self) -> Any:
        """The template as RepeatTransformer takes it: a text, a mapping, a list, or None."""
        if self.templates is not None:
            return [TEMPLATES.get(each, each) if isinstance(each, str) else each for each in self.templates]
        named = "prompteol" if self.template is None and self.name == "prompteol" else self.template
        if isinstance(named, str) and "{" not in named and named not in TEMPLATES:
            raise ValueError(f"template={named!r} is no text with a {{text}} slot, and none of {_named()}.")
        return TEMPLATES.get(named, named) if isinstance(named, str) else named

    @property
    def template_weights(self) -> tuple[float, ...]:
        """The weights of an ensemble's templates."""
        if self.weights is not None:
            return tuple(map(float, self.weights))
        count = len(self.templates or ())
        named = _WEIGHTS.get(self.template) if isinstance(self.template, str) else None
        return named or (1 / count,) * count

    @property
    def sentence_pooling(self) -> str:
        """The pooling, its default filled in."""
        return self.pooling or _POOLINGS[self.name][0]

    def to_dict(self) -> dict[str, Any]:
        """The name and what is not at its default, JSON-serializable; ``Method(**values)`` reads it."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        changed = {key: value for key, value in given.items() if key == "name" or value != _DEFAULTS[key]}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in changed.items()}

    def __str__(self) -> str:
        values = self.to_dict()
        name = values.pop("name")
        written = ",".join(f"{key}={_written(value)}" for key, value in values.items())
        return f"{name}:{written}" if written else name

    @classmethod
    def parse(cls, text: str, **given: Any) -> Method:
        """Read the short form, ``name:option=value,option=value``; lists are written ``[1,2]``, texts may be quoted."""
        name, _, rest = text.partition(":")
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
        return method_from(name.strip(), {**values, **given})


_DEFAULTS = {each.name: each.default for each in fields(Method)}
OPTIONS = {each.name: each.metadata["help"] for each in fields(Method) if each.name != "name"}


def method_from(name: str, options: Mapping[str, Any]) -> Method:
    """A method of a name, or of the short form, and options; an unknown option is named."""
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ValueError(
            f"{unknown[0]}={options[unknown[0]]!r} is not known. The options of {name}: {', '.join(OPTIONS)}."
        )
    return Method.parse(name, **options) if ":" in name else Method(name, **options)


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


def masks_of(
    setting: str, depth: int, *, k: Any = None, k0: int | None = None, m: int = 1, implementation: str = "paper",
    check_depth: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """What NoSinkTransformer takes for a setting of the paper.

    ``mask0-1`` to ``mask0-3`` are ``mask0&bidir`` with k0 = 1 to 3. ``mask0-last`` and ``mask0-mid`` take as k0 the
    best k of MASK0-BIDIR, and use it, or half of it (at least 1).

    Args:
        setting: One of ``SETTINGS``.
        depth: The number of layers L.
        k: Converted layers: a number from the top, ``"all"``, or a list of layers, -1 being the topmost.
        k0: The topmost of them that hide the sink.
        m: Sink tokens that are hidden.
        implementation: Of inter and extra: ``"paper"`` or ``"authors"``.
        check_depth: Compare the numbers with ``depth``.

    Raises:
        ValueError: A number that is missing, too large, or that the setting does not take.

    Source:
        NoSink, sections 3.1, 3.5 and 3.6, figures 2 and 4 to 6.

    Example:
        >>> masks_of("mask0&bidir", 4, k=2, k0=1)["layer_masks"]
        ['forward', 'forward', 'bidirectional', 'nosink-bidirectional']
    """
    architecture, mask, others, fixed = SETTINGS[setting]
    if setting != "baseline" and k is None:
        raise ValueError(f"setting={setting!r} needs k, a number of layers from the top.")
    if (setting == "baseline" and k is not None) or (fixed is not None and k0 is not None):
        raise ValueError(f"setting={setting!r} takes no {'k' if setting == 'baseline' else 'k0'}. Drop it.")
    if fixed is None and k0 is None:
        raise ValueError(f"setting={setting!r} needs k0, the topmost layers that hide the sink.")
    if m != 1 and not setting.startswith("mask0"):
        raise ValueError(f"m={m}: setting={setting!r} hides no sink. Drop m.")
    hiding = fixed if fixed is not None else k0 or 0
    hiding = min(hiding, max(1, hiding // 2)) if setting == "mask0-mid" else hiding
    layers = _layers(k, depth, extend=architecture == "extend", check=check_depth)
    if hiding > len(layers):
        raise ValueError(f"k0={hiding} is more than k={k!r}: of the converted layers, k0 hide the sink.")
    masks = [mask] * (len(layers) - hiding) + ["nosink-bidirectional"] * hiding
    converted = list(zip(layers, masks, strict=True))
    plain = [others] * depth
    if architecture == "inplace":
        for layer, each in converted:
            plain[layer] = each
        converted = []
    elif architecture == "inter" and implementation == "authors" and converted:
        # Two streams from the first converted layer on.
        chosen = dict(converted)
        converted = [(layer, chosen.get(layer, others)) for layer in range(converted[0][0], depth)]
    second = [list(each) for each in converted]
    return {
        "layer_masks": plain, "second": second, "architecture": architecture if second else "inplace", "m": m,
        "implementation": implementation,
    }  # fmt: skip


def _layers(k: Any, depth: int, *, extend: bool, check: bool) -> list[int]:
    """The converted layers, from the bottom; of EXTEND the last one, k times."""
    if isinstance(k, Sequence) and not isinstance(k, str):
        if extend or not k or not all(type(each) is int for each in k) or len({each % depth for each in k}) < len(k):
            raise ValueError(f"k={k!r} must be a number of layers, or a list of different layers (not with extend).")
        if check and not all(-depth <= each < depth for each in k):
            raise ValueError(f"k={list(k)!r}: the model has {depth} layers.")
        return sorted(each % depth for each in k)
    if k == "all" and not extend:
        return list(range(depth))
    if k is not None and (type(k) is not int or k < 0):
        raise ValueError(f"k={k!r} must be a number of layers{'' if extend else ', all, or a list of layers'}.")
    if check and not extend and (k or 0) > depth:
        raise ValueError(f"k={k}, but the model has {depth} layers.")
    return [depth - 1] * (k or 0) if extend else list(range(max(0, depth - (k or 0)), depth))


def read_value(text: str) -> Any:
    """A value of the short form or the command line: JSON where it is, else the text itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def _named() -> str:
    return ", ".join([*TEMPLATES, *ENSEMBLES])


def _written(value: Any) -> str:
    plain = isinstance(value, str) and not re.search(r'[,="\[\]{}]', value) and isinstance(read_value(value), str)
    return value if plain else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _choose(option: str, value: Any, known: Any) -> None:
    if value not in known:
        raise ValueError(
            f"{option}={value!r} is not known. Choose from {', '.join(str(each) for each in known if each)}."
        )
