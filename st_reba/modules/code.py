"""The code that travels with a model, in one file: the sections of this package that its modules need."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from . import MODULES, module_of_section, section_names
from .authors import AuthorsCapture
from .extensions import extensions
from .layout import reverses_text
from .masks import MASKS
from .nosink import NoSinkTransformer
from .transformer import RepeatTransformer
from .version import __version__


def _reads(
    transformer: RepeatTransformer,
    source: str,
) -> bool:
    return transformer.reading is not None and transformer.reading["of"] == source


def _computes_attention(transformer: RepeatTransformer) -> bool:
    text_config = transformer.config.get_text_config()
    has_soft_cap = getattr(text_config, "attn_logit_softcapping", None) is not None
    return (
        has_soft_cap
        or transformer.requested_rows is not None
        or isinstance(transformer, NoSinkTransformer)
    )


def _reverses_text(transformer: RepeatTransformer) -> bool:
    return any(
        reverses_text(template) for row in transformer.templates for template in row.values()
    )


def _captures_both_ways(transformer: RepeatTransformer) -> bool:
    if transformer.requested_rows is None:
        return False
    if isinstance(transformer, NoSinkTransformer):
        mask_names = transformer.mask_names()
        if not all(MASKS[mask_name].is_causal for mask_name in mask_names):
            return True
    return not transformer.causal or isinstance(transformer.requested_rows, AuthorsCapture)


def _is_imported(transformer: RepeatTransformer) -> bool:
    """By sections that are needed, or it has a class of the pipeline: no option needs it by itself."""
    return False


# In the order in which a reader meets them: each section, and whether the options of a transformer
# need it. One that is not listed stands last.
SECTIONS: dict[str, Callable[[RepeatTransformer], bool]] = {
    "layout": _is_imported,
    "extensions": _is_imported,
    "passes": _is_imported,
    "transformer": _is_imported,
    "layers": _is_imported,
    "reader": lambda transformer: _reads(transformer, "states"),
    "outputs": lambda transformer: _reads(transformer, "attention"),
    "shared_prefix": lambda transformer: transformer.shares_prefix,
    "questions": lambda transformer: transformer.shares_prefix and transformer.rows > 1,
    "templates": lambda transformer: transformer.template is not None,
    "reversal": _reverses_text,
    "attention": _computes_attention,
    "blocks": lambda transformer: (
        _computes_attention(transformer) and _has_terms(transformer.model)
    ),
    "masks": _is_imported,
    "nosink": _is_imported,
    "second": lambda transformer: bool(getattr(transformer, "second", None)),
    "capture": _is_imported,
    "both_ways": _captures_both_ways,
    "pooling": _is_imported,
    "authors": _is_imported,
    "pieces": _is_imported,
    "ensemble": _is_imported,
    "fitted": _is_imported,
    "shift": _is_imported,
    "token_part": _is_imported,
}
_EXAMPLE = re.compile(r"\n    Example:\n(?:        .*\n)+")
# The parameters of a function, a line each.
_PARAMETERS = re.compile(r"^( *def \w+\()\n((?: +[^\n#]+,\n)+) *(\).*)$", re.MULTILINE)
# Arguments of a model's own attention that SDPA does not take.
_SCORE_TERMS = ("softcap", "s_aux", "position_bias")


def code_of(pipeline: Iterable[nn.Module]) -> str:
    """The file ``st_reba.py`` of a repository, for all modules of its pipeline."""
    needed_sections = {"transformer"}
    for module in pipeline:
        class_name = type(module).__name__
        if class_name in MODULES:
            needed_sections.add(MODULES[class_name].section)
        if isinstance(module, RepeatTransformer):
            needed_sections.update(name for name in SECTIONS if SECTIONS[name](module))
        if isinstance(module, NoSinkTransformer):
            needed_sections.update(_sections_of_masks(module))
    needed_sections = with_imports(needed_sections)
    ordered_sections = [name for name in SECTIONS if name in needed_sections]
    other_sections = needed_sections.difference(SECTIONS)
    return join_sections([*ordered_sections, *sorted(other_sections)])


def _sections_of_masks(transformer: NoSinkTransformer) -> set[str]:
    """The modules that declare the masks of a transformer."""
    declaring_sections: set[str] = set()
    for mask_name in transformer.mask_names():
        module_name = MASKS[mask_name].visible_tokens.__module__
        declaring_sections.add(section_of(module_name) or module_name)
    return declaring_sections


def with_imports(sections: Collection[str]) -> set[str]:
    """Sections, and those that they import."""
    complete: set[str] = set()
    pending = list(sections)
    while pending:
        section = pending.pop()
        if section not in complete:
            complete.add(section)
            pending += SectionSource(section).imported_sections()
    return complete


def section_of(module_name: str) -> str | None:
    """The section that Python imports under a name; None: another package's module.

    Example:
        >>> section_of("st_reba.modules.pooling"), section_of("torch")
        ('pooling', None)
    """
    package, _, section = module_name.rpartition(".")
    if package == "st_reba.modules" and section in section_names():
        return section
    return None


def imported_section(statement: ast.stmt) -> str | None:
    """The section that an import statement names; None: it imports something else."""
    if not isinstance(statement, ast.ImportFrom):
        return None
    if statement.level:
        return statement.module
    return section_of(str(statement.module))


class SectionSource:
    """The source of a section, in parts: its docstring, its imports, and the rest."""

    def __init__(self, section: str) -> None:
        module_spec = find_spec(module_of_section(section))
        if module_spec is None or module_spec.origin is None:
            raise ValueError(
                f"The source of {section!r}, which the model needs, is not there. Put it on Python's path."
            )
        text = Path(module_spec.origin).read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.section = section
        self.docstring = str(ast.get_docstring(tree)).splitlines()
        self.imports: list[ast.stmt] = []
        header_end = 0
        for statement in tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imports.append(statement)
            elif not _is_for_types(statement):
                continue  # imports for types alone stand behind the others, and do not travel
            header_end = statement.end_lineno or 0
        body = "\n".join(text.splitlines()[header_end:])
        # Examples build with the package, which a repository does not need.
        self.body = _EXAMPLE.sub("", body.strip())

    def imported_sections(self) -> list[str]:
        """The sections that this one imports."""
        imported = map(imported_section, self.imports)
        return [section for section in imported if section is not None]

    def text(self) -> str:
        """The section as it stands in the file: its docstring as comments, without its imports."""
        comments = [f"# {line}".rstrip() for line in (self.section, *self.docstring)]
        body = self.body.replace("\n\n\n", "\n\n")
        body = _PARAMETERS.sub(_fold_parameters, body)
        return "\n".join([*comments, "", body])


def _fold_parameters(match: re.Match[str]) -> str:
    """A function's head on one line, or its parameters on lines of their own where that is too long."""
    parameters = " ".join(match[2].split()).removesuffix(",")
    line = match[1] + parameters + match[3]
    if len(line) <= 120:
        return line
    indent = match[1].partition("def")[0]
    folded = textwrap.fill(
        parameters, 120, initial_indent=indent + "    ", subsequent_indent=indent + "    "
    )
    return f"{match[1]}\n{folded}\n{indent}{match[3]}"


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def join_sections(sections: Sequence[str]) -> str:
    """Sections as one file."""
    sources = list(map(SectionSource, sections))
    heading = f"The code of this model, joined from sections of st_reba {__version__}, as Python needs them:"
    contents: list[str] = []
    import_statements: list[ast.stmt] = []
    section_texts: list[str] = []
    for source in sources:
        contents.append(f"- {source.section}: {source.docstring[0]}")
        import_statements += source.imports
        section_texts.append(source.text())
    header_lines = [
        f'"""{heading}',
        "",
        *contents,
        '"""',
        "",
        "from __future__ import annotations",
        "",
    ]
    header = "\n".join(header_lines + merged_imports(import_statements))
    return header + "\n\n" + "\n\n\n".join(section_texts) + "\n"


def merged_imports(statements: Iterable[ast.stmt]) -> list[str]:
    """The imports from other packages, each once, a line a module."""
    plain_imports: set[str] = set()
    names_by_module: dict[str, set[str]] = {}
    for statement in statements:
        if isinstance(statement, ast.Import):
            plain_imports.add(ast.unparse(statement))
        elif isinstance(statement, ast.ImportFrom) and imported_section(statement) is None:
            names = names_by_module.setdefault(str(statement.module), set())
            names.update(map(ast.unparse, statement.names))
    names_by_module.pop("__future__", None)
    import_lines = sorted(plain_imports)
    for module_name, names in sorted(names_by_module.items()):
        import_lines.append(f"from {module_name} import {', '.join(sorted(names))}")
    return import_lines


def _has_terms(model: nn.Module) -> bool:
    """Whether the code of a model's layers names a term of the scores that SDPA does not take."""
    module_names = {
        type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")
    }
    if not module_names:
        return True
    for module_name in module_names:
        try:
            source = inspect.getsource(sys.modules[module_name])
        except (KeyError, OSError):
            return True
        if any(term in source for term in _SCORE_TERMS):
            return True
    return False


@contextmanager
def stored_as(
    model: nn.Module,
    dtype: torch.dtype | None,
) -> Iterator[None]:
    """Give the weights the base's number type inside the ``with`` block, unless that would round them."""
    weights = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    dtypes = {weight.dtype for weight in weights}
    if (
        dtype is None
        or len(dtypes) != 1
        or not all(is_exact_as(weight, dtype) for weight in weights)
    ):
        yield
        return
    (loaded_dtype,) = dtypes
    try:
        for weight in weights:
            weight.data = weight.data.to(dtype)
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.to(loaded_dtype)


def is_exact_as(
    weight: torch.Tensor,
    dtype: torch.dtype,
) -> bool:
    """Whether a weight keeps its values in another number type."""
    if weight.dtype == dtype:
        return True
    # Piece by piece, as a whole weight would be copied twice.
    pieces = torch.split(weight.detach().flatten(), 1 << 22)
    return all(torch.equal(values.to(dtype).to(values.dtype), values) for values in pieces)


extensions.code_of = code_of
extensions.stored_as = stored_as
