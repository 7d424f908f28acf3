"""How an input module is saved and loaded: with its code, and with its weights or the name of a base that has them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers.sentence_transformer.modules import Transformer

from .adapters import complete_adapter, has_adapter
from .limits import shown
from .vendoring import leave_code

# What a saved module may say to transformers; anything else there was not written by a save, and could name files,
# servers or code.
_PASSED_ON = {
    "model_kwargs": frozenset(("dtype", "torch_dtype", "attn_implementation")),
    "processor_kwargs": frozenset(("model_max_length", "padding_side", "truncation_side")),
    "config_kwargs": frozenset[str](),
}
_OLD_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
# Beside a module's own settings.
_TOP = frozenset(("from_base", "max_seq_length", "do_lower_case", *_PASSED_ON, *_OLD_NAMES))
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")
# A branch, tag or commit.
_REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")


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
            if has_adapter(self.model):
                complete_adapter(self.model, model_name_or_path, kwargs.get("model_kwargs") or {})
            return
        check_base(base_model, base_revision, here=os.path.isdir(model_name_or_path))
        assert isinstance(base_model, str)
        for name in ("model_kwargs", "processor_kwargs", "config_kwargs"):
            # These were to find the repository; the base has its own revision, and stands in its root.
            kwargs[name] = {**(kwargs.get(name) or {}), "revision": base_revision, "subfolder": ""}
        weights = kwargs["model_kwargs"]
        # Another's name in a file shall not make a pickle be opened.
        weights["use_safetensors"] = True
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

    @classmethod
    def load_config(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's configuration as it is stored.

        Raises:
            ValueError: It holds what no save writes, or names a base that may not be loaded.
        """
        config: dict[str, Any] = super().load_config(model_name_or_path, *args, **kwargs)
        cls.check_config(config, here=os.path.isdir(model_name_or_path))
        return config

    @classmethod
    def check_config(cls, config: Mapping[str, Any], *, here: bool) -> None:
        """Raise unless a stored configuration holds only what a save writes.

        Args:
            config: The configuration.
            here: Whether it stands in a folder of this machine.

        Raises:
            ValueError: An unknown setting, one that transformers is not to be told, or a base that is not allowed.
        """
        if unknown := sorted(set(config) - _TOP - set(cls.config_keys)):
            raise ValueError(
                f"{shown(unknown[0])}={shown(config[unknown[0]])} is no setting of {cls.__name__}. Save the model "
                "again, or update st_reba if a newer one wrote it."
            )
        for name in (*_PASSED_ON, *_OLD_NAMES):
            given, allowed = config.get(name, {}), _PASSED_ON[_OLD_NAMES.get(name, name)]
            if not isinstance(given, dict):
                raise ValueError(f"{name}={shown(given)} must be a mapping. Save the model again.")
            if unknown := sorted(set(given) - allowed):
                raise ValueError(
                    f"{name}: {shown(unknown[0])}={shown(given[unknown[0]])} may not come from a stored configuration, "
                    f"only {sorted(allowed) or 'nothing'}. Remove it there, and pass it when loading if it is needed."
                )
        attention = {**config.get("model_args", {}), **config.get("model_kwargs", {})}.get("attn_implementation")
        if attention is not None and (not isinstance(attention, str) or not attention.replace("_", "").isalnum()):
            # A name with a slash is downloaded and run.
            raise ValueError(
                f"attn_implementation={shown(attention)} is no kernel of transformers' own. Remove it, and pass it "
                "when loading if it is needed."
            )
        if config.get("from_base"):
            check_base(config.get("base_model"), config.get("base_revision"), here=here)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module as ST does, and its code; inside :func:`left_at_base`, without weights and tokenizer."""
        if self._left_at is None:
            super().save(output_path, *args, **kwargs)
            _forget_reader(Path(output_path) / "tokenizer_config.json")
        else:
            self.model.config.save_pretrained(output_path)
            self.save_config(output_path)
        leave_code(output_path)

    def get_config_dict(self) -> dict[str, Any]:
        """The module's configuration, JSON-serializable."""
        config: dict[str, Any] = super().get_config_dict()
        if has_adapter(self.model):
            # Saved alone, without the configuration that would tell it.
            config["model_kwargs"] = {"dtype": str(self.model.dtype).removeprefix("torch.")}
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


def check_base(base: object, revision: object, *, here: bool) -> None:
    """Raise unless weights may be taken from a base model that a stored configuration names.

    Args:
        base: Its Hub id, or, in a configuration that never left its machine, the full path of its folder.
        revision: Its branch, tag or commit, or None.
        here: Whether the configuration stands in a folder of this machine.

    Raises:
        ValueError: It is neither, or the folder holds no model.
    """
    if not isinstance(base, str) or not base:
        raise ValueError(f"from_base=True needs the name of a base model, not base_model={shown(base)}.")
    if revision is not None and (
        not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision or len(revision) > 250
    ):
        raise ValueError(f"base_revision={shown(revision)} is no branch, tag or commit. Correct it, or use null.")
    if _HUB_ID.fullmatch(base) and ".." not in base:
        return
    local = here and os.path.isabs(base) and ".." not in re.split(r"[\\/]", base)
    # A folder that is gone is for loading to tell; one that is there and no model was never saved from.
    if not (local and (os.path.isfile(os.path.join(base, "config.json")) or not os.path.lexists(base))):
        raise ValueError(
            f"base_model={shown(base)} is no Hub id such as 'organization/name'"
            + (", and no full path of a model's folder on this machine" if here else "")
            + ". Download that base model and save the embedder again with base=…."
        )


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


def _forget_reader(file: Path) -> None:
    """Drop from a saved tokenizer whether whoever loaded it was offline, which transformers keeps with its settings."""
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if settings.pop("local_files_only", None) is not None:
        text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
