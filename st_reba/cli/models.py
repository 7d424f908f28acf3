"""The commands that make and show a model: build, postfilter, info, zoo, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..modules import Filter, Stage
from ..recipe import About, Recipe, is_recipe, read_recipe
from ..spec import METHODS, Spec
from ..zoo import load, names, recipe_named
from . import places
from .app import app, command
from .fields import Fields, options_of
from .options import (
    BASE,
    MODEL,
    NO_GOLDEN,
    OUT,
    OVERWRITE,
    PROMPT,
    REVISION,
    SEED,
    TOP,
    TRUST,
    Output,
    Running,
    Texts,
    arg,
    choice,
    completing,
    opt,
    table,
    texts_of,
)

_PANEL = "Make a model"

_STAGES = ", ".join(sorted(Stage.registry))
STATUSES = get_args(get_type_hints(About)["status"])
if TYPE_CHECKING:
    MethodFields = Fields
    FilterFields = Fields
else:
    MethodFields = options_of(
        "The method's fields", [(name, kind) for name, kinds in METHODS.items() for kind in kinds]
    )
    FilterFields = options_of("The filter's fields", [("", Filter)], ("kind", "r", "dimensions", "power"))


@command(app, _PANEL, interrupted="what --keep has so far can be removed")
def demo(
    *,
    out: Output,
    keep: Path | None = opt(None, "Keep the model and the index in this new folder.", "FOLDER"),
    query: list[str] | None = opt(None, "Search for this instead; repeatable.", "TEXT"),
    top: int = TOP,
) -> None:
    """Do the whole job offline: build, save, load, index, search, compare methods.

    Examples:
        st-reba demo
        st-reba demo --keep demo_files --query 股票为什么下跌
    """
    if keep is not None and places.kind_of(keep) not in (None, "an empty folder"):
        raise FileExistsError(f"--keep {str(keep)!r} is not empty: name a new folder.")
    from .. import demo as demonstration

    say = (lambda line: None) if out.json or out.quiet else print
    report = demonstration.run(keep, queries=tuple(query or demonstration.QUERIES), k=top, say=say)
    if out.json:
        out.answer("", report, indent=2)


@command(app, _PANEL)
def build(
    *,
    base: str = BASE,
    folder: Path = OUT,
    fields: MethodFields,
    run: Running,
    out: Output,
    method: str | None = opt(
        None,
        f"{', '.join(METHODS)}; or with its fields, as echo:pooling=mean. [default: reba, or the recipe's]",
        "NAME",
        autocompletion=completing(METHODS),
    ),
    stage: list[str] | None = opt(
        None,
        f"What happens around the layers, as nosink:setting=mask0-bidir,k=4; repeatable: {_STAGES}.",
        "STAGE",
    ),
    prompt: list[str] | None = opt(None, "A saved prompt; repeatable.", "NAME=TEXT"),
    tokenizer: str | None = opt(None, "Folder or Hub id of a tokenizer, in place of the base's.", "NAME"),
    truncate_layers: bool = opt(False, "Save no layers above the one that is read."),
    no_check: bool = opt(False, "Do not check that each layer sees what it should."),
    revision: str | None = REVISION,
    no_golden: bool = NO_GOLDEN,
    overwrite: bool = OVERWRITE,
) -> None:
    """Turn a base model into a text embedder, and save it.

    SentenceTransformer(OUT) loads it, after import st_reba or with trust_remote_code=True.

    Examples:
        st-reba build mini my_model
        st-reba build mini my_encoder --method nosink --setting mask0-bidir --k 4
        st-reba build mini my_half --method echo --pooling mean --stage read:layers=3
        st-reba build zoo:mini-nosink my_zoo_model
    """
    places.expect_base("BASE", base)
    places.expect_no_embedder("BASE", base)
    places.expect_free(folder, "a saved model", overwrite=overwrite)
    given = fields.given
    asked = {"prompts": _prompts(prompt or []), "device": run.device, "revision": revision}
    loading: dict[str, Any] = {name: value for name, value in asked.items() if value}
    loading |= {"trust_remote_code": True} if run.trust_remote_code else {}
    recipe = None
    if base.startswith("zoo:"):
        recipe = recipe_named(base.removeprefix("zoo:"), {**loading, **given, "stages": stage})
    elif is_recipe(base):
        recipe = read_recipe(base)
    _check_spec(recipe, method, stage, given)
    from ..building import build as build_model
    from ..describe import describe
    from ..hub.saving import save

    model = build_model(
        base, method, stages=stage, tokenizer=tokenizer, dtype=run.dtype, check=not no_check, **given, **loading
    )
    # What a recipe says of its model holds of that model alone.
    facts: dict[str, Any] = (
        {"about": recipe.about, "name": recipe.name} if recipe and not (method or stage or given) else {}
    )
    save(model, folder, overwrite=overwrite, golden=not no_golden, truncate_layers=truncate_layers, **facts)
    description = describe(folder, trust_remote_code=run.trust_remote_code)
    loads = f"saved: SentenceTransformer({str(folder)!r}) loads it after import st_reba"
    out.report(f"{description}\n\n{loads}", description.to_json(), indent=2)


def _prompts(given: list[str]) -> dict[str, str]:
    prompts = {}
    for prompt in given:
        name, equals, text = prompt.partition("=")
        if not name or not equals:
            raise ValueError(f"--prompt {prompt!r}: write NAME=TEXT, as in --prompt 'query=query: '.")
        prompts[name] = text
    return prompts


def _check_spec(recipe: Recipe | None, method: str | None, stages: Any, fields: dict[str, Any]) -> None:
    """Refuse names and values that are not known, as ``st_reba.build`` would once its libraries are loaded."""
    if recipe is not None and ":" not in (method or ""):
        own = dict(recipe.values)
        stages, method = stages or own.pop("stages", None), method or own.pop("method", None)
        fields = {**own, **fields}
    if method == "nosink" and fields.get("setting") and not {"k", "pooling"} & fields.keys():
        fields = {**fields, "k": "all"}  # which holds for a sentence-transformers model; for others it is judged later
    Spec.make(method, stages, {name: value for name, value in fields.items() if name not in ("method", "stages")})


@command(app, _PANEL)
def info(
    *,
    path: str = arg("PATH", "A folder of build, onnx or index build, or a Hub id."),
    out: Output,
    rejects: bool = opt(False, "Of an index: show what its last change set aside."),
    revision: str | None = REVISION,
    trust_remote_code: bool = TRUST,
) -> None:
    """Show what a model or an index holds, without loading weights.

    Examples:
        st-reba info my_model
        st-reba info my_index --rejects
    """
    if rejects or places.kind_of(path) == "an index":
        from .index import show_index

        places.expect("PATH", path, "an index")
        show_index(Path(path), out, rejects=rejects)
        return
    places.expect_model("PATH", path)
    from ..describe import describe

    description = describe(path, revision=revision, trust_remote_code=trust_remote_code)
    out.answer(description, description.to_json(), indent=2)


@command(app, _PANEL)
def zoo(
    *,
    out: Output,
    name: str | None = arg(
        "[NAME]",
        "Show this one: a name of the list, or a recipe.yaml.",
        None,
        autocompletion=places.zoo_names,
    ),
    language: str | None = opt(None, "List those for this language, as zh.", "CODE"),
    method: str | None = choice(None, METHODS, f"List those of this method: {', '.join(METHODS)}."),
    status: str | None = choice(None, STATUSES, f"List those of this status: {', '.join(STATUSES)}."),
) -> None:
    """List the models that are known, or show one's recipe.

    They are the papers' models, current ones, and tiny ones that run offline. st-reba build zoo:NAME OUT builds one.

    Examples:
        st-reba zoo --language zh --method reba --status ready
        st-reba zoo llama2-chinese-reba
    """
    if name is not None:
        import yaml

        recipe = load(name.removeprefix("zoo:"))
        text = yaml.safe_dump(recipe.to_dict(), allow_unicode=True, sort_keys=False, default_flow_style=None)
        out.answer(text.rstrip(), {"name": recipe.name, **recipe.to_dict()}, indent=2)
        return
    chosen = [
        recipe
        for recipe in map(load, names())
        if language in (None, *recipe.about.language)
        and method in (None, recipe.values.get("method"))
        and status in (None, recipe.about.status)
    ]
    rows = [("NAME", "BASE", "PARAMETERS", "LANGUAGE", "LICENCE", "PAPER", "STATUS")]
    for recipe in chosen:
        about = recipe.about
        shown = (about.parameters, " ".join(about.language), about.licence, about.paper, about.status)
        rows.append((recipe.name, recipe.base, *(each or "-" for each in shown)))  # type: ignore[arg-type]
    out.answer(table(rows), [{"name": each.name, **each.to_dict()} for each in chosen], indent=2)


@command(app, _PANEL)
def postfilter(
    *,
    model: str = MODEL,
    texts: str = arg("TEXTS", "Texts like those to be embedded: .txt (one on each line), .jsonl, .csv or .tsv."),
    to: Path = arg("OUT", "The folder to write; or X.safetensors: the filter alone, for a recipe's stage."),
    fields: FilterFields,
    read: Texts,
    run: Running,
    out: Output,
    sample: int | None = opt(None, "Fit on N of the texts, drawn at random.", "N", min=1),
    seed: int = SEED,
    prompt: str | None = PROMPT,
    no_golden: bool = NO_GOLDEN,
    overwrite: bool = OVERWRITE,
) -> None:
    """Fit a linear filter on a saved model's vectors of unlabelled texts, and save the model with it.

    Examples:
        st-reba postfilter my_model corpus.jsonl my_filtered --kind abtt --r 2
        st-reba postfilter my_model corpus.txt my_filter.safetensors --kind center
    """
    given: dict[str, Any] = {"kind": "abtt", **fields.given}
    Filter(**given)
    alone = to.suffix == ".safetensors"
    places.expect_model("MODEL", model)
    if not alone:
        places.expect_free(to, "a saved model", overwrite=overwrite)
    elif to.exists() and not overwrite:
        raise FileExistsError(f"{to}: already there; give another path, or --overwrite to replace it.")
    lines = texts_of(texts, read.text_column)
    from ..filters import postfilter_of, told, with_postfilter
    from ..hub.saving import save

    loaded = run.load(model)
    fitted = postfilter_of(loaded, lines, sample=sample, seed=seed, prompt=prompt, **given, **read.sizes)
    record = fitted.record()
    if alone:
        fitted.save(to)
    else:
        save(with_postfilter(loaded, fitted), to, overwrite=overwrite, golden=not no_golden)
    about = {"path": str(to), **record.to_dict(), "dimension": fitted.out_dimension}
    out.report(f"{to}: {told(record)}; vectors of {fitted.out_dimension} dimensions", about)
