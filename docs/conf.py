"""The site: ``sphinx-build -W docs docs/_build`` (``scripts/test --docs``)."""

from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

from st_reba.modules.version import __version__

project = "st_reba"
author = "the st_reba authors"
copyright = author
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"st_reba {release}"
exclude_patterns = ["_build"]
nitpicky = False
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autosummary_generate = True
napoleon_numpy_docstring = False


def write_commands(app: object) -> None:
    """Write the page of the command line: the help of every command, as it is printed."""
    import typer
    from typer.testing import CliRunner

    from st_reba.cli import app as st_reba

    def pages(command: typer.core.TyperGroup, path: list[str]) -> list[str]:
        found = []
        for name, each in command.commands.items():
            own = [*path, name]
            shown = CliRunner().invoke(
                st_reba, [*own, "--help"], prog_name="st-reba", env={"TERMINAL_WIDTH": "88"}
            )
            text = "\n".join(line.rstrip() for line in shown.output.strip("\n").splitlines())
            found.append(f"## {' '.join(own)}\n\n```text\n{text}\n```\n")
            found += pages(each, own) if hasattr(each, "commands") else []
        return found

    text = "\n".join(
        [
            "# Command line\n",
            "What `st-reba COMMAND --help` prints.\n",
            *pages(typer.main.get_command(st_reba), []),
        ]
    )
    Path(__file__).with_name("reference").joinpath("commands.md").write_text(text, encoding="utf-8")


def write_formula(page: Any, node: Any) -> None:
    """A formula as MathML, which browsers draw by themselves: the site loads no script from elsewhere."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    page.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("builder-inited", write_commands)
