"""ASGI application: ``/v1/embeddings``, ``/v1/models``, ``/v1/search``, ``/health`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import prometheus_client as prometheus
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..corpus.records import preview
from .access import check_keys, key_is_known
from .hosts import host_name
from .joining import RequestJoiner, Vectors
from .requests import (
    EmbeddingRequest,
    Refusal,
    SearchRequest,
    as_openai,
    model_names,
    unknown_model,
)

if TYPE_CHECKING:
    from ..index import Index

logger = logging.getLogger(__name__)
_Handler = Callable[[Request], Awaitable[Response]]
_MIB = 2**20
_BODY_SECONDS = 30.0
# An answer with more numbers than this is written by another thread; with fewer, starting that
# thread would cost more.
_MIN_NUMBERS_FOR_THREAD = 2**13


class Metrics:
    """What ``/metrics`` shows. Each application has a registry, as a process may hold several.

    Args:
        count_waiting: The number of texts that are accepted and not answered.
    """

    def __init__(self, count_waiting: Callable[[], float]) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        self.answer_seconds = prometheus.Histogram(
            "st_reba_request_seconds",
            "Answers.",
            ["path", "status"],
            registry=registry,
        )
        self.tokens = prometheus.Counter(
            "st_reba_tokens", "Token positions encoded.", registry=registry
        )
        self.truncated_texts = prometheus.Counter(
            "st_reba_cut_texts",
            "Texts longer than the model reads, whose end was cut.",
            registry=registry,
        )
        self.batch_sizes = prometheus.Histogram(
            "st_reba_batch_texts",
            "Texts of a batch.",
            buckets=[2**exponent for exponent in range(9)],
            registry=registry,
        )
        waiting_texts = prometheus.Gauge(
            "st_reba_waiting_texts",
            "Texts accepted and not answered.",
            registry=registry,
        )
        waiting_texts.set_function(count_waiting)


class EmbeddingServer(Starlette):
    """Application for any ASGI server.

    Args:
        model: The SentenceTransformer.
        name: Name of the model for clients.
        index: Index of this model, for ``/v1/search``.
        keys: API keys, one of which must be sent.
        hosts: The only host names that are served: a web page elsewhere can make a host name of its
            own point to this machine.
        batch_size: Texts of waiting requests that run together.
        max_body: MiB of a request; 413 beyond.
        max_tokens: Most token positions in a request, with copies, template and prompt; 422 beyond.
        queue: Texts that may wait, over all requests; 429 beyond.

    Raises:
        ValueError: A key is empty, or the model's template has a field that no request can fill.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        index: Index | None = None,
        keys: Sequence[str] = (),
        hosts: Sequence[str] = (),
        batch_size: int = 32,
        max_body: int = 4,
        max_tokens: int = 300_000,
        queue: int = 8192,
    ) -> None:
        check_keys(keys)
        # The bytes that the environment holds, whatever its encoding.
        self.keys = [key.encode("utf-8", "surrogateescape") for key in keys]
        self.name = name
        self.hosts = hosts
        self.max_body = max_body
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.start_time = int(time.time())
        self.held_bytes = 0  # of bodies that are being received
        self.metrics = Metrics(lambda: self.joiner.waiting_texts)
        report_batch = self.metrics.batch_sizes.observe
        self.joiner = RequestJoiner(model, batch_size, max_tokens, queue, report_batch)
        self.task_of_name = model_names(name, self.joiner.unserved_tasks)
        self._check_tasks()
        routes = [
            self._route("/health", self.show_health, needs_key=False),
            self._route("/metrics", self.show_metrics),
            self._route("/v1/models", self.list_models),
            self._route("/v1/models/{id:path}", self.describe_model),
            self._route("/v1/embeddings", self.embed, "POST"),
        ]
        if index is not None:
            routes.append(self._route("/v1/search", partial(self.search, index), "POST"))
        super().__init__(routes=routes, exception_handlers={HTTPException: as_openai})
        # Else a path with a slash at its end would be answered by a redirection, without a key or a body.
        self.router.redirect_slashes = False

    def _check_tasks(self) -> None:
        """Refuse a model that can serve no task, and warn of each that it cannot serve."""
        unserved_tasks = self.joiner.unserved_tasks
        if not self.task_of_name:
            raise ValueError(f"{self.name} cannot be served. {unserved_tasks[None]}")
        for model_name, task in model_names(self.name).items():
            if task in unserved_tasks:
                logger.warning("%s is not served. %s", model_name, unserved_tasks[task])

    def _route(
        self,
        path: str,
        handler: _Handler,
        method: str = "GET",
        *,
        needs_key: bool = True,
    ) -> Route:
        """A route that checks the caller, measures the answer, and reports errors like OpenAI."""

        async def answer(request: Request) -> Response:
            start_time = time.perf_counter()
            try:
                self._check_host(request)
                if needs_key:
                    self._check_key(request)
                response = await handler(request)
            except HTTPException as error:
                response = await as_openai(request, error)
            except Exception:
                logger.exception("%s failed", path)
                refusal = Refusal(500, "The server failed at this request; see its log.")
                response = await as_openai(request, refusal)
            seconds = time.perf_counter() - start_time
            self.metrics.answer_seconds.labels(path, response.status_code).observe(seconds)
            return response

        return Route(path, answer, methods=[method])

    def _check_host(self, request: Request) -> None:
        host = host_name(request.headers.get("host", ""))
        if self.hosts and host not in self.hosts:
            allowed_hosts = ", ".join(self.hosts)
            raise Refusal(
                403,
                f"Host {host!r}: without an API key, only {allowed_hosts} are served.",
            )

    def _check_key(self, request: Request) -> None:
        authorization = request.headers.get("authorization", "")
        if self.keys and not key_is_known(authorization, self.keys):
            message = "The API key is wrong: send Authorization: Bearer KEY."
            raise Refusal(401, message, code="invalid_api_key")

    async def _read_body(self, request: Request) -> bytes:
        """Receive a body within the limits of size, time and memory."""
        content_type, _, _ = request.headers.get("content-type", "").partition(";")
        if not content_type.strip().lower().endswith("json"):
            # A web page can make a browser send other types without asking this server first.
            raise Refusal(415, "Send Content-Type: application/json.")
        max_bytes = self.max_body * _MIB
        too_large = Refusal(413, f"The body exceeds {self.max_body} MiB: send several requests.")
        if int(request.headers.get("content-length", 0)) > max_bytes:
            raise too_large  # before a client that waits for 100 Continue sends it
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    self.held_bytes += len(chunk)
                    body += chunk
                    if len(body) > max_bytes:
                        raise too_large
                    if self.held_bytes > max(64 * _MIB, 4 * max_bytes):
                        raise Refusal(429, "Too much is being received: send this again later.")
        except (TimeoutError, ClientDisconnect):
            message = f"The body did not arrive whole within {_BODY_SECONDS:.0f} s."
            raise Refusal(408, message) from None
        finally:
            self.held_bytes -= len(body)
        return bytes(body)

    async def embed(self, request: Request) -> Response:
        """Answer ``/v1/embeddings``."""
        embedding_request = EmbeddingRequest.parse(await self._read_body(request))
        task = embedding_request.task(self.name, self.joiner.unserved_tasks)
        dimensions = embedding_request.dimensions or self.dimension
        if dimensions > self.dimension:
            message = f"dimensions={preview(dimensions)}: give a number up to {self.dimension}."
            raise Refusal(400, message, "dimensions")
        encoded = await self.joiner.encode(
            embedding_request.input,
            task,
            request.is_disconnected,
            may_truncate=embedding_request.may_truncate(),
        )
        self.metrics.tokens.inc(encoded.token_count)
        self.metrics.truncated_texts.inc(encoded.truncated_count)
        as_base64 = embedding_request.encoding_format == "base64"
        arguments = (encoded.vectors, dimensions, as_base64)
        if encoded.vectors.size > _MIN_NUMBERS_FOR_THREAD:
            data_json = await asyncio.to_thread(embeddings_json, *arguments)
        else:
            data_json = embeddings_json(*arguments)
        usage = {
            "prompt_tokens": encoded.token_count,
            "total_tokens": encoded.token_count,
        }
        other_fields = json.dumps({"model": self.name, "usage": usage})
        answer = f'{{"object":"list","data":{data_json},{other_fields[1:]}'
        return Response(answer, media_type="application/json")

    async def search(self, index: Index, request: Request) -> Response:
        """Answer ``/v1/search``."""
        search_request = SearchRequest.parse(await self._read_body(request))
        search_request.check_model(self.name, self.joiner.unserved_tasks)
        query = search_request.query
        queries = [query] if isinstance(query, str) else query
        vectors: Vectors | None = None
        if search_request.mode != "words":
            encoded = await self.joiner.encode(queries, "query", request.is_disconnected)
            self.metrics.truncated_texts.inc(encoded.truncated_count)
            vectors = encoded.vectors
        try:
            result_lists = await asyncio.to_thread(
                index.search,
                queries,
                search_request.k,
                where=search_request.where,
                mode=search_request.mode,
                explain=search_request.explain,
                vectors=vectors,
            )
        except FileNotFoundError as error:
            raise Refusal(503, "The index, or a file of it, is gone.") from error
        except ValueError as error:
            # A wrong condition, or the index was replaced by another model's.
            raise Refusal(400, str(error)) from error
        results = [[result.to_json() for result in result_list] for result_list in result_lists]
        answer = {
            "object": "list",
            "results": results[0] if isinstance(query, str) else results,
        }
        return JSONResponse(answer | {"model": self.name})

    async def show_health(self, request: Request) -> Response:
        """Answer ``/health``."""
        waiting_texts = self.joiner.waiting_texts
        return JSONResponse({"status": "ok", "model": self.name, "waiting": waiting_texts})

    async def show_metrics(self, request: Request) -> Response:
        """Answer ``/metrics``."""
        text = prometheus.generate_latest(self.metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    async def list_models(self, request: Request) -> Response:
        """Answer ``/v1/models``."""
        models = list(map(self._model_object, self.task_of_name))
        return JSONResponse({"object": "list", "data": models})

    async def describe_model(self, request: Request) -> Response:
        """Answer ``/v1/models/NAME``."""
        model_name = request.path_params["id"]
        if not model_name:  # /v1/models/
            return await self.list_models(request)
        if model_name not in self.task_of_name:
            raise unknown_model(model_name, self.task_of_name)
        return JSONResponse(self._model_object(model_name))

    def _model_object(self, model_name: str) -> dict[str, object]:
        """OpenAI's description of a model, and its dimensions."""
        return {
            "id": model_name,
            "object": "model",
            "created": self.start_time,
            "owned_by": "st_reba",
            "dimensions": self.dimension,
        }


def embeddings_json(vectors: Vectors, dimensions: int, as_base64: bool) -> str:
    """JSON of vectors [texts, d], cut to their first dimensions and scaled to their former length."""
    if dimensions < vectors.shape[1]:
        former_lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        shortened = vectors[:, :dimensions].astype(np.float64)
        lengths = np.linalg.norm(shortened, axis=1, keepdims=True).clip(min=1e-300)
        vectors = (shortened * (former_lengths / lengths)).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ValueError("the model gives numbers that are not finite")
    vector_rows: list[object] = vectors.tolist()
    if as_base64:
        little_endian = vectors.astype("<f4")
        vector_rows = [base64.b64encode(row.tobytes()).decode("ascii") for row in little_endian]
    embedding_objects = [
        {"object": "embedding", "index": index, "embedding": vector_row}
        for index, vector_row in enumerate(vector_rows)
    ]
    return json.dumps(embedding_objects, separators=(",", ":"))
