"""How an input module is saved and loaded: with its code, and with its weights or the name of a base that has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer

from .vendoring import leave_code


class StoredTransformer(Transformer):
    """An ST Transformer whose saves carry this code, and which may take its weights from a base model.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        from_base: It holds no weights: take backbone and tokenizer from ``base_model`` at ``base_revision``.
        base_model: Name of the base model.
        base_revision: Its revision.
        **kwargs: All that sentence-transformers' own ``Transformer`` takes.
    """

    # Base and revision, while a save leaves the weights there.
    _left_at: tuple[str, str | None] | None = None

    def __init__(
        self,
        model_name_or_path: str,
        *,
        from_base: bool = False,
        base_model: str | None = None,
        base_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(from_base, bool):
            raise ValueError(f"from_base={from_base!r} must be True or False.")
        if not from_base:
            super().__init__(model_name_or_path, **kwargs)
            return
        if not isinstance(base_model, str) or not base_model:
            raise ValueError(f"from_base=True needs the name of a base model, not base_model={base_model!r}.")
        for name in ("model_kwargs", "processor_kwargs", "config_kwargs"):
            # These were to find the repository; the base has its own revision, and stands in its root.
            kwargs[name] = {**(kwargs.get(name) or {}), "revision": base_revision, "subfolder": ""}
        weights = kwargs["model_kwargs"]
        if "torch_dtype" in weights:
            # The older name comes from the caller, the newer one maybe from the file, which must not win.
            weights["dtype"] = weights.pop("torch_dtype")
        try:
            super().__init__(base_model, **kwargs)
        except OSError as error:
            pinned = f" at revision {base_revision!r}" if base_revision else ""
            raise OSError(
                f"{model_name_or_path!r} holds no weights but names those of {base_model!r}{pinned}, which could not "
                f"be loaded. Download that model first, or pass token=… where it asks for a login. {error}"
            ) from error

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module as ST does, and its code; inside :func:`left_at_base`, without weights and tokenizer."""
        if self._left_at is None:
            super().save(output_path, *args, **kwargs)
        else:
            self.model.config.save_pretrained(output_path)
            self.save_config(output_path)
        leave_code(output_path)

    def get_config_dict(self) -> dict[str, Any]:
        """The module's configuration, JSON-serializable."""
        config: dict[str, Any] = super().get_config_dict()
        if self._left_at is not None:
            base, revision = self._left_at
            # What a saved tokenizer and saved weights would tell.
            processing = {name: getattr(self.tokenizer, name) for name in ("model_max_length", "padding_side")}
            config.update(
                from_base=True,
                base_model=base,
                base_revision=revision,
                model_kwargs={"dtype": str(self.model.dtype).removeprefix("torch.")},
                processor_kwargs=processing,
            )
        return config


@contextmanager
def left_at_base(module: StoredTransformer, base: str, revision: str | None) -> Iterator[None]:
    """Inside the ``with`` block, saving ``module`` writes where its weights are, not the weights.

    Args:
        module: The module.
        base: Folder or Hub id of the base model, whose weights the module must hold unchanged.
        revision: Its revision.
    """
    module._left_at = (base, revision)
    try:
        yield
    finally:
        del module._left_at
