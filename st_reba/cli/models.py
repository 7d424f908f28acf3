"""Commands for models: build, info, verify, push, zoo, onnx."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer
import yaml
from typer import Argument, Option

from ..poolings import describe_poolings
from .app import CheckedCommand, app, dumped, given, pairs, quiet
from .options import AsJson, Base, Device, Dtype, Model, Out, Overwrite, Revision, Trust
from .streams import print_next, print_progress


@app.command(cls=CheckedCommand)
def build(
    base: Base,
    out: Out,
    method: Annotated[
        str | None,
        Option(
            metavar="METHOD",
            help="prompteol, echo, reba, nosink or classical; the short form, such as echo:pooling=mean,layer=12; or "
            "auto, with --texts. [default: the recipe's, else prompteol:template=prompteol-search,read=attention]",
        ),
    ] = None,
    pooling: Annotated[str | None, Option(metavar="NAME", help=f"{describe_poolings()}.")] = None,
    repeats: Annotated[int | None, Option(metavar="N", help="Copies, for echo and reba. [default: 2]")] = None,
    template: Annotated[
        list[str] | None, Option(metavar="TEXT", help="Text with {text} slots, or a name. Repeat it for an ensemble.")
    ] = None,
    prompt: Annotated[list[str] | None, Option(metavar="NAME=TEXT", help="Prompt to save. Repeatable.")] = None,
    set: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Any other option: read=attention, layer=12, gguf_file=… Repeatable."),
    ] = None,
    texts: Annotated[Path | None, Option(metavar="PATH", help="Texts for --method auto: a file or folder.")] = None,
    quantization: Annotated[str | None, Option(metavar="TYPE", help="nf4 or int8, by bitsandbytes.")] = None,
    license: Annotated[
        str | None, Option(metavar="ID", help="Licence for the card, as the Hub spells it. [default: the base's]")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn a base model into a text embedder, without training, and save it.

    Examples: st-reba build mini my_model --method prompteol:template=reverseol-says,read=attention;
    st-reba build mini my_model --method echo --pooling mean
    """
    from .. import build as build_model
    from ..corpus.source import read_texts
    from ..hub.save import check_free, save
    from ..methods import read_value
    from ..recipe import recipe_for

    options = given(
        pooling=pooling,
        repeats=repeats,
        template=template[0] if template and len(template) == 1 else template,
        prompts=pairs(prompt, "--prompt"),
        texts=texts and read_texts(texts),
        quantization=quantization,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    options |= {name: read_value(value) for name, value in pairs(set, "--set").items()}
    method = options.pop("method", method)
    found, facts = recipe_for(base, {**options, **given(method=method)}), dict[str, Any]()
    # What is written of a recipe's model does not hold of another.
    if found and not method and not options.keys() - {"dtype", "device", "trust_remote_code"}:
        facts = {"about": found.about, "name": found.name}
    check_free(out, overwrite=overwrite)
    quiet()
    if not as_json:
        print_progress(f"Loading {base} and building a model from it")
    model = build_model(base, method, **options)
    if not as_json:
        print_progress(f"Saving {out}: weights, code, golden vectors and a card")
    save(model, out, overwrite=overwrite, license=license, **facts)
    _print(_told(str(out), model), as_json)
    if not as_json:
        print_next(f"st-reba index TEXTS my_index --model {quote(str(out))}    (TEXTS: a file or folder)")


@app.command(cls=CheckedCommand)
def info(
    model: Annotated[str, Argument(metavar="MODEL", help="Saved model, Hub id, index, recipe.yaml or zoo:NAME.")],
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Describe a model, a recipe or an index: base, method, layers, masks, sizes."""
    if model.startswith("zoo:") or model.endswith((".yaml", ".yml")):
        from ..recipe import read_recipe, recipe

        found = recipe(model.removeprefix("zoo:")) if model.startswith("zoo:") else read_recipe(model)
        return _print(found.to_dict(), as_json)
    if Path(model, "index.sqlite").is_file():
        from ..index import Index

        about = Index.open(model).info()
        inner: tuple[str, ...] = ()
        if not as_json:  # of its bookkeeping
            inner = ("next_key", "next_number", "indexed_count", "first_pending_key", "change_id", "whitening_sha256")
        return _print({name: value for name, value in about.items() if name not in inner}, as_json)
    from ..safety import load

    quiet()
    # It warns that 16 bits are slow on a CPU, but nothing is encoded here.
    logging.getLogger("sentence_transformers.base.model").setLevel(logging.ERROR)
    loaded = load(model, device="cpu", dtype="auto", revision=revision, trust_remote_code=trust_remote_code)
    _print(_told(model, loaded), as_json)


@app.command(cls=CheckedCommand)
def verify(
    model: Annotated[str, Argument(metavar="MODEL", help="Saved model: a folder or Hub id; or an index.")],
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Check a model against its golden vectors and the installed st_reba's code, or an index against its checksums.

    The exit status is 1 if they differ.
    """
    if Path(model, "index.sqlite").is_file():
        from ..index import Index

        _print(Index.open(model).verify(), as_json)
        return 0
    from ..hub import verify as verify_model
    from .streams import print_error

    quiet()
    report = verify_model(
        model,
        device=device,
        dtype=dtype,
        revision=revision,
        trust_remote_code=trust_remote_code,
        report_step=None if as_json else print_error,
    )
    print(dumped(report.to_dict(), indent=1) if as_json else report)
    return 0 if report.ok else 1


@app.command(cls=CheckedCommand)
def push(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder that build, tune or onnx wrote.")],
    repo_id: Annotated[str, Argument(metavar="ORG/NAME", help="Repository on the Hub; created if it is missing.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, Option(metavar="BRANCH", help="Branch to write to. [default: main]")] = None,
    create_pr: Annotated[bool, Option("--create-pr", help="Open a pull request instead of writing.")] = False,
    message: Annotated[str | None, Option(metavar="TEXT", help="Commit message.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Verify, list the files, and send nothing.")] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Verify a model, and publish it on the Hub.

    It uses the token of hf auth login, or HF_TOKEN.
    """
    from ..hub import push as push_model

    options: dict[str, Any] = {"private": private, "revision": revision, "create_pr": create_pr, "message": message}
    options |= {"dry_run": dry_run, "trust_remote_code": trust_remote_code}
    quiet()
    push_model(folder, repo_id, **options)


@app.command(cls=CheckedCommand)
def zoo(as_json: AsJson = False) -> None:
    """List the models of the zoo. st-reba info zoo:NAME shows a recipe, st-reba build zoo:NAME OUT builds its model."""
    from ..recipe import recipe
    from ..recipe import zoo as names

    found = [recipe(each) for each in names()]
    if as_json:
        return _print([{"name": each.name, **each.to_dict()} for each in found], as_json)
    rows: list[tuple[str, ...]] = [("NAME", "BASE", "SIZE", "LICENCE", "STATUS", "METHOD")]
    for each in found:
        method = ",".join(f"{key}={value}" for key, value in each.method.items() if key != "name")
        facts = (str(each.about.get(name, "-")) for name in ("parameters", "licence"))
        rows.append((each.name, each.base, *facts, each.status, f"{each.method['name']}{':' * bool(method)}{method}"))
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    for row in rows:
        print("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command(cls=CheckedCommand)
def onnx(
    model: Model,
    out: Out,
    task: Annotated[
        Literal["query", "document", "similarity"] | None,
        Option(help="Export what embeds queries, documents, or (similarity) all else, if these differ."),
    ] = None,
    quantize: Annotated[str | None, Option(metavar="TYPE", help="int8: add a graph in 8 bits, and measure it.")] = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Export a saved model as one ONNX graph, which needs neither torch nor st_reba."""
    from ..onnx import export
    from ..safety import load

    quiet()
    loaded = load(model, device="cpu", dtype="float32", trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"task": task, "quantize": quantize, "overwrite": overwrite}
    _print(export(loaded, out, **options), as_json)


def _told(place: str, model: Any) -> dict[str, Any]:
    from ..hub.card_method import written_templates
    from ..methods import method_of
    from ..modules import RepeatTransformer

    first, method = model[0], method_of(model)
    told: dict[str, Any] = {"model": place, "method": str(method) if method else None}
    if isinstance(first, RepeatTransformer):
        told |= {"base": first.base_model, "revision": first.base_revision, "layers": first.depth}
        told |= {"masks": getattr(first, "layer_masks", None), "copies": first.copies}
        templates = written_templates(first)
        if all(texts == templates["document"] for texts in templates.values()):
            told["template"] = templates["document"]
        else:
            told["templates"] = templates
        fields = {name: "-" for name in first.fields("document")}
        told["prompt computed"] = "once for all texts" if first.can_share() else "with every text"
        told["longest text, in tokens"] = first.budget(task="document", **fields)
    told |= {"dimensions": model.get_embedding_dimension(), "modules": [type(module).__name__ for module in model]}
    told |= {"parameters": sum(each.numel() for each in model.parameters()), "prompts": model.prompts}
    return told


def _print(value: Any, as_json: bool) -> None:
    text = dumped(value if as_json else {name: each for name, each in value.items() if each is not None}, indent=1)
    options: dict[str, Any] = {"allow_unicode": True, "default_flow_style": None, "sort_keys": False, "width": 1000}
    typer.echo(text if as_json else yaml.safe_dump(json.loads(text), **options).rstrip())
