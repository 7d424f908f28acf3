"""The model card, README.md of a saved model: all that it says comes from the model's own configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sentence_transformers import SentenceTransformer

from .. import zoo
from ..bases import EMBEDDED
from ..files import whole_file
from ..recipe import About, Score
from .card_text import (
    CITATIONS,
    KINDS,
    PAPERS,
    costs,
    equation,
    licence_text,
    limits,
    method_notes,
    properties,
    sources,
    summary,
    why_blocked,
)
from .facts import Facts, facts_of_model, facts_of_recipe, left_at_base
from .golden import FILE as GOLDEN
from .layer_text import hidden_states, reads

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

FILE = "README.md"
TEMPLATE = Path(__file__).parent / "template.md"
# Stands in a card whose repository has no name yet; `with_repo_id` puts the name in.
PLACEHOLDER = "ORG/NAME"
_TAG = "st-reba"
_QUERY_NAMES, _DOCUMENT_NAMES = ("query",), ("document", "passage", "corpus")
_EXAMPLES = {
    True: {
        "texts": '["银行的利率又下调了。", "The cat is asleep on the roof."]',
        "question": '"房贷会更便宜吗？"',
        "word_text": '"他在银行取了钱，然后沿着河岸走回家。"',
        "word": '"银行"',
    },
    False: {
        "texts": '["The bank lowered its interest rates again.", "The cat is asleep on the roof."]',
        "question": '"Will mortgages get cheaper?"',
        "word_text": '"She went to the bank, then walked home along the river."',
        "word": '"bank"',
    },
}


def write_card(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    recipe: zoo.Recipe | Mapping[str, Any] | str | None = None,
    repo_id: str | None = None,
    results: str | os.PathLike[str] | None = None,
) -> None:
    """Write the README.md of a saved model; the same model gives the same bytes.

    Args:
        model: The model that was saved.
        folder: Where: what else is there (golden vectors) is told.
        recipe: What it was built by: a recipe, its ``to_json()``, a name of the zoo or a YAML file. None: the one by
            which a loaded model's own card calls it, if that is its configuration still.
        repo_id: ``ORG/NAME`` of the repository; None: a placeholder, which :func:`with_repo_id` fills.
        results: A JSON file of scores that were measured with this model: a list of objects with the fields of
            ``huggingface_hub.EvalResult``. None: no model-index.

    Raises:
        ValueError: It is no model of this package, or the file of results is none.
        ImportError: Jinja2, which torch brings along, is missing.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_card(st_reba.build("mini", "echo"), folder)
        ...     Path(folder, "README.md").read_text(encoding="utf-8").count("# mini-echo-2-last")
        1
    """
    path = Path(folder)
    name, facts, about = known(model, path, recipe)
    measured = [] if results is None else read_results(results)
    text = render(
        facts,
        about,
        name=name,
        repo=repo_id or PLACEHOLDER,
        golden=(path / GOLDEN).is_file(),
        measured=measured,
    )
    with whole_file(path / FILE) as stream:
        stream.write(text.encode("utf-8"))


def known(
    model: SentenceTransformer,
    folder: Path | None = None,
    recipe: zoo.Recipe | Mapping[str, Any] | str | None = None,
) -> tuple[str, Facts, About]:
    """A model's name, and what is known of it and of its base.

    Args:
        model: The model.
        folder: Where it was saved; None: nowhere.
        recipe: As for :func:`write_card`.
    """
    facts = facts_of_model(model)
    found = _recipe(recipe) or _kept_recipe(model, facts)
    if found is not None and found.arguments.get("tokenizer") is not None:
        facts = replace(facts, tokenizer=str(found.arguments["tokenizer"]))
    if folder is not None:
        facts = left_at_base(facts, folder)
    if found is None:
        return facts.signature, facts, _about_base(facts.base)
    return found.name, facts, found.about


def recipe_card(recipe: zoo.Recipe) -> str:
    """The card of a recipe, its base not loaded unless it is embedded.

    Args:
        recipe: The recipe.

    Returns:
        The text.
    """
    facts = facts_of_recipe(recipe)
    if recipe.arguments["base"] in EMBEDDED:
        facts = facts_of_model(recipe.build(dtype=recipe.arguments.get("dtype", "auto"), device="cpu"))
    return render(facts, recipe.about, name=recipe.name, repo=recipe.name, recipe_only=True)


def with_repo_id(card: str, repo_id: str) -> str:
    """A card whose examples name the repository, where it had no name yet.

    Args:
        card: The card's text.
        repo_id: ``ORG/NAME``.
    """
    onnx = repo_id.rsplit("/", 1)[-1]
    return card.replace(f"{PLACEHOLDER} NAME-onnx", f"{repo_id} {onnx}-onnx").replace(PLACEHOLDER, repo_id)


def read_results(path: str | os.PathLike[str]) -> list[EvalResult]:
    """Read scores that were measured.

    Args:
        path: A JSON file: a list of objects with the fields of ``huggingface_hub.EvalResult``, of which task_type,
            dataset_type, dataset_name, metric_type and metric_value must be there.

    Raises:
        ValueError: It is no such file; the entry and its field are named.
    """
    from huggingface_hub import EvalResult

    file = os.fspath(path)
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"results={file!r} is not JSON ({error}).") from error
    if not isinstance(given, list) or not given:
        raise ValueError(f"results={file!r} must be a list of objects with the fields of huggingface_hub.EvalResult.")
    known = [each.name for each in fields(EvalResult)]
    results = []
    for number, each in enumerate(given, 1):
        if not isinstance(each, dict) or (unknown := [name for name in each if name not in known]):
            wrong = f"has {unknown[0]!r}" if isinstance(each, dict) else "is no object"
            raise ValueError(f"results={file!r}: entry {number} {wrong}; an entry has fields of {known}.")
        try:
            results.append(EvalResult(**each))
        except (TypeError, ValueError) as error:
            raise ValueError(f"results={file!r}: entry {number}: {error}.") from error
    return results


def render(
    facts: Facts,
    about: About,
    *,
    name: str,
    repo: str,
    golden: bool = False,
    measured: Sequence[EvalResult] = (),
    recipe_only: bool = False,
    template: Path = TEMPLATE,
    tags: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> str:
    """Make a card's text.

    Args:
        facts: What is known of the model.
        about: What is known of its base.
        name: The model's.
        repo: What the examples load.
        golden: Whether golden vectors lie beside the card.
        measured: Scores that were measured with it.
        recipe_only: Whether the card is a recipe's, and no model's.
        template: The file that is filled.
        tags: For the Hub, beside those of every model.
        more: Values for a template of its own, which take the place of others of that name.

    Returns:
        The text, checked by huggingface_hub to be a card.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("A model card needs Jinja2, which torch brings along. Run: pip install jinja2") from error
    from huggingface_hub import ModelCard

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["tojson_text"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["in_braces"] = lambda value: f"`{{{value}}}`"
    pinned = "" if recipe_only else ', revision="main"'
    given = {task: dict.fromkeys(facts.fields.get(task, ()), "…") for task in ("query", "document")}
    onnx_options = " --task document" if facts.two_templates or facts.prompts else ""
    values: dict[str, Any] = dict(
        metadata=metadata(facts, about, name, measured, tags).to_yaml(),
        title=name,
        facts=facts,
        about=about,
        repo=repo,
        golden=golden,
        measured=measured,
        blocked=why_blocked(facts, about, name) if recipe_only else None,
        build_command=f"st-reba zoo build {name} {repo}{' --trust-remote-code' * facts.remote_code}"
        if recipe_only
        else None,
        summary=summary(facts, about),
        properties=properties(facts, about),
        equation=equation(facts),
        hidden_states=hidden_states(facts),
        word_states="the last hidden states" if reads(facts) is None else "v",
        method_notes=method_notes(facts),
        kinds=[(kind, KINDS[kind].format(m=facts.plan.m)) for kind in _kinds(facts)] if facts.plan is not None else [],
        costs=costs(facts),
        limits=limits(facts, about, recipe_only=recipe_only, measured=bool(measured or about.measured)),
        licence=licence_text(facts, about),
        paper=PAPERS.get(about.paper or "", ""),
        citation="\n\n".join(CITATIONS[source] for source in sources(facts, about)),
        revision=pinned,
        langchain_revision=', "revision": "main"' if pinned else "",
        trusted=", trust_remote_code=True" if facts.remote_code else "",
        onnx_folder=f"{repo.rsplit('/', 1)[-1]}-onnx",
        onnx_options=onnx_options,
        any_fields=any(facts.fields.values()),
        document_arguments=_arguments(given["document"]),
        query_arguments=_arguments(given["query"]),
        **_langchain(facts, given),
        **_EXAMPLES["zh" in about.language],
    )
    text = environment.from_string(template.read_text(encoding="utf-8")).render(values | dict(more or {}))
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    while "\n\n\n" in lines:
        lines = lines.replace("\n\n\n", "\n\n")
    content: str = ModelCard(lines.rstrip() + "\n").content
    return content


def metadata(
    facts: Facts, about: About, name: str, measured: Sequence[EvalResult] = (), tags: Sequence[str] = ()
) -> ModelCardData:
    """The card's metadata for the Hub.

    Args:
        facts: What is known of the model.
        about: What is known of its base.
        name: The model's.
        measured: Scores that were measured with it.
        tags: More of them.
    """
    from huggingface_hub import ModelCardData

    tags = ["sentence-transformers", _TAG, *tags, facts.method, "sentence-similarity", "feature-extraction", "dense"]
    if facts.plan is not None and facts.method != "nosink":
        tags.insert(tags.index(facts.method) + 1, "nosink")
    on_hub = facts.base is not None and facts.base.count("/") == 1
    licence: dict[str, Any] = {"license": about.licence}
    if about.licence == "other":
        # The Hub asks for a name and a place of a licence that is not in its list.
        place = about.licence_link or (f"https://huggingface.co/{facts.base}" if on_hub else None)
        licence |= {"license_name": "as-base-model", "license_link": place}
    # The Hub's relations (finetune, adapter, merge, quantized) each say that weights were changed: here none is, but
    # where the weights are quantized or the model was trained.
    changed = "adapter" if facts.adapter else "finetune" if facts.training else "quantized" if facts.quantized else None
    relation: dict[str, Any] = {"base_model_relation": changed} if on_hub and changed else {}
    if facts.datasets:
        relation["datasets"] = list(facts.datasets)
    return ModelCardData(
        language=list(about.language) or None,
        **licence,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=tags,
        base_model=facts.base if on_hub else None,
        model_name=name,
        eval_results=list(measured) or None,
        **relation,
    )


def _recipe(given: zoo.Recipe | Mapping[str, Any] | str | None) -> zoo.Recipe | None:
    if given is None or isinstance(given, zoo.Recipe):
        return given
    if isinstance(given, str):
        return zoo.load(given)
    about = dict(given["about"])
    about |= {name: tuple(Score(**each) for each in about.get(name, ())) for name in ("scores", "measured")}
    about["language"] = tuple(about["language"])
    return zoo.Recipe(given["name"], Path(f"{given['name']}.yaml"), dict(given["arguments"]), About(**about))


def _kept_recipe(model: SentenceTransformer, facts: Facts) -> zoo.Recipe | None:
    """The recipe of the zoo that a loaded model's card names, if the model is what that recipe builds."""
    from huggingface_hub import ModelCard

    text = getattr(model, "_model_card_text", None)
    if not text:
        return None
    try:
        data: dict[str, Any] = cast(Any, ModelCard(text).data).to_dict()
    except Exception:
        # Whatever the metadata of a stranger's card is, this model gets a card of its own.
        return None
    index = data.get("model-index") or [{}]
    name = data.get("model_name") or index[0].get("name")
    if _TAG not in (data.get("tags") or []) or name not in zoo.names():
        return None
    recipe = zoo.load(name)
    return recipe if facts_of_recipe(recipe).signature == facts.signature else None


def _about_base(base: str | None) -> About:
    """What the zoo knows of a base, whatever is built on it."""
    for name in zoo.names():
        recipe = zoo.load(name)
        if recipe.arguments["base"] == base:
            known = recipe.about
            return About(known.language, known.licence, known.licence_link, known.parameters)
    return About()


def _kinds(facts: Facts) -> list[str]:
    return [kind for kind in KINDS if f" {kind}" in f" {facts.layers}".replace("(", " ")]


def _arguments(values: Mapping[str, str]) -> str:
    return "".join(f', {name}="{value}"' for name, value in values.items())


def _langchain(facts: Facts, given: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Arguments of plain ``encode`` that do what ``encode_document`` and ``encode_query`` do."""
    arguments = {}
    for task, names in (("document", _DOCUMENT_NAMES), ("query", _QUERY_NAMES)):
        prompt = next((name for name in names if name in facts.prompts), None)
        arguments[task] = {
            **({"task": task} if facts.two_templates else {}),
            **({"prompt_name": prompt} if prompt else {}),
            **given[task],
        }
    same = arguments["query"] == arguments["document"]
    shown = {task: json.dumps(each, ensure_ascii=False) if each else "" for task, each in arguments.items()}
    # Without arguments of their own, queries would take the documents'.
    return {
        "encode_kwargs": shown["document"],
        "query_encode_kwargs": "" if same else shown["query"] or '{"prompt": ""}',
    }
