"""A module whose weights were fitted, and are not trained."""

from __future__ import annotations

from typing import Any, Self

from sentence_transformers.base.modules import Module

# The arguments that say where a module's files are.
_SOURCE = ("subfolder", "token", "cache_folder", "revision", "local_files_only")


class FittedModule(Module):
    """Loads and saves a configuration, and the weights whose sizes it gives."""

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        """Load the module; an error where its weights are missing."""
        module = super().load(model_name_or_path, *args, **kwargs)
        source = {name: value for name, value in kwargs.items() if name in _SOURCE}
        cls.load_torch_weights(model_name_or_path, *args, model=module, **source)  # type: ignore[misc]
        return module

    def save(
        self,
        output_path: str,
        *args: object,
        safe_serialization: bool = True,
        **kwargs: object,
    ) -> None:
        """Save the configuration and the weights."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
