"""The command that serves a model: serve."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import places
from .app import app, command
from .options import BATCH_TOKENS, MODEL, Output, Running, opt


@dataclass
class Joined:
    """How requests are joined."""

    panel: ClassVar[str] = "How requests are joined"
    batch_size: int = opt(32, "Texts of waiting requests that run together.", "N", min=1)
    delay: float = opt(2.0, "Milliseconds that a batch waits for more where it is not full.", "MS", min=1)
    batch_tokens: int = opt(BATCH_TOKENS, "Token positions a forward pass, with all copies of a text.", "N", min=1)


@dataclass
class Limits:
    """What is refused."""

    panel: ClassVar[str] = "Limits"
    max_body: int = opt(4, "MiB of a request (413).", "MIB", min=1)
    max_texts: int = opt(2048, "Texts of a request (422).", "N", min=1)
    max_tokens: int = opt(300_000, "Token positions of a request (422).", "N", min=1)
    queue: int = opt(8192, "Texts that may wait, over all requests (429).", "N", min=1)


@command(app, "Search", interrupted="all that was accepted is answered")
def serve(
    *,
    model: str = MODEL,
    run: Running,
    joined: Joined,
    limits: Limits,
    index: Path | None = opt(None, "An index of this model: adds /v1/search.", "FOLDER"),
    name: str | None = opt(None, "What clients call the model; without: as its folder is called.", "NAME"),
    host: str = opt("127.0.0.1", "Where it is served; 0.0.0.0: to everybody who reaches this machine.", "ADDRESS"),
    port: int = opt(8080, "Its port.", "N", min=1, max=65535),
    threads: int | None = opt(None, "Of torch; without: OMP_NUM_THREADS, or all processors but one.", "N", min=1),
    out: Output,
) -> None:
    """Serve a model over HTTP, as OpenAI's embeddings are: /v1/embeddings, /v1/models, /health, /metrics.

    Clients call the model NAME, or NAME:query and NAME:document for its prompts. Requests that wait are joined into one
    batch. Clients must send a key if the environment variable ST_REBA_API_KEY holds one or more, with commas between.
    SIGTERM finishes what was accepted. Needs the extra serve: pip install 'st-reba[serve]'

    Examples:
        st-reba serve my_model
        st-reba serve my_model --index my_index --host 0.0.0.0 --port 80
    """
    places.expect_model("MODEL", model)
    if index is not None:
        places.expect("--index", index, "an index")
    if places.kind_of(model) == "an exported model":
        raise ValueError(f"MODEL {model!r} is an exported model; serve the saved model that it was made of.")
    # As in scripts: the tokenizer's own threads would compete with torch's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from ..serve import Settings
    from ..serve import serve as run_server

    run_server(
        model,
        index=index,
        host=host,
        port=port,
        name=name,
        threads=threads,
        settings=Settings(**vars(joined), **vars(limits)),
        device=run.device,
        dtype=run.dtype,
        trust_remote_code=run.trust_remote_code,
        ready=out.address,
    )
