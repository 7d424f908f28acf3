"""The model card, README.md of a saved model: one template, filled from the model, its method and its files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from ..bases import EMBEDDED
from ..methods import METHODS, OPTIONS, Method, method_of
from ..modules.masks import MASKS
from ..packaged import PACKAGED, PackagedBase
from ..poolings import POSITIONS
from .golden import FILE as GOLDEN
from .golden import open_fields, read_golden

FILE, SETTINGS = "README.md", "config_sentence_transformers.json"
TEMPLATE = Path(__file__).with_name("template.md")
# Name of the repository in the examples until `push` puts in its own.
PLACEHOLDER = "path/to/model"
_GGUF = re.compile(r"^(?:([\w.-]+/[\w.-]+)/)?(.+) \(GGUF.*\)$")
_HUB_ID = re.compile(r"^([\w.-]+/[\w.-]+)(/.*)?$")
# What a base's card says that holds without training as well.
_INHERITED = ("license", "license_name", "license_link", "language")
_NOTICES = {
    "llama2": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. All Rights "
    "Reserved.",
    "llama3": "Built with Meta Llama 3.",
    "llama3.1": "Built with Llama.",
    "llama3.2": "Built with Llama.",
    "gemma": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.",
}
_TRAINED = re.compile(r"^## Training(?: Details)?\n+(.*?)\n+(?=## |\Z)", re.MULTILINE | re.DOTALL)


def write_card(model: SentenceTransformer, folder: str | os.PathLike[str], **options: Any) -> None:
    """Write the README.md of a saved model; options as for :func:`st_reba.hub.save`."""
    text = render(TEMPLATE, values_of(model, folder, **options))
    Path(folder, FILE).write_text(text, encoding="utf-8", newline="\n")


def render(template: Path, values: Mapping[str, Any]) -> str:
    """Fill the template of a card; huggingface_hub checks that the result is one."""
    import jinja2
    from huggingface_hub import ModelCard

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = environment.from_string(template.read_text(encoding="utf-8")).render(values)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines()))
    return str(ModelCard(f"{text.strip()}\n").content)


def values_of(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    license: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Values of a card's template for a model of this package that was saved in a folder."""
    first: Any = model[0]
    place, method = Path(folder), method_of(model)
    facts = {**dict.fromkeys(("note", "measured", "scores")), **(about or {})}
    facts |= {"licence": license} if license else {}
    # A stranger's name may hold anything.
    recorded = " ".join(str(first.base_model or "a base without a name").replace("`", "'").split())
    base, found = recorded.rsplit("/", 1)[-1], _HUB_ID.match(recorded)
    hub_id = found[1] if found and recorded not in EMBEDDED else None
    packaged_base = _packaged_base(first)
    if packaged_base is not None:
        hub_id = packaged_base.hub_id
    masks, used = _masks(first)
    prompts = {key: prompt for key, prompt in model.prompts.items() if prompt}
    training = _training(model)
    metadata = _metadata(model, facts, hub_id)
    tags = ["sentence-transformers", "st-reba", *([method.name] if method else []), "feature-extraction"]
    shown = metadata | {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": tags}
    shown |= {"base_model": hub_id} if hub_id else {}
    relation = "finetune" if training else "quantized" if _quantization(first) else None
    shown |= {"base_model_relation": relation} if hub_id and relation else {}
    dense = [f"{each.in_features} to {each.out_features}" for each in model if isinstance(each, Dense)]
    shown["model_name"] = name or _name(base, method, [prompts, training, dense])
    config = first.model.config.get_text_config()
    return {
        "metadata": yaml.safe_dump(shown).strip(),
        "title": f"{base} with {method or 'a pipeline of its own'}",
        "repo": PLACEHOLDER,
        "base": f"[{recorded}](https://huggingface.co/{hub_id})" if hub_id else f"`{recorded}`",
        "embedded": recorded in EMBEDDED,
        "revision": first.base_revision,
        "method": method,
        "about_method": METHODS[method.name] if method else "",
        "formula": _formula(first, method),
        "recipe": _recipe(recorded, first.base_revision, method, prompts),
        "local": hub_id is None and recorded not in EMBEDDED,
        "options": {key: OPTIONS[key] for key in method.to_dict() if key in OPTIONS} if method else {},
        "dense": dense,
        "layers": f"{first.depth} of {type(first.model).__name__}",
        "masks": masks,
        "states": _states(first),
        "mask_words": {each: MASKS[each].description.format(m=first.m) for each in used},
        "quantization": _quantization(first),
        "dtype": str(getattr(first, "stored_dtype", None) or config.dtype or first.model.dtype).removeprefix("torch."),
        "parameters": first.model.num_parameters(),
        "dimension": model.get_embedding_dimension(),
        "normalized": any(isinstance(module, Normalize) for module in model),
        "modules": [type(module).__name__ for module in model],
        "prompts": prompts,
        "trusted": bool(getattr(first.model.config, "auto_map", None)),
        "hooked": first.requested_rows is not None and first.model.config._attn_implementation == "eager",
        "requirements": json.loads((place / SETTINGS).read_text(encoding="utf-8")).get("requirements", {}),
        "training": training,
        "facts": facts,
        "licence": metadata.get("license"),
        "notice": _NOTICES.get(str(metadata.get("license"))),
        "golden": read_golden(place / GOLDEN) if (place / GOLDEN).is_file() else None,
        "code": [
            (file.name, (code := file.read_bytes()).count(b"\n"), hashlib.sha256(code).hexdigest())
            for file in sorted(place.glob("st_reba*.py"))
        ],
        **_input(first, model),
    }


def _metadata(model: SentenceTransformer, facts: Mapping[str, Any], hub_id: str | None) -> dict[str, Any]:
    """Licence and language: as given, as sentence-transformers knows them, or as the card beside the base's weights."""
    from huggingface_hub import metadata_load, try_to_load_from_cache

    first: Any = model[0]
    place, known = str(getattr(first.model, "name_or_path", "")), model.model_card_data
    try:
        cached = None if os.path.isdir(place) else try_to_load_from_cache(place, FILE, revision=first.base_revision)
        found: Any = metadata_load(cached or Path(place, FILE))
        found = {key: found.get(key) for key in _INHERITED}
    except Exception:  # whatever a stranger's card holds, this model gets a card of its own
        found = {}
    packaged_base = _packaged_base(first)
    if packaged_base is not None:
        found = {"license": packaged_base.license, "language": list(packaged_base.language)}
    own = {"license": facts.get("licence") or known.license, "license_link": facts.get("licence_link")}
    own |= {"language": list(facts.get("language") or []) or known.language}
    found |= {key: value for key, value in own.items() if value}
    if found.get("license") == "other":  # of which the Hub asks for a name and a place
        found["license_name"] = found.get("license_name") or "as-base-model"
        found["license_link"] = found.get("license_link") or (hub_id and f"https://huggingface.co/{hub_id}")
    # Texts alone: a few lists of lists in a stranger's card can stand for gigabytes.
    lists = {key: value for key, value in found.items() if isinstance(value, list) and {*map(type, value)} == {str}}
    return {key: value for key, value in found.items() if isinstance(value, str) or key in lists}


def _packaged_base(transformer: Any) -> PackagedBase | None:
    gguf_name = _GGUF.match(str(transformer.base_model))
    return PACKAGED.get(gguf_name[2]) if gguf_name else None


def _training(model: SentenceTransformer) -> str | None:
    """How the model was trained: sentence-transformers' own section, of its trainer or of the model's earlier card."""
    if model.model_card_data.train_datasets or getattr(model.model_card_data, "trainer", None) is not None:
        from sentence_transformers.base.model_card import generate_model_card

        text = generate_model_card(model)
    else:
        text = model._model_card_text or ""
    found = _TRAINED.search(text)
    return found[1] if found else None


def _recipe(base: str, revision: str | None, method: Method | None, prompts: Mapping[str, str]) -> str:
    if method is None:
        return ""
    options = method.to_dict()
    if file := _GGUF.match(base):  # of a local file, its name alone
        base, options = file[1] or file[2], {**options, **({"gguf_file": file[2]} if file[1] else {})}
    values = {"base": base, "revision": revision, "method": options.pop("name"), **options, "prompts": dict(prompts)}
    given = {key: value for key, value in values.items() if value not in (None, {})}
    return str(yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=120))


def _states(first: Any) -> str:
    if first.reading is None:
        return "the hidden state"
    reading, lowest, highest = first.reading, first.reading["first"], first.reading["last"]
    if reading["of"] == "attention":
        return f"the mean of the attention outputs of layers {lowest} to {highest}"
    if lowest == highest:
        return f"the hidden state of layer {lowest}" + ("" if reading["final_norm"] else ", before the final norm,")
    joined = {"mean": "mean", "concat": "concatenation"}[reading["join"]]
    return f"the {joined} of the hidden states of layers {lowest} to {highest}, each divided by its length,"


def _formula(first: Any, method: Method | None) -> list[str]:
    if method is None:
        return []
    return method.pooling_spec.describe(method, POSITIONS[first.pooled])


def _masks(first: Any) -> tuple[str, list[str]]:
    """Masks of the layers, in runs, as ``1-4 forward``, with the layers that run twice; and their names."""
    masks, second = getattr(first, "layer_masks", None) or [], getattr(first, "second", None) or []
    runs, layer = [], 0
    for mask, same in groupby(masks):
        start, layer = layer + 1, layer + len(list(same))
        runs.append(f"{start}-{layer} {mask}" if layer > start else f"{start} {mask}")
    if second:
        listed = ", ".join(f"{layer + 1} {mask}" for layer, mask in second)
        runs.append(f"run again ({first.architecture}): {listed}")
    return "; ".join(runs), list(dict.fromkeys([*masks, *(mask for _, mask in second)]))


def _quantization(first: Any) -> str | None:
    if "GGUF" in str(first.base_model):
        return "dequantized from the base's GGUF file, whose rounding they keep"
    given: Any = getattr(first.model.config, "quantization_config", None) or {}
    given = given if isinstance(given, dict) else given.to_dict()
    bits = next((bits for bits in (4, 8) if given.get(f"load_in_{bits}bit", given.get(f"_load_in_{bits}bit"))), None)
    kind = f", {bits} bits ({given.get('bnb_4bit_quant_type', '') if bits == 4 else 'int8'})" if bits else ""
    return f"{given['quant_method']}{kind}" if given else None


def written_templates(first: Any) -> dict[str, list[str]]:
    """The templates of each task, as text with ``{names}`` where something is put in."""
    return {
        task: ["".join(text + (f"{{{name}}}" if name else "") for text, name in each[task]) for each in first.templates]
        for task in first.templates[0]
    }


def _input(first: Any, model: SentenceTransformer) -> dict[str, Any]:
    fields = {task: dict.fromkeys(open_fields(first, task), "…") for task in ("query", "document")}
    written = written_templates(first)
    return {
        "fields": fields,
        "templates": written,
        "plain": all(each == ["{text}" * first.copies] for each in written.values()),
        "copies": getattr(next((each for each in model if hasattr(each, "chunk")), None), "repeats", first.copies),
        "chunk": next((each.chunk for each in model if hasattr(each, "chunk")), None),
        "rows": first.rows,
        "positions": model.max_seq_length,
        "budget": first.budget(None, "document", **fields["document"]),
        "overhead": max(each.overhead for each in first.row_layouts(None, "document", **fields["document"])),
    }


def _name(base: str, method: Method | None, rest: list[Any]) -> str:
    """A name that differs where base, method or an option does: mteb keeps its results by it."""
    text = re.sub(r"[^\w.=]+", "-", f"{base}-{method or 'by-hand'}").strip("-")
    if len(text) <= 80 and not any(rest):
        return text
    whole = json.dumps([base, method.to_dict() if method else None, *rest], sort_keys=True, ensure_ascii=False)
    return f"{text[:73].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"
