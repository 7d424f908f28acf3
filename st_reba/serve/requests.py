"""Requests as checked values, and refusals in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse

from ..encode import Task

_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
# After 408 and 413, the rest of the body is not read.
_CLOSE = {"Connection": "close"}
_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 408: _CLOSE, 413: _CLOSE, 429: {"Retry-After": "1"}}


class Refusal(Exception):
    """Error with a status of HTTP, the field of the request at fault, and OpenAI's code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def response(self) -> JSONResponse:
        """The error in OpenAI's form."""
        kind = _ERROR_TYPES.get(self.status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": error}, self.status, _ERROR_HEADERS.get(self.status))


def _as_list(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(one, (int, list)) for one in texts):
        raise ValueError("token ids are another tokenizer's: send texts (LangChain: check_embedding_ctx_length=False)")
    return texts


_Query = Annotated[str, Field(pattern=r"\S")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse and check a body; a Refusal names the field that is unknown, missing or wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(next(iter(first["loc"]), ""))
            reason = first["msg"].removeprefix("Value error, ")
            raise Refusal(
                400, f"{field or 'The body'}: {reason}. Fields: {', '.join(cls.model_fields)}.", field or None
            ) from None


class EmbeddingRequest(_Body):
    """Body of ``/v1/embeddings``; ``input_type`` chooses a prompt, as NAME:query and NAME:document do.

    Example:
        >>> EmbeddingRequest.parse(b'{"input": "a cat", "model": "m:query"}').task("m")
        'query'
    """

    input: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    model: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    input_type: Literal["query", "document", "passage"] | None = None

    def task(self, name: str) -> Task | None:
        """The prompt that is asked for; a Refusal where the model's name is not ``name`` with or without a task."""
        names: dict[str, Task | None] = {name: None, f"{name}:query": "query", f"{name}:document": "document"}
        asked = name if self.model is None else self.model
        if asked not in names:
            raise Refusal(404, f"There is no model {asked!r} here, but {', '.join(names)}.", "model", "model_not_found")
        kind: Task | None = "document" if self.input_type == "passage" else self.input_type
        if kind is not None and names[asked] not in (None, kind):
            raise Refusal(400, f"model={asked!r} and input_type={kind!r} exclude each other: drop one.", "input_type")
        return kind or names[asked]


class SearchRequest(_Body):
    """Body of ``/v1/search``."""

    query: _Query | Annotated[list[_Query], Field(min_length=1)]
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    where: dict[str, Any] | None = None
