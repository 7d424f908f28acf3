"""The code that travels with a model, in one file: the sections of this package that its modules need."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
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


def has_reversed_text(transformer: RepeatTransformer) -> bool:
    """Whether a template of a model has the text with its words reversed."""
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
    "questions": lambda transformer: transformer.shares_prefix and transformer.template_count > 1,
    "templates": lambda transformer: transformer.template is not None,
    "reversal": has_reversed_text,
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
_NO_BREAK_SPACE = "\u00a0"
# What letters mean in the shapes of tensors, in all sections alike.
_SHAPE_LETTERS = {
    "B": "rows of the batch",
    "T": "positions",
    "H": "heads",
    "G": "heads of the keys",
    "Q": "queries",
    "S": "keys",
    "R": "anchors, the rows of A^new that are kept",
    "D": "dimension of a head",
    "d": "dimension of the hidden states",
}
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


def with_imports(sections: Iterable[str]) -> list[SectionSource]:
    """Sections and those that they import, each after the ones it needs."""
    sources: dict[str, SectionSource] = {}
    pending = sorted(sections)
    while pending:
        section = pending.pop()
        if section not in sources:
            sources[section] = read_section(section)
            pending += sources[section].imported_sections()
    imported_by_section = {
        section: source.imported_sections() for section, source in sources.items()
    }
    return [sources[section] for section in TopologicalSorter(imported_by_section).static_order()]


def imported_section(statement: ast.stmt) -> str | None:
    """The section that an import statement names; None: it imports something else."""
    if not isinstance(statement, ast.ImportFrom):
        return None
    if statement.level:
        return f"{__package__}.{statement.module}"
    if str(statement.module).startswith(f"{__package__}."):
        return statement.module
    return None


def read_section(section: str) -> SectionSource:
    """Read a section from its file.

    Raises:
        ValueError: No file has it.
    """
    module_spec = None
    if section != "__main__":  # a notebook, or a program with statements of its own
        module_spec = find_spec(section)
    if module_spec is None or module_spec.origin is None:
        raise ValueError(
            f"A saved model carries the source of what it needs, but {section!r} cannot be imported as a file. "
            "Put what it declares into a .py file of its own on Python's path, and import that."
        )
    return _parse_section(section, Path(module_spec.origin).read_text(encoding="utf-8"))


class SectionSource:
    """The source of a section, in parts: its docstring, its imports, and the rest."""

    def __init__(self, section: str, text: str) -> None:
        tree = ast.parse(text)
        self.name = section.rpartition(".")[2]
        self.docstring = str(ast.get_docstring(tree)).splitlines()
        self.imports: list[ast.stmt] = []
        self.hooks: list[str] = []  # the classes whose objects take part in a pass
        header_end = 0
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef) and _is_hook(statement):
                self.hooks.append(statement.name)
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


@lru_cache(maxsize=100)
def _parse_section(section: str, text: str) -> SectionSource:
    return SectionSource(section, text)  # by its text: the file may change between two saves


def _fold_parameters(match: re.Match[str]) -> str:
    """A function's head on one line, or its parameters on lines of their own where that is too long."""
    parameters = [line.strip().replace(" ", _NO_BREAK_SPACE) for line in match[2].splitlines()]
    folded = " ".join(parameters).removesuffix(",")
    if len(match[1] + folded + match[3]) > 120:
        indent = match[1].partition("def")[0]
        margin = indent + "    "
        folded = _fill(folded, margin, margin)
        folded = f"\n{folded}\n{indent}"
    return match[1] + folded.replace(_NO_BREAK_SPACE, " ") + match[3]


def _fill(text: str, first_indent: str, indent: str) -> str:
    return textwrap.fill(
        text,
        120,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _is_hook(statement: ast.ClassDef) -> bool:
    methods = {part.name for part in statement.body if isinstance(part, ast.FunctionDef)}
    return {"before_layers", "after_layers"} <= methods


def join_sections(sources: Sequence[SectionSource]) -> str:
    """Sections as one file."""
    import_statements: list[ast.stmt] = []
    for source in sources:
        import_statements += source.imports
    body = "\n\n\n".join(source.text() for source in sources) + "\n"
    header_lines = [
        f'"""{_describe_file(sources, body)}\n"""',
        "",
        "from __future__ import annotations",
        "",
        *merged_imports(import_statements, _used_names(body)),
    ]
    return "\n".join(header_lines) + "\n\n" + body


@lru_cache(maxsize=10)
def _used_names(code: str) -> frozenset[str]:
    """The names that code uses; not those that it imports only for types, which do not travel."""
    return frozenset(node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))


def _describe_file(sources: Sequence[SectionSource], body: str) -> str:
    """The docstring of a file: its sections, how it makes a vector, and what its text takes for granted."""
    names = [source.name for source in sources]
    run = "`_run`, which calls `run_pass`"
    if "shared_prefix" in names:
        run += " (by way of `run_shared`, where rows share a prefix)"
    layers = "the decoder"
    if "attention" in names:
        layers += ", whose layers call `attention` once `install_attention` has run"
    hooks = [hook for source in sources for hook in source.hooks]
    if hooks:
        layers = (
            f"`before_layers` of each hook ({', '.join(hooks)}); {layers}; `after_layers` of each"
        )
    letters = [
        f"{letter} {meaning}"
        for letter, meaning in _SHAPE_LETTERS.items()
        if re.search(rf"\[[^][\n]*\b{letter}\b[^][\n]*\]", body)
    ]
    paragraphs = [
        f"Sections: {', '.join(names)}.",
        f"How a vector is made: in RepeatTransformer, `preprocess` makes token ids; `forward` calls {run}: {layers}. "
        "The other modules of modules.json follow.",
        f"Shapes of tensors: {'; '.join(letters)}.",
        "Not in this file: types that only annotations name, and those parts of `extensions` that no section sets.",
    ]
    notes = [_fill(paragraph, "- ", "  ") for paragraph in paragraphs]
    heading = f"The code of this model: sections of st_reba {__version__}, in the order in which Python needs them."
    return "\n".join([heading, "", *notes])


def merged_imports(statements: Iterable[ast.stmt], used_names: Set[str]) -> list[str]:
    """The imports of ``used_names`` from other packages, each once, one line per module."""
    plain_imports: set[str] = set()
    names_by_module: dict[str, set[str]] = {}
    for statement in statements:
        if isinstance(statement, ast.Import):
            plain_imports.add(ast.unparse(statement))
        elif isinstance(statement, ast.ImportFrom) and imported_section(statement) is None:
            names = names_by_module.setdefault(str(statement.module), set())
            for alias in statement.names:
                if (alias.asname or alias.name) in used_names:
                    names.add(ast.unparse(alias))
    names_by_module.pop("__future__", None)
    import_lines = sorted(plain_imports)
    for module_name, names in sorted(names_by_module.items()):
        if names:
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
