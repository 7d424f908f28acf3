"""What a model card says of training: from what sentence-transformers' trainer left in the model, or a card kept."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from sentence_transformers import SentenceTransformer

HEADING = "## Training"
_KEPT = re.compile(rf"^{HEADING}\n\n(.*?)\n+(?=## |\Z)", re.MULTILINE | re.DOTALL)


def training_of(model: SentenceTransformer) -> str | None:
    """The text under a card's heading "Training".

    Args:
        model: A model that was trained in this process, or loaded with the card that a save of it got.

    Returns:
        Data, loss and settings; None: nothing tells that the model was trained.
    """
    data: Any = getattr(model, "model_card_data", None)
    if not getattr(data, "train_datasets", None):
        kept = _KEPT.search(getattr(model, "_model_card_text", None) or "")
        return None if kept is None else kept[1].rstrip()
    lines = [
        "The weights were fine-tuned with sentence-transformers' trainer.",
        "",
        "| data | rows | columns | loss |",
        "|---|---|---|---|",
    ]
    for each in data.train_datasets:
        columns = ", ".join(re.sub(r"</?code>", "", str(column)) for column in each.get("columns") or ())
        row = (_name(each), each.get("size") or "not known", columns, _loss(each.get("loss") or {}))
        lines.append("| " + " | ".join(_cell(value) for value in row) + " |")
    settings = _settings(getattr(data, "non_default_hyperparameters", None) or {})
    if settings:
        lines += ["", f"Settings other than its own: {settings}."]
    return "\n".join(lines)


def datasets_of(model: SentenceTransformer) -> tuple[str, ...]:
    """The Hub ids of the data that a model was trained on in this process."""
    data: Any = getattr(model, "model_card_data", None)
    ids = (each.get("id") for each in getattr(data, "train_datasets", None) or ())
    return tuple(dict.fromkeys(str(each) for each in ids if each))


def _name(dataset: Mapping[str, Any]) -> str:
    name = dataset.get("id") or dataset.get("name")
    revision = f" at {dataset['revision']}" if dataset.get("revision") else ""
    return f"{name}{revision}" if name else "not named"


def _loss(loss: Mapping[str, Any]) -> str:
    name = str(loss.get("fullname") or "not known").rsplit(".", 1)[-1]
    found = re.search(r"{.*}", str(loss.get("config_code") or ""), re.DOTALL)
    try:
        given = json.loads(found[0]) if found else {}
    except ValueError:
        given = {}
    shown = ", ".join(f"{key}={value}" for key, value in given.items() if value is not None)
    return f"{name}({shown})"


def _settings(given: Mapping[str, Any]) -> str:
    """Those that change a training and say nothing of the machine."""
    kept = {
        key: value
        for key, value in given.items()
        if isinstance(value, (bool, int, float, str)) and not os.path.isabs(str(value)) and "\n" not in str(value)
    }
    return ", ".join(f"`{key}={value}`" for key, value in sorted(kept.items()))


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", r"\|").split())
