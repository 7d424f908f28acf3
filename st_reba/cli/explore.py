"""The commands of the page in the browser: explore, space."""

from __future__ import annotations

from pathlib import Path

from . import places
from .app import app, command
from .options import OVERWRITE, Output, Running, arg, choice, opt

_LANGUAGES = ("en", "zh")
_MODELS = (
    "Each a saved model (folder or Hub id); a base, alone or with a method as 'mini echo:pooling=mean'; zoo:NAME; or a "
    "recipe.yaml."
)
_LANGUAGE = choice(None, _LANGUAGES, "Of the page, where it can be changed. [default: the browser's]")


@command(app, "Choose and look inside", interrupted="the page is closed")
def explore(
    *,
    models: list[str] | None = arg("[MODEL]", f"{_MODELS} Up to six. [default: three methods on mini]", None),
    run: Running,
    index: Path | None = opt(None, "An index to search in, beside pasted texts.", "FOLDER"),
    language: str | None = _LANGUAGE,
    host: str = opt(
        "127.0.0.1", "The address to serve on; with 0.0.0.0 everybody who reaches this machine can use it.", "ADDRESS"
    ),
    port: int = opt(7860, "The port.", "N", min=1, max=65535),
    open_browser: bool = opt(False, "Open the page.", None, "--open"),
    out: Output,
) -> None:
    """Open a page that compares methods on your sentences, looks inside a text, and searches. Ctrl+C ends it.

    Nothing that is entered leaves the machine. Needs the extra explore: pip install 'st-reba[explore]'

    Examples:
        st-reba explore
        st-reba explore my_model "mini echo:pooling=mean" --index my_index --open
    """
    from ..explore import names

    chosen = names.checked(models or names.DEFAULT)
    for model in chosen:
        places.expect_base("MODEL", names.base_and_method(model)[0])
    if index is not None:
        places.expect("--index", index, "an index")
    names.check_installed()
    from ..explore import launch

    launch(
        chosen,
        host=host,
        port=port,
        index=index,
        language=language,
        open_browser=open_browser,
        device=run.device,
        dtype=run.dtype,
        trust_remote_code=run.trust_remote_code,
        ready=out.address,
    )


@command(app, "Check and publish")
def space(
    *,
    folder: Path = arg("FOLDER", "The folder to write."),
    models: list[str] = arg("MODEL", f"{_MODELS} It must be on the Hub, or mini."),
    out: Output,
    title: str = opt("Explore embeddings", "The Space's title.", "TEXT"),
    language: str | None = _LANGUAGE,
    overwrite: bool = OVERWRITE,
) -> None:
    """Write the page of st-reba explore as a Hugging Face Space, which st-reba push publishes.

    Examples:
        st-reba space my_space mini "mini echo:pooling=mean"
        st-reba space my_space org/my-model --title "My model" --language zh
    """
    from ..explore import write_space

    written = write_space(folder, models, title=title, language=language, overwrite=overwrite)
    out.report(
        f"{written}: a Space of {len(models)} models. Publish it: st-reba push {written} ORG/NAME",
        {"folder": str(written), "models": models},
    )
