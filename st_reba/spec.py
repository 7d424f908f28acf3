"""What a pipeline computes: one method and its stages. YAML, short form, cards and options derive from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .modules import Classical, Echo, Method, NoSink, PromptEOL, ReBA, Stage
from .modules.methods import ByHand, method_of
from .modules.options import Options, shown, unknown
from .modules.stages import as_stored, stage_kind, stages_of
from .short import cut, read_fields, read_options, write_options

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
        stages: In their order: :class:`NoSink`, :class:`ReadLayers`, :class:`Prepend`, …

    Example:
        >>> spec = Spec.parse("echo:pooling=mean+nosink:setting=mask0-bidir,k=4")
        >>> spec.stages[0].k, str(spec)
        (4, 'echo:pooling=mean+nosink:setting=mask0-bidir,k=4')
    """

    method: Method
    stages: tuple[Stage, ...] = ()

    @classmethod
    def make(
        cls,
        method: str | Method | None = None,
        stages: Any = None,
        fields: Mapping[str, Any] | None = None,
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
        if isinstance(method, Method):
            if fields:
                name = next(iter(fields))
                raise ValueError(
                    f"{name}={shown(fields[name])} belongs into {type(method).__name__}({name}=…), which is given."
                )
            return cls(method, stages_of(stages))
        if method is not None and not isinstance(method, str):
            raise ValueError(
                f"method={shown(method)} must be one of {list(METHODS)}, or a method such as st_reba.Echo()."
            )
        name, _, text = (method or "reba").partition(":")
        if text:
            parsed = cls.parse(method or "")
            if fields or stages:
                raise ValueError(f"method={method!r} has its fields and stages in it. Give others there too.")
            return parsed
        if name not in METHODS:
            raise ValueError(unknown("method", name, list(METHODS), name))
        kinds = METHODS[name]
        known = [field for kind in kinds for field in kind.names()]
        for field, value in fields.items():
            if field not in known:
                raise ValueError(unknown(f"{name}: {field}", field, known, value))
        parts = [{field: fields[field] for field in kind.names() if field in fields} for kind in kinds]
        found = list(stages_of(stages))
        if name == "nosink":
            parts[0].setdefault("pooling", "mean")
            if parts[1]:
                if "setting" not in parts[1]:
                    field = next(iter(parts[1]))
                    raise ValueError(
                        f"nosink: {field}={shown(parts[1][field])} needs setting=…: add setting='mask0-bidir'."
                    )
                found.append(NoSink.of(parts[1]))
            elif not any(stage.order == NoSink.order for stage in found):
                raise ValueError(
                    "nosink: give setting=… with k=…, as setting='mask0-bidir', k=2; or stages=[LayerPlan(…)]."
                )
        chosen = kinds[0].of(parts[0])
        assert isinstance(chosen, Method)
        return cls(chosen, stages_of(found))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """A spec from the short form: ``method:field=value,field=value+stage:field=value``.

        Raises:
            ValueError: As for :meth:`make`.
        """
        first, *others = cut(text, "+")
        name, _, fields = first.partition(":")
        if name not in METHODS:
            raise ValueError(unknown("method", name, list(METHODS), name))
        return cls.make(name, others, read_fields(fields, METHODS[name], name))

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
        return "+".join(map(write_options, (self.method, *self.stages)))


def spec_of(model: SentenceTransformer) -> Spec:
    """What a model computes, as it was built and as its configuration stores it.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded. Of modules put together by hand, the method is
            not known.

    Raises:
        ValueError: It does not begin with a module of st_reba.

    Example:
        >>> import st_reba
        >>> str(st_reba.spec_of(st_reba.build("mini", "echo", pooling="mean")))
        'echo:pooling=mean'
    """
    first: Any = model[0]
    if not hasattr(first, "stages"):
        raise ValueError(
            f"the model begins with {type(first).__name__}, which no st_reba built. Build it with st_reba.build."
        )
    if first.method is None:
        return Spec(ByHand(), first.stages)
    return Spec(method_of(first.method), first.stages)


def _stage(text: str) -> Stage:
    """A stage from its short form."""
    name, _, fields = text.partition(":")
    return read_options(fields, stage_kind(name))
