"""What a pipeline computes: one method and its stages. YAML, cards and options derive from it, and the short form:
``field=value,field=value``, and of a pipeline ``method:…+stage:…+stage:…``.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from .modules import Classical, Echo, Method, NoSink, PromptEOL, ReBA, Stage
from .modules.methods import ByHand, method_of
from .modules.options import Options, alternatives, shown, unknown
from .modules.stages import as_stored, stage_kind, stages_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Each name that a user gives, and the options that it takes. NoSink is a setting of the layers: as a method, the text
# stands once and the mean is pooled.
METHODS: dict[str, tuple[type[Options], ...]] = {
    "reba": (ReBA,),
    "echo": (Echo,),
    "classical": (Classical,),
    "prompteol": (PromptEOL,),
    "nosink": (Classical, NoSink),
}


@dataclass(frozen=True)
class Spec:
    """A method and what happens around the layers.

    Args:
        method: :class:`ReBA`, :class:`Echo`, :class:`Classical` or :class:`PromptEOL`.
        stages: :class:`NoSink`, :class:`ReadLayers`, :class:`Prepend`, … in their order.

    Example:
        >>> spec = Spec.parse("echo:pooling=mean+nosink:setting=mask0-bidir,k=4")
        >>> spec.stages[0].k, str(spec)
        (4, 'echo:pooling=mean+nosink:setting=mask0-bidir,k=4')
    """

    method: Method
    stages: tuple[Stage, ...] = ()

    @classmethod
    def make(
        cls, method: str | Method | None = None, stages: Any = None, fields: Mapping[str, Any] | None = None
    ) -> Spec:
        """A spec from what ``build`` is given.

        Args:
            method: A name, the short form, or a method; None: ReBA.
            stages: The stages, as objects, mappings or short forms.
            fields: Fields of the method, where it is a name.

        Raises:
            ValueError: An unknown name or field, a value that is not allowed, or what cannot be combined.
        """
        fields = dict(fields or {})
        if isinstance(stages, Sequence) and not isinstance(stages, str):
            stages = [_stage(each) if isinstance(each, str) else each for each in stages]
        found = list(stages_of(stages))
        if isinstance(method, Method):
            for field, value in fields.items():
                raise ValueError(f"{field}={shown(value)}: write it into {type(method).__name__}({field}=…).")
            return cls(method, tuple(found))
        if method is not None and not isinstance(method, str):
            raise ValueError(f"method={shown(method)}: give one of {list(METHODS)}, or an object as st_reba.Echo().")
        name, _, text = (method or "reba").partition(":")
        if text:
            if fields or stages:
                raise ValueError(f"method={method!r} has its fields and stages in it. Give others there too.")
            return cls.parse(method or "")
        kinds = _kinds(name)
        known = [field for kind in kinds for field in kind.names()]
        for field, value in fields.items():
            if field not in known:
                raise ValueError(_not_of(name, field, value, known))
        parts = [{field: fields[field] for field in kind.names() if field in fields} for kind in kinds]
        if name == "nosink":
            parts[0].setdefault("pooling", "mean")
            if "setting" in parts[1]:
                found.append(NoSink.of(parts[1]))
            elif parts[1]:
                field, value = next(iter(parts[1].items()))
                raise ValueError(f"nosink: {field}={shown(value)} needs setting=…: add setting='mask0-bidir'.")
            elif not any(stage.order == NoSink.order for stage in found):
                raise ValueError("nosink: give setting=… and k=…, as setting='mask0-bidir', k=2; or a LayerPlan.")
        chosen = kinds[0].of(parts[0])
        assert isinstance(chosen, Method)
        return cls(chosen, stages_of(found))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """A spec from the short form; errors as for :meth:`make`."""
        first, *others = cut(text, "+")
        name, _, fields = first.partition(":")
        return cls.make(name, others, read_fields(fields, _kinds(name), name))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Spec:
        """A spec from a mapping: ``method``, its fields, and ``stages``; :meth:`to_dict` writes it."""
        fields = dict(values)
        return cls.make(fields.pop("method", None), fields.pop("stages", None), fields)

    @property
    def name(self) -> str:
        """What a user calls the method: classical with a layer plan is NoSink."""
        converted = any(stage.order == NoSink.order for stage in self.stages)
        return "nosink" if self.method.name == "classical" and converted else self.method.name

    def to_dict(self) -> dict[str, Any]:
        """What was given, JSON-serializable; what is at its default is left out."""
        stages = {"stages": as_stored(self.stages)} if self.stages else {}
        return {"method": self.method.name, **self.method.to_dict(), **stages}

    def __str__(self) -> str:
        return "+".join(map(_written, (self.method, *self.stages)))


def spec_of(model: SentenceTransformer) -> Spec:
    """What a model computes, as it was built and as its configuration stores it.

    Args:
        model: A model that was built or loaded. Of modules put together by hand, the method is not known.

    Raises:
        ValueError: It does not begin with a module of st_reba.

    Example:
        >>> import st_reba
        >>> str(st_reba.spec_of(st_reba.build("mini", "echo", pooling="mean")))
        'echo:pooling=mean'
    """
    first: Any = model[0]
    if not hasattr(first, "stages"):
        raise ValueError(f"the model begins with {type(first).__name__}, which no st_reba built: use st_reba.build.")
    return Spec(ByHand() if first.method is None else method_of(first.method), first.stages)


def _kinds(name: str) -> tuple[type[Options], ...]:
    if name not in METHODS:
        raise ValueError(unknown("method", name, list(METHODS), name))
    return METHODS[name]


def _not_of(name: str, field: str, value: Any, known: Sequence[str]) -> str:
    """The message for a field that a method does not have: whose it is, or the nearest that it has."""
    others = [other for other, kinds in METHODS.items() if any(field in kind.names() for kind in kinds)]
    if not others:
        return unknown(f"{name}: {field}", field, known, value)
    given = f"{name}: {field} (={shown(value)})"
    return f"{given} is an option of {' and '.join(others)}. Give method={others[0]!r}, or drop it."


def _stage(text: str) -> Stage:
    name, _, fields = text.partition(":")
    kind = stage_kind(name)
    return kind.of(read_fields(fields, [kind], kind.name))


def cut(text: str, mark: str) -> list[str]:
    """A text cut at a mark; what stands in quotes is left alone, empty parts are dropped."""
    parts = re.findall(rf"""(?:"[^"]*"|'[^']*'|[^{re.escape(mark)}])+""", text)
    return [part for part in parts if part.strip()]


def read_fields(text: str, kinds: Sequence[type[Options]], title: str) -> dict[str, Any]:
    """The values of ``field=value,field=value``, fields of ``kinds``; ``title`` is what messages call these."""
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items() if name in kind.names()}
    values: dict[str, Any] = {}
    for part in cut(text, ","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            raise ValueError(f"{title}: {part!r} must be written field=value; the fields are {list(hints)}.")
        if name not in hints:
            raise ValueError(unknown(f"{title}: {name}", name, list(hints), value))
        values[name] = read_value(value, hints[name])
    return values


def read_value(text: str, hint: Any) -> Any:
    """A value of the short form or the command line, by its field's type; what fits none stays a text."""
    kinds = alternatives(hint)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1].replace(2 * text[0], text[0])
    if text == "None" and types.NoneType in kinds:
        return None
    for kind in kinds:
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if get_origin(kind) is tuple and str not in kinds:
            # A list's items are separated by spaces.
            inner = alternatives(get_args(kind)[0])
            return tuple(read_value(each, inner[0] if len(inner) == 1 else str) for each in text.split())
    return text


def _written(options: Options) -> str:
    """Options in the short form: their name, and the fields that are not at their default."""
    given = []
    for name, value in options.to_dict().items():
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        quote = "'" if '"' in text else '"'
        quoted = not isinstance(value, list) and any(mark in text for mark in ",+'\"")
        given.append(f"{name}={quote}{text.replace(quote, 2 * quote)}{quote}" if quoted else f"{name}={text}")
    return f"{options.name}:{','.join(given)}" if given else options.name
