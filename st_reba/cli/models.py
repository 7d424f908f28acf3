"""Commands for models: build, info, verify, push, zoo, onnx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .app import app

Model = Annotated[str, Argument(metavar="MODEL", help="Saved model: a folder or Hub id.")]
Out = Annotated[Path, Argument(metavar="OUT", help="Folder to write.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]
Device = Annotated[str | None, Option(metavar="DEVICE", help="Device of the model, such as cuda. [default: the best]")]
Dtype = Annotated[str | None, Option(metavar="TYPE", help="Type of the weights: float32, bfloat16 or float16.")]
Revision = Annotated[str | None, Option(metavar="REVISION", help="Branch, tag or commit on the Hub.")]
Trust = Annotated[bool, Option("--trust-remote-code", help="Run code from the model's repository.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]


@app.command()
def build(
    base: Annotated[str, Argument(metavar="BASE", help="mini, a folder, Hub id, GGUF file, recipe.yaml or zoo:NAME.")],
    out: Out,
    method: Annotated[
        str | None, Option(help="reba, echo, classical, prompteol, nosink; its short form; auto.")
    ] = None,
    pooling: Annotated[str | None, Option(help="last, mean or cls.")] = None,
    repeats: Annotated[int | None, Option(help="Copies of the text. [default: 2]")] = None,
    template: Annotated[
        list[str] | None, Option(help="Text with {text} slots, or a name. Repeated: an ensemble.")
    ] = None,
    instruction: Annotated[str | None, Option(help="Value of the template's {instruction}.")] = None,
    setting: Annotated[str | None, Option(help="NoSink's masks, as mask0-bidir.")] = None,
    k: Annotated[str | None, Option(help="Layers whose masks change: a number from the top, all, or [1,2].")] = None,
    k0: Annotated[int | None, Option(help="Topmost of them that hide the sink.")] = None,
    layer: Annotated[str | None, Option(help="Layer to read; [first,last] joins several.")] = None,
    chunk: Annotated[int | None, Option(help="Tokens of the pieces of long texts, by ReBA.")] = None,
    filter: Annotated[str | None, Option(metavar="FILE", help="Fitted filter.")] = None,
    set: Annotated[
        list[str] | None, Option(metavar="OPTION=VALUE", help="Any other option of Method. Repeatable.")
    ] = None,
    tokenizer: Annotated[str | None, Option(help="Folder or Hub id of another tokenizer.")] = None,
    prompt: Annotated[list[str] | None, Option(metavar="NAME=TEXT", help="Saved prompt. Repeatable.")] = None,
    texts: Annotated[Path | None, Option(metavar="FILE", help="Texts, one a line, for --method auto.")] = None,
    quantization: Annotated[str | None, Option(help="nf4 or int8, by bitsandbytes.")] = None,
    gguf_file: Annotated[str | None, Option(help="GGUF file in the folder or repository BASE.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn a base model into a text embedder, without training, and save it.

    Example: st-reba build mini my_model --method echo --pooling mean
    """
    from ..methods import read_value

    options: dict[str, Any] = {
        **{name: read_value(text) for name, text in _pairs(set, "--set").items()},
        **{"pooling": pooling, "repeats": repeats, "instruction": instruction, "setting": setting, "k0": k0},
        **{"chunk": chunk, "filter": filter, "tokenizer": tokenizer, "quantization": quantization},
        **{"gguf_file": gguf_file, "dtype": dtype, "device": device, "revision": revision},
        **{"k": k and read_value(k), "layer": layer and read_value(layer), "prompts": _pairs(prompt, "--prompt")},
        **{"template": template[0] if template and len(template) == 1 else template},
        **{"texts": texts and texts.read_text(encoding="utf-8").splitlines()},
        **{"trust_remote_code": trust_remote_code or None},
    }
    given = {name: value for name, value in options.items() if value not in (None, [], {})}
    from ..recipe import recipe_for

    found = recipe_for(base, given)
    facts: dict[str, Any] = (
        {"about": found.about, "name": found.name} if found and not method and not _methodical(given) else {}
    )
    from ..hub.save import check_free, save

    check_free(out, overwrite=overwrite)
    from .. import build as build_model

    model = build_model(base, method, **given)
    save(model, out, overwrite=overwrite, **facts)
    _print(_told(str(out), model), as_json)


@app.command()
def info(
    model: Annotated[str, Argument(metavar="MODEL", help="Saved model, Hub id, recipe.yaml or zoo:NAME.")],
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show what a model, a recipe or an index is: base, method, layers, masks, sizes, files."""
    if model.startswith("zoo:") or model.endswith((".yaml", ".yml")):
        return zoo(model, as_json)
    if Path(model, "index.sqlite").is_file():
        from ..index import Index

        return print(json.dumps(Index.open(model).info(), ensure_ascii=False, indent=1))
    from ..safety import load

    loaded = load(model, device="cpu", dtype="auto", revision=revision, trust_remote_code=trust_remote_code)
    _print(_told(model, loaded), as_json)


@app.command()
def verify(
    model: Model,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> int:
    """Compare a model with its golden vectors, and its code with the installed st_reba's; an index with its digests.

    Status 1: they differ.
    """
    if Path(model, "index.sqlite").is_file():
        from ..index import Index

        print(json.dumps(Index.open(model).verify(), ensure_ascii=False, indent=1))
        return 0
    from ..hub import verify as verify_model

    report = verify_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    print(json.dumps(report.to_dict(), ensure_ascii=False, indent=1) if as_json else report)
    return 0 if report.ok else 1


@app.command()
def push(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Folder that build or onnx wrote.")],
    repo_id: Annotated[str, Argument(metavar="ORG/NAME", help="Repository; made where it is missing.")],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, Option(metavar="BRANCH", help="Branch to write to. [default: main]")] = None,
    create_pr: Annotated[bool, Option("--create-pr", help="Open a pull request.")] = False,
    message: Annotated[str | None, Option(metavar="TEXT", help="Of the commit.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Verify, list the files, and send nothing.")] = False,
    with_endpoint: Annotated[bool, Option("--with-endpoint", help="Add handler.py, for Inference Endpoints.")] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Verify a model in a process of its own, and publish it on the Hub.

    The token is that of hf auth login, or HF_TOKEN.
    """
    from ..hub import push as push_model

    options: dict[str, Any] = {"private": private, "revision": revision, "create_pr": create_pr, "message": message}
    options |= {"dry_run": dry_run, "with_endpoint": with_endpoint, "trust_remote_code": trust_remote_code}
    push_model(folder, repo_id, **options)


@app.command()
def zoo(
    name: Annotated[str | None, Argument(metavar="NAME", help="Show this model's recipe; or a recipe.yaml.")] = None,
    as_json: Json = False,
) -> None:
    """List the models of the zoo, or show the recipe of one. st-reba build zoo:NAME OUT builds it."""
    from ..recipe import read_recipe
    from ..zoo import recipe
    from ..zoo import zoo as names

    if name is not None:
        yaml = name.endswith((".yaml", ".yml"))
        return _print((read_recipe(name) if yaml else recipe(name.removeprefix("zoo:"))).to_dict(), as_json)
    found = [recipe(each) for each in names()]
    if as_json:
        return _print([{"name": each.name, **each.to_dict()} for each in found], as_json)
    for each in found:
        method = ",".join(f"{key}={value}" for key, value in each.method.items() if key != "name")
        print(f"{each.name:38} {each.base:44} {each.status:12} {each.method['name']}{':' * bool(method)}{method}")


@app.command()
def onnx(
    model: Model,
    out: Out,
    task: Annotated[str | None, Option(help="query or document, where their templates or prompts differ.")] = None,
    quantize: Annotated[str | None, Option(help="int8: also a graph in 8 bits, and what it loses.")] = None,
    texts: Annotated[Path | None, Option(metavar="FILE", help="Texts, one a line, to measure 8 bits on.")] = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a saved model as one ONNX graph, which needs neither torch nor st_reba."""
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: query or document.")
    from ..onnx import export
    from ..safety import load

    lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()] if texts else []
    loaded = load(model, device="cpu", dtype="float32", trust_remote_code=trust_remote_code)
    options: dict[str, Any] = {"task": task, "quantize": quantize, "texts": lines, "overwrite": overwrite}
    _print(export(loaded, out, **options), as_json)


def _told(place: str, model: Any) -> dict[str, Any]:
    """What `info` shows of a loaded model."""
    from ..methods import method_of

    first, method = model[0], method_of(model)
    told: dict[str, Any] = {"model": place, "method": str(method) if method else None}
    if hasattr(first, "base_model"):
        told |= {"base": first.base_model, "revision": first.base_revision, "layers": first.depth}
        told |= {"masks": getattr(first, "layer_masks", None), "copies": first.copies, "templates": first.rows}
        fields = {name: "-" for name in first.fields("document")}
        told["tokens a text"] = first.budget(task="document", **fields)
    told |= {"dimensions": model.get_embedding_dimension(), "modules": [type(module).__name__ for module in model]}
    told |= {"parameters": sum(each.numel() for each in model.parameters()), "prompts": model.prompts}
    folder = Path(place)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    told["files"] = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return told


def _methodical(given: dict[str, Any]) -> bool:
    """Whether options change what a recipe computes, so that its facts do not hold."""
    from ..methods import OPTIONS

    return bool({*OPTIONS, "tokenizer", "quantization", "gguf_file", "revision", "prompts"} & given.keys())


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    for each in given or []:
        if "=" not in each.lstrip("="):
            raise ValueError(f"{option} {each!r}: write name=value.")
    return dict(each.split("=", 1) for each in given or [])


def _print(value: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False, indent=1, default=str))
        return
    for key, each in value.items():
        if isinstance(each, dict):
            typer.echo("\n".join([f"{key}:", *(f"  {name}: {one}" for name, one in each.items())]))
        elif each is not None:
            typer.echo(f"{key}: {each}")
