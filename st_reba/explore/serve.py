"""Serve the page on this machine, in such a way that a browser asks no other."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..optional import required
from ..ports import check_port, show_address
from . import compute
from .names import DEFAULT, check_language
from .page import Page

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..index import Index

_FONTS = ("system-ui", "Segoe UI", "Helvetica Neue", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", "sans-serif")
# The browser refuses whatever is not from this server.
_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; form-action 'self'"


def launch(
    models: Sequence[str] = DEFAULT,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    index: str | os.PathLike[str] | None = None,
    language: str | None = None,
    open_browser: bool = False,
    ready: Callable[[str], object] = show_address,
    **running: Any,
) -> None:
    """Serve the page until it is interrupted. Nothing is fetched from elsewhere, but for models that are on the Hub.

    Args:
        models: One to six: each a saved model's folder or Hub id; a base, alone or with a method behind a space, as
            ``"mini echo:pooling=mean"``; ``"zoo:NAME"``; or a recipe's file. Each is loaded once, by itself.
        host: Where it is served; of ``"0.0.0.0"``, everybody who reaches this machine can use it.
        port: Its port.
        index: The folder of an index to search in.
        language: ``"en"`` or ``"zh"``; None: the reader's browser says it.
        open_browser: Open the page.
        ready: Is told the address; by default it is printed.
        **running: ``device``, ``dtype`` and ``trust_remote_code``, as :func:`st_reba.build` takes them.

    Raises:
        ImportError: gradio is not installed.
        ValueError: A model or the language is not known, or the index is another model's.
        OSError: The port is taken, or a model or the index was not found.
    """
    uvicorn = required("uvicorn", "explore")
    check_language(language)
    check_port(host, port)
    opened = compute.open_models(models, **running)
    searched = None if index is None else compute.open_index(index, opened, **running)
    app = make_app(opened, searched, language)
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    ready(url)
    if open_browser:
        threading.Timer(1.0, webbrowser.open, [url]).start()
    uvicorn.run(app, host=host, port=port, log_level="warning")


def make_app(models: Mapping[str, SentenceTransformer], index: Index | None, language: str | None) -> Any:
    """The page as an ASGI application that lets a browser load nothing from elsewhere."""
    gr = required("gradio", "explore")
    blocks = Page(gr, models, index, language).blocks
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="slate", font=_FONTS, font_mono=("monospace",))
    served = required("fastapi", "explore").FastAPI(openapi_url=None)
    gr.mount_gradio_app(
        served,
        blocks,
        path="",
        footer_links=[],
        ssr_mode=False,
        enable_monitoring=False,
        theme=theme,
        css_paths=Path(__file__).with_name("page.css"),
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def guarded(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY.encode())]
            await send(message)

        await served(scope, receive, guarded)

    return app
