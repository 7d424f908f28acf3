"""Makes plain ``SentenceTransformer(folder)`` find this plugin's classes, and exactly those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import wrapt

from .. import modules

_PREFIX = "st_reba."


class KnownClasses(Mapping[str, object]):
    """The module classes that sentence-transformers may load without trusting a repository's code: ours and others."""

    def __init__(self, other_classes: Mapping[str, object]) -> None:
        self.other_classes = other_classes

    def __getitem__(self, type_name: str) -> object:
        class_name = type_name.removeprefix(_PREFIX)
        if class_name != type_name and class_name in modules.MODULES:
            return getattr(modules, class_name)  # imported on first use
        return self.other_classes[type_name]

    def __iter__(self) -> Iterator[str]:
        yield from self.other_classes
        for class_name in modules.MODULES:
            yield _PREFIX + class_name

    def __len__(self) -> int:
        return len(self.other_classes) + len(modules.MODULES)


@wrapt.when_imported("sentence_transformers.base.model")
def _register(base_model: ModuleType) -> None:
    """Enter our classes, now or when sentence-transformers is imported, into the table that it consults first.

    It refuses others from outside its package unless remote code is trusted.
    """
    known_classes = getattr(base_model.BaseModel, "_module_classes", None)
    if not isinstance(known_classes, Mapping):
        raise RuntimeError(
            "This sentence-transformers has no table of classes: load with trust_remote_code=True."
        )
    if not isinstance(known_classes, KnownClasses):
        base_model.BaseModel._module_classes = KnownClasses(known_classes)
