"""The commands that check and publish a model: verify, push, onnx."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import places
from .app import app, command
from .options import MODEL, OUT, OVERWRITE, REVISION, TASK, TRUST, Output, Running, arg, choice, opt

_PANEL = "Check and publish"


@command(app, _PANEL, interrupted="nothing was changed")
def verify(
    *,
    path: str = arg("PATH", "A folder of build, onnx or index build, or a Hub id."),
    run: Running,
    out: Output,
    revision: str | None = REVISION,
) -> int:
    """Check that a saved model gives the same vectors as when it was saved, or an index against its digests.

    The exit code is 1 where they differ.

    Examples:
        st-reba verify my_model
        st-reba verify organization/model --revision main --json
    """
    if places.kind_of(path) == "an index":
        from .index import verify_index

        verify_index(Path(path), out)
        return 0
    places.expect_model("PATH", path)
    from ..hub.verify import verify as verify_model

    report = verify_model(
        path, device=run.device, dtype=run.dtype, revision=revision, trust_remote_code=run.trust_remote_code
    )
    out.report(report, report.to_dict(), indent=2)
    return 0 if report.ok else 1


@command(app, _PANEL)
def onnx(
    *,
    model: str = MODEL,
    folder: Path = OUT,
    out: Output,
    task: str | None = TASK,
    quantize: str | None = choice(
        None, ("int8",), "Also write onnx/model_quantized.onnx, and what it loses. Its vectors depend on their batch."
    ),
    texts: Path | None = opt(None, "Texts, one a line, to check and measure on.", "FILE"),
    overwrite: bool = OVERWRITE,
    trust_remote_code: bool = TRUST,
) -> None:
    """Write a saved model as one ONNX graph, in a folder that needs no st_reba.

    It runs in onnxruntime with tokenizers alone, in a browser or node with transformers.js, and in
    sentence-transformers' onnx and openvino backends. st-reba verify and st-reba push take the folder like a saved
    model's. --task says whose template and prompt the graph holds, where those of queries and documents differ.

    Examples:
        st-reba onnx my_model my_model_onnx
        st-reba onnx my_model my_onnx8 --quantize int8 --texts sample.txt
    """
    places.expect_model("MODEL", model)
    places.expect_free(folder, "an exported model", overwrite=overwrite)
    lines: list[str] = []
    if texts is not None:
        places.expect("--texts", texts, "a file")
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    from ..hub.onnx import check_out, export_onnx
    from ..persistence import load

    check_out(folder, overwrite=overwrite)
    loaded = load(model, device="cpu", dtype="float32", trust_remote_code=trust_remote_code)
    out.say("Tracing the model, which takes about half a minute ...")
    report = export_onnx(
        loaded,
        folder,
        task=task,  # type: ignore[arg-type]
        overwrite=overwrite,
        int8=quantize == "int8",
        texts=lines,
    )
    said = [
        f"{folder}: {report['graph']}, {sum(report['bytes'].values()):,} bytes",
        f"vectors differ from torch's by {report['difference']:.1e} of their scale",
    ]
    if int8 := report.get("int8"):
        said.append(f"{int8['graph']}, {int8['bytes']['int8']:,} bytes; cosines to float32:")
        for name in ("alone_against_float32", "batched_against_float32", "batched_against_alone"):
            said.append(f"  {name.replace('_', ' ')}: min {int8[name]['min']}, mean {int8[name]['mean']}")
    out.report("\n".join(said), report, indent=2)


@command(
    app,
    _PANEL,
    interrupted="the repository holds what it held, or all of the push; run the same command again",
    names={"weights": "--no-weights"},
)
def push(
    *,
    source: str = arg("SOURCE", "A saved or exported model, a Space, a name of the zoo, or a recipe.yaml."),
    repo_id: str = arg("ORG/NAME", "The repository; made where it is missing."),
    run: Running,
    out: Output,
    private: bool = opt(False, "Make a new repository private."),
    revision: str | None = opt(None, "The branch to write to; made from main where it is missing.", "BRANCH"),
    message: str | None = opt(None, "Of the commit.", "TEXT"),
    create_pr: bool = opt(False, "Open a pull request instead of writing to main."),
    dry_run: bool = opt(False, "Say what would be sent and removed; send nothing."),
    no_weights: bool = opt(False, "Of a recipe: publish no weights, only the name of the pinned base."),
    with_endpoint: bool = opt(False, "Add handler.py, with which Hugging Face's Inference Endpoints serve the model."),
) -> None:
    """Publish a model or a Space on the Hub: check it, show what will be sent, and send it in one commit.

    The token is that of hf auth login, or HF_TOKEN. If a push was cut off, run it again to continue.

    Examples:
        st-reba push my_model org/my-model --dry-run
        st-reba push llama2-chinese-reba org/llama2-chinese-reba --no-weights
    """
    building = {
        "dtype": run.dtype,
        "device": run.device,
        "trust_remote_code": run.trust_remote_code or None,
    }
    folder = Path(source).is_dir()
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f"ORG/NAME {repo_id!r}: write the repository as ORG/NAME, as org/my-model.")
    if folder and (no_weights or any(building.values())):
        raise ValueError(
            "--no-weights, --dtype, --device and --trust-remote-code go with a recipe, which is built first; a folder "
            "is published as it is."
        )
    if places.kind_of(source) == "a Space":
        given = {"--revision": revision, "--create-pr": create_pr, "--with-endpoint": with_endpoint}
        if wrong := next((name for name, value in given.items() if value), None):
            raise ValueError(f"{wrong} does not go with a Space, which goes to main. Drop it.")
        from ..hub.spaces import push_space

        sent = push_space(source, repo_id, private=private, message=message, dry_run=dry_run, say=out.say)
        return out.answer("", asdict(sent), indent=2) if out.json else None
    places.expect_source("SOURCE", source)
    if not folder:
        from ..zoo import load

        load(source.removeprefix("zoo:"))
    from ..hub.push import push as push_folder
    from ..hub.push import push_recipe

    how: dict[str, Any] = {
        "private": private,
        "revision": revision,
        "create_pr": create_pr,
        "message": message,
        "dry_run": dry_run,
        "with_endpoint": with_endpoint,
        "say": out.say,
    }
    if folder:
        pushed = push_folder(source, repo_id, **how)
    else:
        source = source.removeprefix("zoo:")
        pushed = push_recipe(source, repo_id, weights=not no_weights, building=building, **how)
    if out.json:
        out.answer("", asdict(pushed), indent=2)
