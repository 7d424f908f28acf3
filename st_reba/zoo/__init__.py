"""The model zoo: one recipe a published model, and what reads and builds them.

Scores are those that the papers print. Names on the Hub, licences and statuses were written down without downloading
anything: publishing a model confirms them, and pins the commit of its base.

>>> import st_reba.zoo
>>> model = st_reba.zoo.build("mini-reba")
>>> model.encode("你好").shape
(192,)
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from ..build import build as build_model
from ..recipe import PAPERS, STATUSES, About, Score, is_recipe, located, read_recipe

__all__ = ["PAPERS", "STATUSES", "About", "Recipe", "Score", "build", "load", "names"]

_RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A model that can be built.

    Args:
        name: The file's, without its ending: what the model is published as.
        path: The file.
        arguments: Of :func:`st_reba.build`.
        about: Facts of the model; for a recipe without them, those by default.
    """

    name: str
    path: Path
    arguments: dict[str, Any]
    about: About

    def build(self, **overrides: Any) -> SentenceTransformer:
        """Build the model.

        Args:
            **overrides: Arguments of :func:`st_reba.build` in place of the recipe's, or beside them.

        Returns:
            The model.

        Raises:
            ValueError: The base cannot be loaded as it is, or layers are to be tuned: see :meth:`check`.
        """
        self.check(**overrides)
        return build_model(**{**located(self.arguments, self.path), **overrides})

    def check(self, **overrides: Any) -> None:
        """Whether :meth:`build` would begin; arguments as there.

        Raises:
            ValueError: The base needs code of its own that is not allowed, or that does not run; or layers are to be
                tuned and not given. The message says what to do.
        """
        arguments, about = {**self.arguments, **overrides}, self.about
        if about.status == "old-transformers":
            raise ValueError(f"recipe {self.name!r} cannot be built (old-transformers): {about.note}")
        if about.status == "remote-code" and arguments.get("trust_remote_code") is not True:
            raise ValueError(
                f"recipe {self.name!r} needs code from its base's repository (remote-code): {about.note} If you trust "
                f"{arguments['base']!r}, give trust_remote_code=True (--trust-remote-code)."
            )
        if about.status == "tune" and not any(overrides.get(name) is not None for name in ("k", "k0", "layers")):
            raise ValueError(
                f"recipe {self.name!r} is to be tuned: {about.note} Run: st-reba tune {arguments['base']} FILE OUT, "
                "and build OUT/recipe.yaml; or give the numbers of layers, k=… and k0=… (--k, --k0)."
            )

    def to_json(self) -> dict[str, Any]:
        """All of it, JSON-serializable."""
        about = asdict(self.about)
        about |= {name: list(about[name]) for name in ("language", "scores", "measured")}
        return {"name": self.name, "arguments": dict(self.arguments), "about": about}


def names() -> list[str]:
    """The names of the zoo's recipes, in alphabetical order.

    Example:
        >>> [name for name in names() if name.startswith("mini-")]
        ['mini-classical', 'mini-echo', 'mini-nosink', 'mini-quality', 'mini-reba', 'mini-speed']
    """
    return sorted(path.stem for path in _RECIPES.glob("*.yaml"))


def load(name_or_path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: One of :func:`names`, or a YAML file, as ``st-reba tune`` writes it.

    Returns:
        The recipe.

    Raises:
        ValueError: There is none, or it breaks the format; the message names the file, the key and what is allowed.

    Example:
        >>> recipe = load("mini-echo")
        >>> recipe.arguments["method"], recipe.about.status
        ('echo', 'ready')
    """
    given = os.fspath(name_or_path)
    if is_recipe(given):
        path = Path(given)
    elif given in names():
        path = _RECIPES / f"{given}.yaml"
    else:
        near = get_close_matches(given, names(), n=3, cutoff=0.3)
        raise ValueError(
            f"recipe {given!r} is not known: it is no YAML file that is there and no name of the zoo"
            f"{f' (near: {near})' if near else ''}. All names: st-reba zoo list."
        )
    arguments, about = read_recipe(path, build_model)
    return Recipe(path.stem, path, arguments, about)


def build(name_or_path: str | os.PathLike[str], **overrides: Any) -> SentenceTransformer:
    """Build a model of the zoo.

    Args:
        name_or_path: As for :func:`load`.
        **overrides: As for :meth:`Recipe.build`.

    Raises:
        ValueError: As there.

    Example:
        >>> build("mini-echo", pooling="mean").encode("你好").shape
        (192,)
    """
    return load(name_or_path).build(**overrides)
