"""The site: ``sphinx-build -W docs docs/_build`` (``scripts/test --docs``)."""

from st_reba.version import __version__

project = "st_reba"
author = "the st_reba authors"
copyright = author
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"st_reba {release}"
exclude_patterns = ["_build"]
nitpicky = False
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autosummary_generate = True
napoleon_numpy_docstring = False
