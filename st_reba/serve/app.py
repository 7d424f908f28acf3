"""ASGI application: ``/v1/embeddings``, ``/v1/models``, ``/v1/search``, ``/health`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .access import check_keys, host_name, key_is_known
from .joining import Joining
from .requests import EmbeddingRequest, Refusal, SearchRequest, as_openai, model_names, unknown_model

logger = logging.getLogger(__name__)
_Handler = Callable[[Request], Awaitable[Response]]
_MIB = 2**20
# Seconds within which a body must arrive.
_SECONDS = 30.0


class EmbeddingServer(Starlette):
    """Application for any ASGI server.

    Args:
        model: The SentenceTransformer.
        name: Name of the model for clients.
        index: Index of this model, for ``/v1/search``.
        keys: API keys, one of which must be sent.
        hosts: The only host names that are answered: a web page can give a name of its own this machine's address.
        batch_size: Texts of waiting requests that run together.
        max_body: MiB of a request; 413 beyond.
        max_tokens: Token positions of a request, with all copies, template and prompt; 422 beyond.
        queue: Texts that may wait, over all requests; 429 beyond.

    Raises:
        ValueError: A key is empty.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        *,
        index: Any = None,
        keys: Sequence[str] = (),
        hosts: Sequence[str] = (),
        batch_size: int = 32,
        max_body: int = 4,
        max_tokens: int = 300_000,
        queue: int = 8192,
    ) -> None:
        self.name, self.index, self.hosts, self.max_body = name, index, hosts, max_body
        check_keys(keys)
        # As the environment holds them, whatever its encoding.
        self.keys = [key.encode("utf-8", "surrogateescape") for key in keys]
        self.dimension = int(model.get_embedding_dimension())
        self.started = int(time.time())
        self.held = 0  # bytes of bodies that are being received
        # A registry for each application: a process may hold several.
        self.registry = to = prometheus.CollectorRegistry()
        self.seconds = prometheus.Histogram("st_reba_request_seconds", "Answers.", ["path", "status"], registry=to)
        self.tokens = prometheus.Counter("st_reba_tokens", "Token positions encoded.", registry=to)
        about_cuts = "Texts longer than the model reads, whose end was cut."
        self.cut = prometheus.Counter("st_reba_cut_texts", about_cuts, registry=to)
        sizes = [2**n for n in range(9)]
        batch = prometheus.Histogram("st_reba_batch_texts", "Texts of a batch.", buckets=sizes, registry=to)
        self.joining = Joining(model, batch_size, max_tokens, queue, batch.observe)
        waiting = prometheus.Gauge("st_reba_waiting_texts", "Texts accepted and not answered.", registry=to)
        waiting.set_function(lambda: self.joining.waiting)
        routes = [self.guarded("/health", self.health, needs_key=False)]
        routes += [self.guarded("/metrics", self.metrics), self.guarded("/v1/models", self.models)]
        routes.append(self.guarded("/v1/models/{id:path}", self.describe_model))
        routes.append(self.guarded("/v1/embeddings", self.embed, "POST"))
        if index is not None:
            routes.append(self.guarded("/v1/search", self.search, "POST"))
        super().__init__(routes=routes, exception_handlers={HTTPException: as_openai})

    def guarded(self, path: str, handler: _Handler, method: str = "GET", *, needs_key: bool = True) -> Route:
        """A route that checks the caller, measures the answer, and turns exceptions into errors of OpenAI's form."""

        async def answer(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self.check_host(request)
                if needs_key:
                    self.check_key(request)
                response = await handler(request)
            except HTTPException as error:
                response = await as_openai(request, error)
            except Exception:
                logger.exception("%s failed", path)
                response = await as_openai(request, Refusal(500, "The server failed at this request; see its log."))
            self.seconds.labels(path, response.status_code).observe(time.perf_counter() - start)
            return response

        return Route(path, answer, methods=[method])

    def check_host(self, request: Request) -> None:
        if self.hosts and (host := host_name(request.headers.get("host", ""))) not in self.hosts:
            known = ", ".join(self.hosts)
            raise Refusal(403, f"Host {host!r}: without an API key, only {known} are served.")

    def check_key(self, request: Request) -> None:
        if self.keys and not key_is_known(request.headers.get("authorization", ""), self.keys):
            raise Refusal(401, "The API key is wrong: send Authorization: Bearer KEY.", code="invalid_api_key")

    async def read(self, request: Request) -> bytes:
        """Receive a body within the limits of size, time and memory."""
        if not request.headers.get("content-type", "").partition(";")[0].strip().lower().endswith("json"):
            # A web page can send other types from a reader's browser without asking this server first.
            raise Refusal(415, "Send Content-Type: application/json.")
        limit, body = self.max_body * _MIB, bytearray()
        too_large = Refusal(413, f"The body exceeds {self.max_body} MiB: send several requests.")
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_large  # before a client that waits for 100 Continue sends it
        try:
            async with asyncio.timeout(_SECONDS):
                async for chunk in request.stream():
                    self.held += len(chunk)
                    body += chunk
                    if len(body) > limit:
                        raise too_large
                    if self.held > max(64 * _MIB, 4 * limit):
                        raise Refusal(429, "Too much is being received: send this again later.")
        except (TimeoutError, ClientDisconnect):
            raise Refusal(408, f"The body did not arrive whole within {_SECONDS:.0f} s.") from None
        finally:
            self.held -= len(body)
        return bytes(body)

    async def embed(self, request: Request) -> Response:
        asked = EmbeddingRequest.parse(await self.read(request))
        task = asked.task(self.name)
        if (dimensions := asked.dimensions or self.dimension) > self.dimension:
            raise Refusal(400, f"dimensions={dimensions}: give a number up to {self.dimension}.", "dimensions")
        may_cut = asked.may_cut()
        encoded = await self.joining.encode(asked.input, task, request.is_disconnected, may_cut=may_cut)
        vectors, tokens = encoded.vectors, encoded.tokens
        self.tokens.inc(tokens)
        self.cut.inc(encoded.cut_texts)
        data: Any = vectors, dimensions, asked.encoding_format == "base64"
        # Large answers are written in another thread; for small ones, starting the thread costs more.
        data = await asyncio.to_thread(_embeddings, *data) if vectors.size > 2**13 else _embeddings(*data)
        about = {"model": self.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        return Response(f'{{"object":"list","data":{data},{json.dumps(about)[1:]}', media_type="application/json")

    async def search(self, request: Request) -> Response:
        asked = SearchRequest.parse(await self.read(request))
        queries = [asked.query] if isinstance(asked.query, str) else asked.query
        options: dict[str, Any] = {"where": asked.where, "mode": asked.mode, "explain": asked.explain}
        if asked.mode != "words":
            encoded = await self.joining.encode(queries, "query", request.is_disconnected)
            self.cut.inc(encoded.cut_texts)
            options["vectors"] = encoded.vectors
        try:
            found = await asyncio.to_thread(self.index.search, queries, asked.k, **options)
        except ValueError as error:  # of a condition, or of an index that another model's has replaced
            raise Refusal(400, str(error)) from error
        results = [[result.to_json() for result in listed] for listed in found]
        shown = results[0] if isinstance(asked.query, str) else results
        return JSONResponse({"object": "list", "results": shown, "model": self.name})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.name, "waiting": self.joining.waiting})

    async def metrics(self, request: Request) -> Response:
        return Response(prometheus.generate_latest(self.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        models = [self.model_object(name) for name in model_names(self.name)]
        return JSONResponse({"object": "list", "data": models})

    async def describe_model(self, request: Request) -> Response:
        name = request.path_params["id"]
        if not name:  # /v1/models/
            return await self.models(request)
        if name not in model_names(self.name):
            raise unknown_model(name, self.name)
        return JSONResponse(self.model_object(name))

    def model_object(self, name: str) -> dict[str, Any]:
        """OpenAI's description of a model, and its dimensions."""
        origin = {"created": self.started, "owned_by": "st_reba"}
        return {"id": name, "object": "model", **origin, "dimensions": self.dimension}


def _embeddings(vectors: Any, dimensions: int, as_base64: bool) -> str:
    """JSON of vectors [texts, d], cut to their first dimensions and scaled to their former length."""
    if dimensions < vectors.shape[1]:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = vectors[:, :dimensions].astype(np.float64)
        kept = np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-300)
        vectors = (vectors * (lengths / kept)).astype(np.float32)
    rows = vectors.tolist()
    if as_base64:
        rows = [base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii") for vector in vectors]
    data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    return json.dumps(data, allow_nan=False, separators=(",", ":"))
