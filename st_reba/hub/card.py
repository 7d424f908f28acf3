"""The model card, README.md of a saved model: one template over the model's own spec, files and golden vectors."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from ..bases import EMBEDDED
from ..files import whole_file
from ..modules import ReBA
from ..modules.decoder import has_adapter
from ..modules.poolings import POOLINGS
from ..modules.stages import Stage
from ..recipe import About
from ..spec import Spec, spec_of
from .golden import FILE as GOLDEN
from .golden import read_golden

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

FILE = "README.md"
TEMPLATE = Path(__file__).parent / "template.md"
# What the examples load while the repository has no name; `with_repo_id` puts the name in.
PLACEHOLDER = "path/to/model"
_TAG = "st-reba"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_QUERY_NAMES, _DOCUMENT_NAMES = ("query",), ("document", "passage", "corpus")
# What a base's own card says that holds for a model without training as well.
_INHERITED = ("license", "license_name", "license_link", "language", "base_model")
_MOST_CHARACTERS = 1 << 20
_NOTICES = {
    "llama2": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. All Rights "
    "Reserved.",
    "llama3": "Built with Meta Llama 3.",
    "llama3.1": "Built with Llama.",
    "llama3.2": "Built with Llama.",
    "gemma": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.",
}


def card_of(
    model: SentenceTransformer,
    folder: str | os.PathLike[str] | None = None,
    *,
    about: About | None = None,
    name: str | None = None,
    repo_id: str | None = None,
    results: Sequence[EvalResult] = (),
) -> str:
    """The text of a model's card; the same model gives the same text.

    Args:
        model: A model of this package.
        folder: Where it was saved: its golden vectors and the code that it carries are told; None: nowhere.
        about: What a recipe says of it; None: what the card that it was loaded with says, if it is that model still.
        name: What to call it in the metadata; None: its base and its short form.
        repo_id: ``ORG/NAME`` of the repository; None: a placeholder, which :func:`with_repo_id` fills.
        results: Scores that were measured with this model.

    Raises:
        ValueError: It is no model of this package.

    Example:
        >>> import st_reba
        >>> card = card_of(st_reba.build("mini", "echo", pooling="mean"))
        >>> [line for line in card.splitlines() if line.startswith("# ")]
        ['# mini with Echo (mean)']
    """
    text = render(TEMPLATE, values_of(model, folder, about=about, name=name, results=results))
    return text if repo_id is None else with_repo_id(text, repo_id)


def write_card(model: SentenceTransformer, folder: str | os.PathLike[str], **options: Any) -> None:
    """Write the README.md of a saved model; arguments as for :func:`card_of`."""
    text = card_of(model, folder, **options)
    with whole_file(Path(folder) / FILE) as stream:
        stream.write(text.encode("utf-8"))


def with_repo_id(card: str, repo_id: str) -> str:
    """A card whose examples name the repository, where it had no name yet."""
    return card.replace(PLACEHOLDER, repo_id)


def render(template: Path, values: Mapping[str, Any]) -> str:
    """Fill a template of a card; the result is checked by huggingface_hub to be one."""
    import jinja2
    from huggingface_hub import ModelCard

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = environment.from_string(template.read_text(encoding="utf-8")).render(values)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines()))
    return str(ModelCard(text.rstrip() + "\n").content)


def values_of(
    model: SentenceTransformer,
    folder: str | os.PathLike[str] | None = None,
    *,
    about: About | None = None,
    name: str | None = None,
    results: Sequence[EvalResult] = (),
    tags: Sequence[str] = (),
) -> dict[str, Any]:
    """What a card's template is filled with; arguments as for :func:`card_of`.

    Args:
        model: The model.
        folder: Where it was saved.
        about: What a recipe says of it.
        name: Its name for the metadata.
        results: Scores that were measured with it.
        tags: For the Hub, beside those of every model.
    """
    spec, first = spec_of(model), cast(Any, model[0])
    place = None if folder is None else Path(folder)
    base, revision, from_base = _base(first, place)
    prompts = {key: prompt for key, prompt in model.prompts.items() if prompt}
    pinned = {"revision": revision} if revision else {}
    given = {"base": base, **pinned, **spec.to_dict(), **({"prompts": prompts} if prompts else {})}
    recipe = yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=120)
    trained = _training(model)
    earlier = _Earlier(model, recipe, trained is not None or about is not None)
    about = about or About()
    sections = {**earlier.sections, **_sections(about, results)} | ({"Training": trained} if trained else {})
    inherited = {**_metadata_beside(first), **earlier.inherited}
    licence = {"license": about.licence, "license_link": about.licence_link} if about.licence else inherited
    fine_tuned, adapter = "Training" in sections, has_adapter(first.model)
    quantized = getattr(first.model, "hf_quantizer", None) is not None
    data = _metadata(
        base=base if "/" in base else inherited.get("base_model"),
        licence=licence,
        language=list(about.language) or inherited.get("language"),
        name=name or earlier.name or _slug(base, spec, [prompts, sections.get("Training")]),
        tags=[*tags, *dict.fromkeys((spec.name, spec.method.name, *(stage.name for stage in spec.stages)))],
        # The Hub's relations each say that weights were changed: without training none is.
        relation="adapter" if adapter else "finetune" if fine_tuned else "quantized" if quantized else None,
        datasets=_datasets(model),
        results=list(results) or earlier.results,
    )
    parts = [part for part in (spec.method, *spec.stages) if part.name != "by-hand"]
    return {
        **_input(model, spec.method, prompts),
        "metadata": data,
        "title": _title(base, parts),
        "repo": PLACEHOLDER,
        "base": _linked(base),
        "base_revision": revision,
        "from_base": from_base,
        "spec": spec,
        "method": spec.method,
        "pooling": getattr(spec.method, "pooling", None),
        "chunk": getattr(spec.method, "chunk", None),
        "formula": POOLINGS[spec.method.pooling].formula if isinstance(spec.method, ReBA) else None,
        "parts": [_part(part) for part in parts],
        "recipe": recipe,
        "sections": sections,
        "licence_text": _licence(_linked(base), licence.get("license"), licence.get("license_link")),
        "normalized": any(isinstance(module, Normalize) for module in model),
        "dimension": model.get_embedding_dimension(),
        "modules": [type(module).__name__ for module in model],
        "architecture": type(first.model).__name__,
        "parameters": first.model.num_parameters(),
        "depth": first.depth,
        "runs": first.runs,
        "stack": first.stack,
        "passes": len(first.stack.calls) if first.stack else first.runs,
        "kinds": _kinds(first.stack),
        "dtype": _dtype(first, place),
        "adapter": adapter,
        "quantized": quantized,
        "fine_tuned": fine_tuned,
        "trusted": bool(getattr(first.model.config, "auto_map", None)),
        "golden": _golden(place),
        "code": _code(place),
        "chinese": "zh" in (data.language or ()),
    }


def _input(model: SentenceTransformer, method: Any, prompts: Mapping[str, str]) -> dict[str, Any]:
    """How texts are laid out, and what a call needs."""
    first = cast(Any, model[0])
    if not hasattr(first, "token_layout"):
        # A sentence-transformers model that keeps its own input.
        none: dict[str, Any] = {"query": {}, "document": {}}
        return {"layouts": None, "copies": 1, "fields": none, "prompts": prompts, "positions": model.max_seq_length} | {
            "overhead": None,
            "budget": model.max_seq_length,
            "calls": _calls(prompts, none, two=False),
        }
    templates = first.token_layout.templates
    layouts = {task: [_written(each[task]) for each in templates] for task in ("query", "document")}
    given = {
        task: {n: "…" for n in sorted(first.fields(task)) if not (n == "instruction" and first.layout.instruction)}
        for task in layouts
    }
    frames = first.frames(None, "document", **given["document"])
    copies = first.repeats if getattr(method, "chunk", None) is None else method.repeats or 2
    return {
        "layouts": layouts,
        "plain": layouts["document"] == layouts["query"] == ["{text}" * first.repeats],
        "copies": copies,
        "span": first.layout.span,
        "rows": first.rows,
        "fields": given,
        "prompts": prompts,
        "positions": first.token_layout.limit(),
        "overhead": max(frame.overhead for frame in frames),
        "budget": first.budget(None, "document", **given["document"]),
        "calls": _calls(prompts, given, two=layouts["query"] != layouts["document"]),
    }


def _calls(prompts: Mapping[str, str], given: Mapping[str, Mapping[str, str]], *, two: bool) -> dict[str, Any]:
    """Arguments with which plain ``encode`` does what ``encode_document`` and ``encode_query`` do."""
    found: dict[str, Any] = {}
    for task, names in (("document", _DOCUMENT_NAMES), ("query", _QUERY_NAMES)):
        prompt = next((name for name in names if name in prompts), None)
        found[task] = {**({"task": task} if two else {}), **({"prompt_name": prompt} if prompt else {}), **given[task]}
    # Without arguments of their own, queries would take the documents'.
    found["query"] = found["query"] or ({"prompt": ""} if found["document"] else {})
    return found


def _written(template: Any) -> str:
    return "".join(literal + ("" if name is None else f"{{{name}}}") for literal, name in template.pieces)


def _base(first: Any, folder: Path | None) -> tuple[str, str | None, bool]:
    """The base's name, its revision, and whether its weights are left there; never a path of this machine."""
    file = folder / "sentence_bert_config.json" if folder is not None else None
    saved = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    from_base = bool(saved.get("from_base"))
    base, revision = first.base_model, first.base_revision
    if from_base:
        base, revision = saved["base_model"], saved["base_revision"]
    base = base or "a base without a name"
    return (base if _HUB_ID.fullmatch(base) else os.path.basename(os.path.abspath(base))), revision, from_base


def _licence(base: str, licence: str | None, link: str | None) -> str:
    """Under which licence the weights are, and what whoever passes them on has to say."""
    if not licence:
        return f"The licence of {base} holds for its weights; which one that is, is not known here."
    text = f" ([its text]({link}))" if link else ""
    notice = f" Whoever passes them on has to say: {_NOTICES[licence]}" if licence in _NOTICES else ""
    return f"The weights are those of {base}, under its licence: `{licence}`{text}.{notice}"


def _linked(base: str) -> str:
    if base in EMBEDDED:
        return f"`{base}` (embedded in st_reba)"
    return f"[{base}](https://huggingface.co/{base})" if base.count("/") == 1 else f"`{base}`"


def _title(base: str, parts: Sequence[Any]) -> str:
    pooling = next((f" ({part.pooling})" for part in parts if hasattr(part, "pooling")), "")
    named = " + ".join(type(part).__name__ for part in parts) or "a layout of its own"
    return f"{base.rsplit('/', 1)[-1]} with {named}{pooling}"


def _slug(base: str, spec: Spec, rest: Sequence[Any]) -> str:
    """A name that differs where base, method or an option differs: mteb keeps its results by it."""
    text = re.sub(r"[^\w.=]+", "-", f"{base.rsplit('/', 1)[-1]}-{spec}").strip("-")
    if len(text) <= 80 and not any(rest):
        return text
    whole = json.dumps([base, spec.to_dict(), *rest], sort_keys=True, ensure_ascii=False)
    return f"{text[:73].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def _part(part: Any) -> dict[str, Any]:
    """A method or stage: its name, what it is, and its options that are not at their default."""
    given = part.to_dict()
    options = [(field, help) for field, _, _, help in part.described() if field in given]
    rows = [(field, _cell(json.dumps(given[field], ensure_ascii=False)), help) for field, help in options]
    about = (type(part).__doc__ or "").split("\n")[0].strip()
    return {
        "name": type(part).__name__,
        "stage": isinstance(part, Stage),
        "about": about,
        "source": getattr(part, "source", ""),
        "options": rows,
    }


def _kinds(stack: Any) -> list[tuple[str, str]]:
    """What the kinds of layers in a plan see, in words."""
    if stack is None:
        return []
    from ..modules.kinds import KINDS

    names = dict.fromkeys(kind for _, kind in stack.calls)
    return [(name, KINDS[name].about.format(m=stack.m)) for name in names]


def _dtype(first: Any, folder: Path | None) -> str:
    """The number type of the weights, as they were saved."""
    file = folder / "config.json" if folder is not None else None
    saved = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    return str(saved.get("dtype") or first.model.dtype).removeprefix("torch.")


def _golden(folder: Path | None) -> dict[str, Any] | None:
    """Where and how the golden vectors were made."""
    file = folder / GOLDEN if folder is not None else None
    return read_golden(file) if file is not None and file.is_file() else None


def _code(folder: Path | None) -> list[tuple[str, int, str]]:
    """Each file of code that the repository carries: its name, number of lines, and SHA-256."""
    files = sorted(folder.glob("st_reba*.py")) if folder is not None else []
    contents = [(file.name, file.read_bytes()) for file in files]
    return [(name, content.count(b"\n"), hashlib.sha256(content).hexdigest()) for name, content in contents]


# The metadata, and what goes on from earlier cards.


def _metadata(
    *,
    base: Any,
    licence: Mapping[str, Any],
    language: Any,
    name: str,
    tags: Iterable[str],
    relation: str | None,
    datasets: Sequence[str],
    results: list[EvalResult] | None,
) -> Any:
    from huggingface_hub import ModelCardData

    known: dict[str, Any] = {"license": licence.get("license"), "license_link": licence.get("license_link")}
    if known["license"] == "other":
        # The Hub asks for a name and a place of a licence that is not in its list.
        place = f"https://huggingface.co/{base}" if isinstance(base, str) else None
        known["license_name"] = licence.get("license_name") or "as-base-model"
        known["license_link"] = known["license_link"] or place
    else:
        known.pop("license_link")
    more: dict[str, Any] = {"base_model_relation": relation} if base and relation else {}
    return ModelCardData(
        language=language,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", _TAG, *tags, "sentence-similarity", "feature-extraction", "dense"],
        base_model=base,
        model_name=name,
        eval_results=results or None,
        datasets=list(datasets) or None,
        **known,
        **more,
    )


def _parsed(text: str | None) -> tuple[dict[str, Any], Any]:
    """A card's metadata, as it says it and as huggingface_hub reads it; nothing of a card that is none."""
    from huggingface_hub import ModelCard

    if not (text or "").startswith("---"):
        return {}, None
    try:
        data: Any = ModelCard((text or "")[:_MOST_CHARACTERS]).data
    except Exception:
        # Whatever a stranger's card holds, this model gets a card of its own.
        return {}, None
    given = data.to_dict()
    texts = {name: value for name in _INHERITED if isinstance(value := given.get(name), str) and value}
    lists = {
        name: value
        for name in ("language", "base_model")
        if isinstance(value := given.get(name), list) and value and all(isinstance(each, str) for each in value)
    }
    return {**texts, **lists}, data


def _metadata_beside(first: Any) -> dict[str, Any]:
    """What the card beside the base's weights says of it; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    place = str(getattr(first.model, "name_or_path", "") or "")
    file: Any = Path(place, FILE) if os.path.isdir(place) else None
    if file is None and _HUB_ID.fullmatch(place) and place.count("/") == 1:
        file = try_to_load_from_cache(place, FILE, revision=getattr(first.model.config, "_commit_hash", None))
    if not isinstance(file, (str, Path)) or not os.path.isfile(file):
        return {}
    return _parsed(Path(file).read_text(encoding="utf-8", errors="replace"))[0]


class _Earlier:
    """What a loaded model's own card says that holds still.

    Args:
        model: The model.
        recipe: Its configuration, as a card has it: by it the same model is known.
        other: Whether this is known to be another model by now.
    """

    def __init__(self, model: SentenceTransformer, recipe: str, other: bool) -> None:
        text = getattr(model, "_model_card_text", None) or ""
        self.inherited, data = _parsed(text)
        self.name: str | None = None
        self.results: list[EvalResult] | None = None
        self.sections: dict[str, str] = {}
        ours = data is not None and _TAG in (data.tags or ())
        kept = ["Training"] if ours else []
        if ours and not other and f"```yaml\n{recipe}```" in text:
            self.name, self.results = data.model_name, data.eval_results
            kept += ["Notes", "Results", "The paper's scores"]
        for heading in kept:
            if found := re.search(rf"^## {heading}\n\n(.*?)\n+(?=## |\Z)", text, re.MULTILINE | re.DOTALL):
                self.sections[heading] = found[1].rstrip()


# What was measured, and how the model was trained.


def _sections(about: About, results: Sequence[EvalResult]) -> dict[str, str]:
    """The sections that a recipe or a file of results gives."""
    found: dict[str, str] = {"Notes": about.note} if about.note else {}
    rows: list[Sequence[Any]] = [
        (each.task_name or each.task_type, each.metric_name or each.metric_type, each.metric_value, _where(each))
        for each in results
    ]
    measured, printed = (
        [[each[name] for name in ("task", "metric", "value", "table")] for each in scores]
        for scores in (about.measured, about.scores)
    )
    if rows := [*rows, *measured]:
        found["Results"] = "Measured with this model.\n\n" + _table(("task", "metric", "value", "on"), rows)
    if printed:
        found["The paper's scores"] = (
            "As the paper prints them for this base and method, with its authors' code. They were **not measured with "
            "this model**.\n\n" + _table(("task", "metric", "value", "in the paper"), printed)
        )
    return found


def _where(result: EvalResult) -> str:
    return result.dataset_name + (f" ({result.dataset_split})" if result.dataset_split else "")


def _training(model: SentenceTransformer) -> str | None:
    """How a model was trained in this process by sentence-transformers' trainer; None: it was not."""
    data: Any = getattr(model, "model_card_data", None)
    if not getattr(data, "train_datasets", None):
        return None
    rows = []
    for each in data.train_datasets:
        name = each.get("id") or each.get("name") or "not named"
        revision = f" at {each['revision']}" if each.get("revision") else ""
        columns = ", ".join(re.sub(r"</?code>", "", str(column)) for column in each.get("columns") or ())
        rows.append((f"{name}{revision}", each.get("size") or "not known", columns, _loss(each.get("loss") or {})))
    # Those that change a training and say nothing of the machine.
    settings = ", ".join(
        f"`{key}={value}`"
        for key, value in sorted((getattr(data, "non_default_hyperparameters", None) or {}).items())
        if isinstance(value, (bool, int, float, str)) and not os.path.isabs(str(value)) and "\n" not in str(value)
    )
    text = "The weights were fine-tuned with sentence-transformers' trainer.\n\n"
    text += _table(("data", "rows", "columns", "loss"), rows)
    return text + (f"\n\nSettings other than its own: {settings}." if settings else "")


def _loss(loss: Mapping[str, Any]) -> str:
    name = str(loss.get("fullname") or "not known").rsplit(".", 1)[-1]
    found = re.search(r"{.*}", str(loss.get("config_code") or ""), re.DOTALL)
    try:
        given = json.loads(found[0]) if found else {}
    except ValueError:
        given = {}
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items() if value is not None)})"


def _datasets(model: SentenceTransformer) -> list[str]:
    """The Hub ids of the data that a model was trained on in this process."""
    data: Any = getattr(model, "model_card_data", None)
    ids = (each.get("id") for each in getattr(data, "train_datasets", None) or ())
    return list(dict.fromkeys(str(each) for each in ids if each))


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", r"\|").split())
