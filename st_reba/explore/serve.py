"""Serve the page on this machine; a browser that opens it asks no other server."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..methods import Method
from ..optional import required
from ..serve.hosts import LOOPBACK, bind_socket, host_name
from ..serve.run import run_server

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..index import Index

DEFAULT_MODELS = (
    "mini classical:pooling=mean",
    "mini echo:pooling=mean",
    "mini reba:pooling=mean",
)
MAX_MODELS = 6
_FONTS = (
    "system-ui",
    "Segoe UI",
    "Helvetica Neue",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans CJK SC",
    "sans-serif",
)
# The browser refuses whatever is not from this server.
_CONTENT_POLICY = (
    b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; form-action 'self'"
)


def launch(
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    index: str | os.PathLike[str] | None = None,
    open_browser: bool = False,
    **options: Any,
) -> None:
    """Serve the page until it is interrupted; only models are fetched, from the Hub.

    Args:
        models: One to six, each a saved model (folder or Hub id); a base, alone or with a method
            after a space, such as ``"mini echo:pooling=mean"``; ``"zoo:NAME"``; or a recipe's file.
        host: Address; ``"0.0.0.0"`` serves everybody who can reach this machine.
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
    named_models = read_names(models)
    required("gradio", "explore")
    with bind_socket(host, port) as bound_socket:
        from ..index import Index
        from .compute import open_model

        opened_models = {
            model_name: open_model(base, method, **options)
            for model_name, (base, method) in named_models.items()
        }
        opened_index = None if index is None else Index.open(index, **options)
        allowed_hosts = LOOPBACK if host in LOOPBACK else ()
        app = make_app(opened_models, opened_index, allowed_hosts)
        if open_browser:
            bound_port = bound_socket.getsockname()[1]
            threading.Timer(1.0, webbrowser.open, [f"http://localhost:{bound_port}"]).start()
        run_server(app, bound_socket)


def read_names(
    model_names: Sequence[str],
) -> dict[str, tuple[str, Method | None]]:
    """Base and method by the displayed name, before anything is loaded."""
    if not 1 <= len(model_names) <= MAX_MODELS:
        raise ValueError(f"{len(model_names)} models: the page shows 1 to {MAX_MODELS}.")
    models: dict[str, tuple[str, Method | None]] = {}
    for model_name in model_names:
        base, method_text = model_name, ""
        if not os.path.exists(model_name):
            base, _, method_text = model_name.strip().partition(" ")
        displayed_name = model_name
        if os.path.exists(base):
            folder_name = os.path.basename(os.path.abspath(base))
            displayed_name = model_name.replace(base, folder_name, 1)
        if displayed_name in models:
            displayed_name = model_name
        method = Method.parse(method_text.strip()) if method_text else None
        models[displayed_name] = base, method
    return models


def make_app(
    models: Mapping[str, SentenceTransformer],
    index: Index | None,
    allowed_hosts: Sequence[str] = (),
) -> ASGIApp:
    """The page in each language, below ``/en`` and ``/zh``, as an ASGI application.

    ``allowed_hosts`` are those of `_guard`.
    """
    from .draw import LANGUAGES
    from .page import Page, gr

    fastapi: Any = import_module("fastapi")
    pages: Any = fastapi.FastAPI(openapi_url=None)

    def redirect_to_language(request: Any) -> Any:
        is_chinese = request.headers.get("accept-language", "").startswith("zh")
        return fastapi.responses.RedirectResponse("zh/" if is_chinese else "en/")

    pages.add_route("/", redirect_to_language)
    theme = gr.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=_FONTS,
        font_mono=("monospace",),
    )
    for language in LANGUAGES:
        gr.mount_gradio_app(
            pages,
            Page(models, index, language).blocks,
            path=f"/{language}",
            theme=theme,
            css_paths=Path(__file__).with_name("page.css"),
            footer_links=[],
            ssr_mode=False,
            enable_monitoring=False,
        )

    return _guard(pages, allowed_hosts)


def _guard(pages: ASGIApp, allowed_hosts: Sequence[str]) -> ASGIApp:
    """Send the content policy with every answer of an application.

    If there are ``allowed_hosts``, only requests to those names are answered: a web page elsewhere
    can make a host name of its own point to this machine.
    """
    refusal = import_module("starlette.responses").Response(status_code=403)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy_header = (b"content-security-policy", _CONTENT_POLICY)
                message["headers"] = [*message["headers"], policy_header]
            await send(message)

        application = pages
        if scope["type"] == "http" and allowed_hosts:
            header = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if host_name(header) not in allowed_hosts:
                application = refusal
        await application(scope, receive, send_with_policy)

    return app
