"""Serve the page on this machine; a browser that opens it asks no other."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..methods import Method
from ..optional import required
from ..serve.access import LOOPBACK, host_name
from ..serve.run import bound, run

DEFAULT_MODELS = ("mini classical:pooling=mean", "mini echo:pooling=mean", "mini reba:pooling=mean")
LANGUAGES = {"en": "English", "zh": "中文"}
MAX_MODELS = 6
_FONTS = ("system-ui", "Segoe UI", "Helvetica Neue", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif")
# The browser refuses whatever is not from this server.
_POLICY = b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; form-action 'self'"


def launch(
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    index: str | os.PathLike[str] | None = None,
    open_browser: bool = False,
    **options: Any,
) -> None:
    """Serve the page until it is interrupted. Nothing is fetched from elsewhere, except models on the Hub.

    Args:
        models: One to six, each a saved model (folder or Hub id); a base, alone or with a method behind a space, as
            ``"mini echo:pooling=mean"``; ``"zoo:NAME"``; or a recipe's file.
        host: Address; ``"0.0.0.0"`` serves to everybody who reaches this machine.
        port: Port; 0 takes a free one.
        index: Folder of an index to search in.
        open_browser: Open the page.
        **options: ``device``, ``dtype`` and ``trust_remote_code``, as for :func:`st_reba.build`.

    Raises:
        ImportError: gradio is not installed.
        ValueError: A model is unknown.
        OSError: The port is taken, or a model or the index is not found.

    Example:
        >>> launch(["mini", "mini echo:pooling=mean"])  # doctest: +SKIP
    """
    named = read_names(models)
    required("gradio", "explore")
    with bound(host, port) as taken:
        from ..index import Index
        from .compute import open_model

        opened = {name: open_model(base, method, **options) for name, (base, method) in named.items()}
        searched = None if index is None else Index.open(index, **options)
        app = make_app(opened, searched, LOOPBACK if host in LOOPBACK else ())
        if open_browser:
            threading.Timer(1.0, webbrowser.open, [f"http://localhost:{taken.getsockname()[1]}"]).start()
        run(app, taken)


def read_names(names: Sequence[str]) -> dict[str, tuple[str, Method | None]]:
    """Base and method by the name that is shown, before anything is loaded."""
    if not 1 <= len(names) <= MAX_MODELS:
        raise ValueError(f"{len(names)} models: the page shows 1 to {MAX_MODELS}.")
    found: dict[str, tuple[str, Method | None]] = {}
    for name in names:
        base, _, method = (name, "", "") if os.path.exists(name) else name.strip().partition(" ")
        # Of a path, its last part is shown, unless two are alike.
        shown = name.replace(base, os.path.basename(os.path.abspath(base)), 1) if os.path.exists(base) else name
        found[name if shown in found else shown] = base, Method.parse(method.strip()) if method else None
    return found


def make_app(models: Mapping[str, Any], index: Any, hosts: Sequence[str] = ()) -> Any:
    """The page in each language, below ``/en`` and ``/zh``, as an ASGI application that answers ``hosts`` alone."""
    from .page import Page, gr

    fastapi: Any = import_module("fastapi")
    served = fastapi.FastAPI(openapi_url=None)
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="slate", font=_FONTS, font_mono=("monospace",))
    looks: dict[str, Any] = {"theme": theme, "css_paths": Path(__file__).with_name("page.css")}
    quiet: dict[str, Any] = {"footer_links": [], "ssr_mode": False, "enable_monitoring": False}

    def start(request: Any) -> Any:
        chinese = request.headers.get("accept-language", "").startswith("zh")
        return fastapi.responses.RedirectResponse("zh/" if chinese else "en/")

    served.add_route("/", start)
    for each in LANGUAGES:
        gr.mount_gradio_app(served, Page(models, index, each).blocks, path=f"/{each}", **looks, **quiet)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def guarded(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY)]
            await send(message)

        name = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        refused = scope["type"] == "http" and hosts and host_name(name) not in hosts  # of a page elsewhere
        await (fastapi.responses.Response(status_code=403) if refused else served)(scope, receive, guarded)

    return app
