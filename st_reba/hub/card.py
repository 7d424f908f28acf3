"""The model card, README.md of a saved model: one template over the model's own spec, files and golden vectors."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from ..bases import EMBEDDED
from ..encode import PROMPT_NAMES
from ..files import whole_file
from ..modules import ReBA
from ..modules.decoder import has_adapter
from ..modules.kinds import KINDS
from ..modules.poolings import POOLINGS
from ..modules.stages import Stage
from ..recipe import About, Score
from ..spec import spec_of
from .golden import FILE as GOLDEN
from .golden import open_fields, read_golden

FILE = "README.md"
TEMPLATE = Path(__file__).parent / "template.md"
# What the examples load while the repository has no name; `with_repo_id` puts the name in.
PLACEHOLDER = "path/to/model"
_TAG = "st-reba"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# What a base's own card says that holds for a model without training as well, and what of it may be a list.
_INHERITED = ("license", "license_name", "license_link", "language", "base_model")
_LISTS = ("language", "base_model")
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
) -> str:
    """The text of a model's card; the same model gives the same text.

    Args:
        model: A model of this package.
        folder: Where it was saved, with its golden vectors and code; None: nowhere.
        about: What a recipe says of it; None: what the card that it was loaded with says, if it is that model still.
        name: What the metadata call it; None: its base and its short form.

    Raises:
        ValueError: It is no model of this package.

    Example:
        >>> import st_reba
        >>> card = card_of(st_reba.build("mini", "echo", pooling="mean"))
        >>> [line for line in card.splitlines() if line.startswith("# ")]
        ['# mini with Echo (mean)']
    """
    return render(TEMPLATE, values_of(model, folder, about=about, name=name))


def write_card(model: SentenceTransformer, folder: str | os.PathLike[str], **options: Any) -> None:
    """Write the README.md of a saved model; arguments as for :func:`card_of`."""
    with whole_file(Path(folder) / FILE) as stream:
        stream.write(card_of(model, folder, **options).encode("utf-8"))


def with_repo_id(card: str, repo_id: str) -> str:
    """A card whose examples name the repository, where it had no name yet."""
    return card.replace(PLACEHOLDER, repo_id)


def render(template: Path, values: Mapping[str, Any]) -> str:
    """Fill a template of a card; huggingface_hub checks that the result is one."""
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
    tags: Sequence[str] = (),
) -> dict[str, Any]:
    """What a card's template is filled with; arguments as for :func:`card_of`, and more ``tags`` for the Hub."""
    from huggingface_hub import ModelCardData

    spec, first, place = spec_of(model), cast(Any, model[0]), None if folder is None else Path(folder)
    method, stack = cast(Any, spec.method), first.stack
    saved = _read(place, "sentence_bert_config.json")
    from_base = bool(saved.get("from_base"))
    base, revision, linked = _base(saved if from_base else vars(first))
    prompts = {key: prompt for key, prompt in model.prompts.items() if prompt}
    recipe = _recipe({"base": base, "revision": revision, **spec.to_dict(), "prompts": prompts})
    trained = _training(model)
    inherited, earlier, sections = _earlier(model, recipe, changed=trained is not None or about is not None)
    about = about or About()
    sections |= {**_sections(about), **({"Training": trained} if trained else {})}
    inherited = {**_metadata_beside(first), **inherited}
    licence = {"license": about.licence, "license_link": about.licence_link} if about.licence else inherited
    adapter, quantized = has_adapter(first.model), getattr(first.model, "hf_quantizer", None) is not None
    fine_tuned = "Training" in sections
    # The Hub's relations each say that weights were changed: without training none is.
    relation = "adapter" if adapter else "finetune" if fine_tuned else "quantized" if quantized else None
    known = base if "/" in base else inherited.get("base_model")
    names = dict.fromkeys((spec.name, method.name, *(stage.name for stage in spec.stages)))
    if name is None:
        name = earlier.model_name if earlier else _slug(base, spec, [prompts, sections.get("Training")])
    data = ModelCardData(
        language=list(about.language) or inherited.get("language"),
        library_name="sentence-transformers",
        **_licensed(licence, known),
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", _TAG, *tags, *names, "sentence-similarity", "feature-extraction", "dense"],
        base_model=known,
        base_model_relation=known and relation,
        datasets=list(dict.fromkeys(str(each["id"]) for each in _data(model) if each.get("id"))) or None,
        model_name=name,
        eval_results=_results(about) or (earlier.eval_results if earlier else None),
    )
    parts = [part for part in (method, *spec.stages) if part.name != "by-hand"]
    title = " + ".join(type(part).__name__ for part in parts) or "a layout of its own"
    pooling = getattr(method, "pooling", None)
    return {
        **_input(model, method, prompts),
        "first": first,
        "metadata": data,
        "title": f"{base.rsplit('/', 1)[-1]} with {title}{f' ({pooling})' if pooling else ''}",
        "repo": PLACEHOLDER,
        "base": linked,
        "base_revision": revision,
        "from_base": from_base,
        "spec": spec,
        "method": method,
        "pooling": pooling,
        "chunk": getattr(method, "chunk", None),
        "formula": POOLINGS[method.pooling].formula if isinstance(method, ReBA) else None,
        "parts": [_part(part) for part in parts],
        "recipe": recipe,
        "sections": sections,
        "licence_text": _licence(linked, licence.get("license"), licence.get("license_link")),
        "prompts": prompts,
        "normalized": any(isinstance(module, Normalize) for module in model),
        "dimension": model.get_embedding_dimension(),
        "modules": [type(module).__name__ for module in model],
        "passes": len(stack.calls) if stack else first.runs,
        "kinds": {kind: KINDS[kind].about.format(m=stack.m) for _, kind in stack.calls} if stack else {},
        "dtype": str(_read(place, "config.json").get("dtype") or first.model.dtype).removeprefix("torch."),
        "adapter": adapter,
        "quantized": quantized,
        "fine_tuned": fine_tuned,
        "trusted": bool(getattr(first.model.config, "auto_map", None)),
        "golden": read_golden(place / GOLDEN) if place and (place / GOLDEN).is_file() else None,
        "code": [_digest(file) for file in sorted(place.glob("st_reba*.py"))] if place else [],
        "chinese": "zh" in (data.language or ()),
    }


def _base(record: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """The base's name, never a path of this machine; its revision; and its name with a link."""
    base = record["base_model"] or "a base without a name"
    if not _HUB_ID.fullmatch(base):
        base = os.path.basename(os.path.abspath(base))
    linked = f"[{base}](https://huggingface.co/{base})" if base.count("/") == 1 else f"`{base}`"
    return base, record["base_revision"], f"{linked} (embedded in st_reba)" if base in EMBEDDED else linked


def _recipe(values: Mapping[str, Any]) -> str:
    """A recipe in YAML, without a revision or prompts where there are none."""
    given = {name: value for name, value in values.items() if value not in (None, {})}
    return yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=120)


def _licensed(licence: Mapping[str, Any], base: object) -> dict[str, Any]:
    """The licence's metadata; the Hub asks for a name and a place of one that is not in its list."""
    found = {"license": licence.get("license")}
    if found["license"] == "other":
        page = f"https://huggingface.co/{base}" if isinstance(base, str) else None
        found["license_name"] = licence.get("license_name") or "as-base-model"
        found["license_link"] = licence.get("license_link") or page
    return found


def _licence(base: str, licence: str | None, link: str | None) -> str:
    """Under which licence the weights are, and what whoever passes them on has to say."""
    if not licence:
        return f"The licence of {base} holds for its weights; which one that is, is not known here."
    text = f" ([its text]({link}))" if link else ""
    notice = f" Whoever passes them on has to say: {_NOTICES[licence]}" if licence in _NOTICES else ""
    return f"The weights are those of {base}, under its licence: `{licence}`{text}.{notice}"


def _read(folder: Path | None, name: str) -> dict[str, Any]:
    """A JSON file of the saved model, if there is one."""
    file = None if folder is None else folder / name
    return json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}


def _digest(file: Path) -> tuple[str, int, str]:
    content = file.read_bytes()
    return file.name, content.count(b"\n"), hashlib.sha256(content).hexdigest()


def _input(model: SentenceTransformer, method: Any, prompts: Mapping[str, str]) -> dict[str, Any]:
    """How texts are laid out, and with which arguments plain ``encode`` does what the tasks' own methods do."""
    first = cast(Any, model[0])
    layouts: dict[str, list[str]] | None = None
    fields: dict[str, dict[str, str]] = {"query": {}, "document": {}}
    # A sentence-transformers model that was converted keeps its own input.
    found: dict[str, Any] = {"copies": 1, "positions": model.max_seq_length, "budget": model.max_seq_length}
    if hasattr(first, "token_layout"):
        layouts = {task: [_written(each[task]) for each in first.token_layout.templates] for task in fields}
        fields = {task: dict.fromkeys(open_fields(first, task), "…") for task in fields}
        found = {
            "plain": all(each == ["{text}" * first.repeats] for each in layouts.values()),
            "copies": first.repeats if getattr(method, "chunk", None) is None else method.repeats or 2,
            "positions": first.token_layout.limit(),
            "overhead": max(frame.overhead for frame in first.frames(None, "document", **fields["document"])),
            "budget": first.budget(None, "document", **fields["document"]),
        }
    calls: dict[str, Any] = {}
    for task, given in fields.items():
        prompt = next((name for name in PROMPT_NAMES[task] if name in prompts), None)
        differ = layouts is not None and layouts["query"] != layouts["document"]
        calls[task] = {**({"task": task} if differ else {}), **({"prompt_name": prompt} if prompt else {}), **given}
    # Without arguments of their own, queries would take the documents'.
    calls["query"] = calls["query"] or ({"prompt": ""} if calls["document"] else {})
    return {**found, "layouts": layouts, "fields": fields, "calls": calls}


def _written(template: Any) -> str:
    return "".join(literal + ("" if name is None else f"{{{name}}}") for literal, name in template.pieces)


def _slug(base: str, spec: Any, rest: Sequence[Any]) -> str:
    """A name that differs where base, method or an option differs: mteb keeps its results by it."""
    text = re.sub(r"[^\w.=]+", "-", f"{base.rsplit('/', 1)[-1]}-{spec}").strip("-")
    if len(text) <= 80 and not any(rest):
        return text
    whole = json.dumps([base, spec.to_dict(), *rest], sort_keys=True, ensure_ascii=False)
    return f"{text[:73].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def _part(part: Any) -> dict[str, Any]:
    """A method or stage: its name, what it is, and its options that are not at their default."""
    return {
        "name": type(part).__name__,
        "stage": isinstance(part, Stage),
        "about": (type(part).__doc__ or "").split("\n")[0].strip(),
        "source": getattr(part, "source", ""),
        "options": [(name, help) for name, _, _, help in part.described() if name in part.to_dict()],
    }


# What other cards say.


def _parsed(text: str | None) -> tuple[dict[str, Any], Any]:
    """A card's inherited and all of its metadata; nothing of a card that is none."""
    from huggingface_hub import ModelCard

    if not text or not text.startswith("---"):
        return {}, None
    try:
        data: Any = ModelCard(text[:_MOST_CHARACTERS]).data
    except Exception:
        # Whatever a stranger's card holds, this model gets a card of its own.
        return {}, None
    found = {}
    for name in _INHERITED:
        value = getattr(data, name, None)
        listed = isinstance(value, list) and name in _LISTS and all(isinstance(each, str) for each in value)
        if value and (isinstance(value, str) or listed):
            found[name] = value
    return found, data


def _metadata_beside(first: Any) -> dict[str, Any]:
    """What the card beside the base's weights says of it; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache

    place = str(getattr(first.model, "name_or_path", "") or "")
    file: Any = Path(place, FILE) if os.path.isdir(place) else None
    if file is None and _HUB_ID.fullmatch(place) and "/" in place:
        file = try_to_load_from_cache(place, FILE, revision=getattr(first.model.config, "_commit_hash", None))
    if not isinstance(file, (str, Path)) or not os.path.isfile(file):
        return {}
    return _parsed(Path(file).read_text(encoding="utf-8", errors="replace"))[0]


def _earlier(model: SentenceTransformer, recipe: str, *, changed: bool) -> tuple[dict[str, Any], Any, dict[str, str]]:
    """What a loaded model's own card says that holds still.

    Its inherited metadata; all of it and all sections that were measured or written by hand, where it is a card of this
    very model, by its recipe; and how the weights were trained.
    """
    text = getattr(model, "_model_card_text", None) or ""
    inherited, data = _parsed(text)
    if data is None or _TAG not in (data.tags or ()):
        return inherited, None, {}
    same = not changed and f"```yaml\n{recipe}```" in text
    sections = {}
    for heading in ("Training", *(("Notes", "Results", "The paper's scores") if same else ())):
        if found := re.search(rf"^## {heading}\n\n(.*?)\n+(?=## |\Z)", text, re.MULTILINE | re.DOTALL):
            sections[heading] = found[1].rstrip()
    return inherited, data if same else None, sections


# What was measured, and how the model was trained.


def _sections(about: About) -> dict[str, str]:
    """The sections that a recipe gives."""
    found = {"Notes": about.note} if about.note else {}
    measured, printed = (
        [(each.task, each.metric, _with_interval(each), each.table) for each in map(Score.of, scores)]
        for scores in (about.measured, about.scores)
    )
    if measured:
        head = "Measured with this model; in brackets 95 % intervals.\n\n"
        found["Results"] = head + _table(("task", "metric", "value", "on"), measured)
    if printed:
        found["The paper's scores"] = (
            "As the paper prints them for this base and method, with its authors' code. They were **not measured with "
            "this model**.\n\n" + _table(("task", "metric", "value", "in the paper"), printed)
        )
    return found


def _with_interval(score: Score) -> str:
    return f"{score.value}" + (" ({}–{})".format(*score.interval) if score.interval else "")


def _results(about: About) -> list[Any]:
    """What was measured, as the Hub's widgets read it (``model-index``)."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type="sentence-similarity",
            dataset_type=re.sub(r"[^\w.-]+", "-", each.task),
            dataset_name=each.task,
            metric_type=each.metric,
            metric_value=each.value,
        )
        for each in map(Score.of, about.measured)
    ]


def _data(model: SentenceTransformer) -> list[dict[str, Any]]:
    """The data that sentence-transformers' trainer trained a model on in this process."""
    return getattr(model.model_card_data, "train_datasets", None) or []


def _training(model: SentenceTransformer) -> str | None:
    """How a model was trained in this process; None: it was not."""
    if not (trained := _data(model)):
        return None
    rows = []
    for each in trained:
        name = each.get("id") or each.get("name") or "not named"
        revision = f" at {each['revision']}" if each.get("revision") else ""
        columns = ", ".join(re.sub(r"</?code>", "", str(column)) for column in each.get("columns") or ())
        rows.append((f"{name}{revision}", each.get("size") or "not known", columns, _loss(each.get("loss") or {})))
    # Those that change a training and say nothing of the machine.
    settings = ", ".join(
        f"`{key}={value}`"
        for key, value in sorted(getattr(model.model_card_data, "non_default_hyperparameters", {}).items())
        if isinstance(value, (bool, int, float, str)) and not os.path.isabs(str(value)) and "\n" not in str(value)
    )
    text = "The weights were fine-tuned with sentence-transformers' trainer.\n\n" + _table(
        ("data", "rows", "columns", "loss"), rows
    )
    return text + (f"\n\nSettings other than its own: {settings}." if settings else "")


def _loss(loss: Mapping[str, Any]) -> str:
    name = str(loss.get("fullname") or "not known").rsplit(".", 1)[-1]
    found = re.search(r"{.*}", str(loss.get("config_code") or ""), re.DOTALL)
    try:
        given = json.loads(found[0]) if found else {}
    except ValueError:
        given = {}
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items() if value is not None)})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", r"\|").split())
