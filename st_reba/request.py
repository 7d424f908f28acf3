"""What a call to `build` asks for: arguments, recipe and defaults as one value. Read without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .filter_options import check_filter_name
from .methods import DEFAULT_METHOD, OPTIONS, Method, MutableOptions, Options
from .recipe import find_recipe

# A folder, a Hub id or a GGUF file; or a loaded model of transformers.
Base: TypeAlias = str | os.PathLike[str] | Any


@dataclass(frozen=True)
class BuildRequest:
    """A base, the method, and how the base is loaded.

    Args:
        base: The name of a base, never of a recipe; or a loaded model.
        method: The method, all its options set.
        loading: Options of `build` that do not belong to the method.
        is_default_method: The caller named neither a method nor what to read from the layers.
    """

    base: Base
    method: Method
    loading: Options
    is_default_method: bool

    @classmethod
    def read(cls, base: Base, method: str | Method | None, options: Options) -> BuildRequest:
        """Read the arguments of `build`; most of its errors are raised here, before torch is imported."""
        method_options, loading_options = split_options(options)
        is_default_method = method is None and "read" not in method_options
        # A zoo recipe that lacks k may still be built by another method: see Recipe.check_status.
        given_options = options if method is None else {**options, "method": method}
        base_recipe = find_recipe(base, given_options)
        if base_recipe is not None:
            base = base_recipe.base
            loading_options = {**base_recipe.loading, **loading_options}
            if method in (None, base_recipe.method["name"]):
                method_options = {**base_recipe.method, **method_options}
                method = method_options.pop("name")
        _check_prompts(loading_options.get("prompts"))
        if isinstance(method, Method):
            method = replace(method, **method_options)
        else:
            method = Method.parse(method or DEFAULT_METHOD, **method_options)
        check_filter_name(method.filter)
        return cls(base, method, loading_options, is_default_method)


def split_options(options: Options) -> tuple[MutableOptions, MutableOptions]:
    """The options of the method, and those of loading."""
    method_options = {name: value for name, value in options.items() if name in OPTIONS}
    loading_options = {name: value for name, value in options.items() if name not in OPTIONS}
    return method_options, loading_options


def _check_prompts(prompts: object) -> None:
    if prompts is None:
        return
    if isinstance(prompts, Mapping) and all(
        isinstance(text, str) for text in (*prompts, *prompts.values())
    ):
        return
    raise ValueError(
        f"prompts={prompts!r:.80} must map names to texts, such as {{'query': 'Query: '}}."
    )
