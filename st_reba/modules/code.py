"""The code that travels with a model, in one file: the sections of this package that its modules need."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from . import MODULES
from .authors import AuthorsCapture
from .extensions import extensions
from .layout import reverses_text
from .masks import MASKS
from .nosink import NoSinkTransformer
from .transformer import RepeatTransformer
from .version import __version__


def _reads(transformer: RepeatTransformer, source: str) -> bool:
    return transformer.reading is not None and transformer.reading["of"] == source


def _computes_attention(transformer: RepeatTransformer) -> bool:
    text_config = transformer.config.get_text_config()
    has_soft_cap = getattr(text_config, "attn_logit_softcapping", None) is not None
    return (
        has_soft_cap
        or transformer.requested_capture is not None
        or isinstance(transformer, NoSinkTransformer)
    )


def _reverses_text(transformer: RepeatTransformer) -> bool:
    return any(
        reverses_text(template) for row in transformer.templates for template in row.values()
    )


def _captures_both_ways(transformer: RepeatTransformer) -> bool:
    if transformer.requested_capture is None:
        return False
    if isinstance(transformer, NoSinkTransformer):
        mask_names = transformer.mask_names()
        if not all(MASKS[mask_name].is_causal for mask_name in mask_names):
            return True
    return not transformer.causal or isinstance(transformer.requested_capture, AuthorsCapture)


# Sections that only some models need, and whether a transformer needs them.
OPTIONAL_SECTIONS: dict[str, Callable[[RepeatTransformer], bool]] = {
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
    "second": lambda transformer: bool(transformer.second),
    "both_ways": _captures_both_ways,
}
_EXAMPLE = re.compile(r"\n    Example:\n(?:        .*\n)+")
# The parameters of a function, one line each.
_PARAMETERS = re.compile(r"^( *def \w+\()\n((?: +[^\n#]+,\n)+) *(\).*)$", re.MULTILINE)
# Arguments of a model's own attention that SDPA does not take.
_SCORE_TERMS = ("softcap", "s_aux", "position_bias")


def code_of(pipeline: Iterable[nn.Module]) -> str:
    """The file ``st_reba.py`` of a repository, for all modules of its pipeline."""
    needed_sections = {MODULES["RepeatTransformer"].section}
    for module in pipeline:
        class_name = type(module).__name__
        if class_name in MODULES:
            needed_sections.add(MODULES[class_name].section)
        if isinstance(module, RepeatTransformer):
            for section, is_needed in OPTIONAL_SECTIONS.items():
                if is_needed(module):
                    needed_sections.add(f"{__package__}.{section}")
        if isinstance(module, NoSinkTransformer):
            for mask_name in module.mask_names():
                needed_sections.add(MASKS[mask_name].visible_tokens.__module__)
    return join_sections(with_imports(needed_sections))


def with_imports(sections: Iterable[str]) -> list[str]:
    """Sections and those that they import, each after the ones it needs."""
    imported_by_section: dict[str, list[str]] = {}
    pending = sorted(sections)
    while pending:
        section = pending.pop()
        if section not in imported_by_section:
            imported_by_section[section] = SectionSource(section).imported_sections()
            pending += imported_by_section[section]
    return list(TopologicalSorter(imported_by_section).static_order())


def imported_section(statement: ast.stmt) -> str | None:
    """The section that an import statement names; None: it imports something else."""
    if not isinstance(statement, ast.ImportFrom):
        return None
    if statement.level:
        return f"{__package__}.{statement.module}"
    if str(statement.module).startswith(f"{__package__}."):
        return statement.module
    return None


class SectionSource:
    """The source of a section, in parts: its docstring, its imports, and the rest."""

    def __init__(self, section: str) -> None:
        module_spec = find_spec(section)
        if module_spec is None or module_spec.origin is None:
            raise ValueError(
                f"The source of {section!r}, which the model needs, is not there. Put it on Python's path."
            )
        text = Path(module_spec.origin).read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.name = section.rpartition(".")[2]
        self.docstring = str(ast.get_docstring(tree)).splitlines()
        self.imports: list[ast.stmt] = []
        header_end = 0
        for statement in tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imports.append(statement)
            elif not _is_for_types(statement):
                continue  # imports for types only come after the others, and do not travel
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
        comments = [f"# {line}".rstrip() for line in (self.name, *self.docstring)]
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
        contents.append(f"- {source.name}: {source.docstring[0]}")
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
    """The imports from other packages, each once, one line per module."""
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


extensions.code_of = code_of
