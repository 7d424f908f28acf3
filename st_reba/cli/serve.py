"""Commands that serve a model: serve and explore."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .app import command, silence_loading
from .options import Device, Dtype, Model, Trust

Host = Annotated[
    str,
    Option(
        metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is reachable from other machines."
    ),
]
Port = Annotated[int, Option(metavar="N", min=0, max=65535, help="Port; 0 picks a free one.")]


@command
def serve(
    model: Model,
    index_folder: Annotated[
        Path | None,
        Option("--index", metavar="FOLDER", help="Index of this model, for /v1/search."),
    ] = None,
    model_name: Annotated[
        str | None,
        Option("--name", metavar="NAME", help="Model name for clients. [default: the folder's]"),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    batch_size: Annotated[int, Option(metavar="N", min=1, help="Most texts to run together.")] = 32,
    max_body: Annotated[
        int, Option(metavar="MIB", min=1, help="Largest request body, in MiB (else 413).")
    ] = 4,
    max_tokens: Annotated[
        int, Option(metavar="N", min=1, help="Most token positions in a request (else 422).")
    ] = 300_000,
    queue: Annotated[
        int, Option(metavar="N", min=1, help="Most texts waiting, over all requests (else 429).")
    ] = 8192,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Serve a model to OpenAI's clients: /v1/embeddings, /v1/models, /health, /metrics.

    Clients name the model NAME, or NAME:query and NAME:document to apply its prompts. If the
    environment variable ST_REBA_API_KEY holds keys, separated by commas, they must send one.
    SIGTERM stops it after the requests that it has accepted. Example: st-reba serve my_model
    --index my_index
    """
    # The tokenizer's own threads would compete with torch's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from ..serve import serve as serve_model

    silence_loading()
    serve_model(
        model,
        index=index_folder,
        host=host,
        port=port,
        name=model_name,
        limits={
            "batch_size": batch_size,
            "max_body": max_body,
            "max_tokens": max_tokens,
            "queue": queue,
        },
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )


@command
def explore(
    model_names: Annotated[
        list[str] | None,
        Argument(
            metavar="MODEL",
            help="Up to six: saved models, bases, 'BASE METHOD', zoo:NAME or recipe.yaml.",
        ),
    ] = None,
    index_folder: Annotated[
        Path | None, Option("--index", metavar="FOLDER", help="Index to search in.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 7860,
    open_browser: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Open a page that compares methods on your sentences, looks inside a text, and searches.

    Nothing that you enter leaves this machine. Example: st-reba explore my_model "mini
    echo:pooling=mean" --open
    """
    from ..explore import DEFAULT_MODELS, launch

    silence_loading()
    launch(
        model_names or DEFAULT_MODELS,
        index=index_folder,
        host=host,
        port=port,
        open_browser=open_browser,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
