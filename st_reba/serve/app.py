"""The application: its paths, and what stands before each."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .errors import Refusal, http_error
from .joining import Joining
from .metrics import Metrics
from .requests import Sought, read_json, sought, wanted
from .settings import Settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..index import Index

logger = logging.getLogger(__name__)
_Handler = Callable[[Request], Awaitable[Response]]
# Bytes from which reading or writing JSON would hold up other requests; below, another thread would cost more.
_INLINE = 2**15


def make_app(
    model: SentenceTransformer,
    name: str,
    *,
    index: Index | None = None,
    settings: Settings | None = None,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Starlette:
    """The application, for any ASGI server.

    Args:
        model: The model.
        name: What clients call it.
        index: An index to search in, of the same model.
        settings: Limits, and how requests are joined.
        keys: Those that a client may send; none: all may ask.
        hosts: Names under which it may be asked; none: any. A page of another site, which a reader's browser has open,
            can give its own name this machine's address.

    Example:
        >>> import st_reba
        >>> [route.path for route in make_app(st_reba.build("mini"), "mini").routes][:2]
        ['/health', '/metrics']
    """
    return _Server(model, name, index, settings or Settings(), keys, hosts).app()


class _Server:
    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        index: Index | None,
        settings: Settings,
        keys: Sequence[str],
        hosts: Sequence[str],
    ) -> None:
        self.model, self.name, self.index, self.settings = model, name, index, settings
        self.keys, self.hosts = [key.encode() for key in keys], hosts
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.metrics = Metrics()
        self.joining = Joining(model, settings, self.metrics)
        self.started = int(time.time())
        self.held = 0

    def app(self) -> Starlette:
        handlers: list[tuple[str, str, _Handler]] = [
            ("/metrics", "GET", self.show_metrics),
            ("/v1/models", "GET", self.list_models),
            ("/v1/models/{name:path}", "GET", self.show_model),
            ("/v1/embeddings", "POST", self.embed),
        ]
        if self.index is not None:
            handlers.append(("/v1/search", "POST", self.search))
        return Starlette(
            routes=[
                Route("/health", self.health, methods=["GET"]),
                *(Route(path, self.guarded(path, handler), methods=[method]) for path, method, handler in handlers),
            ],
            exception_handlers={HTTPException: http_error},
        )

    def guarded(self, path: str, handler: _Handler) -> _Handler:
        """A handler behind the key, whose refusals and failures are told in OpenAI's form, and counted."""

        async def answer(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self.check_caller(request)
                response = await handler(request)
            except Refusal as error:
                response = error.response()
            except Exception:
                logger.exception("%s failed", path)
                response = Refusal(500, "The server failed at this request; its log says why.").response()
            self.metrics.requests.labels(path, response.status_code).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
            return response

        return answer

    def check_caller(self, request: Request) -> None:
        if self.hosts and request.url.hostname not in self.hosts:
            raise Refusal(
                403, f"Host {request.url.hostname!r}: without an API key, only {', '.join(self.hosts)} are served."
            )
        given = request.headers.get("authorization", "").partition(" ")[2].strip().encode()
        # All are compared, whichever fits, so that the time tells nothing.
        fits = [hmac.compare_digest(given, key) for key in self.keys]
        if self.keys and not any(fits):
            raise Refusal(
                401, "The API key is missing or wrong: send Authorization: Bearer KEY.", None, "invalid_api_key"
            )

    async def read(self, request: Request) -> dict[str, Any]:
        """The JSON of a request, of bounded size, time and kind."""
        limit = self.settings.body_bytes
        too_large = Refusal(413, f"The body is larger than {self.settings.max_body} MiB: send several requests.")
        if not request.headers.get("content-type", "").partition(";")[0].strip().endswith("json"):
            # A page of another site can send anything else from a reader's browser.
            raise Refusal(415, "Send Content-Type: application/json.")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.read_seconds):
                async for chunk in request.stream():
                    self.held += len(chunk)
                    body += chunk
                    if len(body) > limit:
                        raise too_large
                    if self.held > self.settings.held_bytes:
                        raise Refusal(429, "Too much is being received: send this again later.")
            given: dict[str, Any] = await _aside(len(body) > _INLINE, read_json, bytes(body))
            return given
        except TimeoutError:
            raise Refusal(408, f"The body did not come within {self.settings.read_seconds:.0f} s.") from None
        finally:
            self.held -= len(body)

    async def embed(self, request: Request) -> Response:
        asked = wanted(await self.read(request), self.name, self.dimension)
        vectors, tokens = await self.joining.encode(asked.texts, asked.task, request.is_disconnected)
        self.metrics.texts.inc(len(asked.texts))
        self.metrics.tokens.inc(tokens)
        cut = shortened(vectors, asked.dimensions)
        shown = await _aside(cut.nbytes > _INLINE, _embeddings, cut, asked.base64)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        told = f'{{"object":"list","data":{shown},"model":{json.dumps(self.name)},"usage":{json.dumps(usage)}}}'
        return Response(told, media_type="application/json")

    async def search(self, request: Request) -> Response:
        asked = sought(await self.read(request))
        vectors, _ = await self.joining.encode(asked.texts, "query", request.is_disconnected)
        try:
            found = await asyncio.to_thread(self.look, vectors, asked)
        except ValueError as error:
            raise Refusal(400, str(error), "where") from error
        shown = json.dumps(found[0] if asked.single else found, ensure_ascii=False)
        return Response(
            f'{{"object":"list","results":{shown},"model":{json.dumps(self.name)}}}', media_type="application/json"
        )

    def look(self, vectors: NDArray[np.float32], asked: Sought) -> list[list[dict[str, Any]]]:
        index: Any = self.index
        found = index.search(vectors, asked.k, where=asked.where, ids_only=asked.ids_only)
        try:
            # Another model's index may have taken its place since it was opened.
            index.check(self.model)
        except ValueError as error:
            raise Refusal(409, str(error)) from error
        return [[asdict(one) for one in listed] for listed in found]

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.name, "waiting": self.joining.waiting})

    async def show_metrics(self, request: Request) -> Response:
        return self.metrics.response()

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.about(name) for name in self.names]})

    async def show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.names:
            raise Refusal(404, f"There is no model {name!r} here.", "model", "model_not_found")
        return JSONResponse(self.about(name))

    @property
    def names(self) -> list[str]:
        return [self.name, f"{self.name}:query", f"{self.name}:document"]

    def about(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "st_reba",
            "dimensions": self.dimension,
        }


async def _aside(large: bool, function: Callable[..., Any], *given: Any) -> Any:
    return await asyncio.to_thread(function, *given) if large else function(*given)


def shortened(vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """The first components, scaled to the length that a vector had before: 1, where the model normalizes.

    Example:
        >>> shortened(np.array([[3.0, 4.0, 12.0]], dtype=np.float32), 2).tolist()
        [[7.800000190734863, 10.399999618530273]]
    """
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions].astype(np.float64)
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    whole = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (cut * np.divide(whole, lengths, where=lengths > 0, out=np.zeros_like(whole))).astype(
        np.float32
    )
    return scaled


def _embeddings(vectors: NDArray[np.float32], as_base64: bool) -> str:
    """The vectors as JSON; base64 is of little-endian floats."""
    rows: list[Any] = vectors.tolist()
    if as_base64:
        rows = [base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii") for vector in vectors]
    data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    return json.dumps(data, allow_nan=False, separators=(",", ":"))
