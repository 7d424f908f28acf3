"""A module whose weights were fitted, and are not trained."""

from __future__ import annotations

from typing import Any, Self

from sentence_transformers.base.modules import Module


class FittedModule(Module):
    """Loads and saves a configuration and the weights that it tells the sizes of."""

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> Self:
        """Load the module; an error where its weights are missing."""
        source: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = cls.load_config(model_name_or_path, **source)
        module = cls(**config)
        cls.load_torch_weights(model_name_or_path, model=module, **source)
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
