"""Requests as checked values, and refusals in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..encode import Task

_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
# After 408 and 413, the rest of the body is not read.
_CLOSE = {"Connection": "close"}
_ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 408: _CLOSE, 413: _CLOSE, 429: {"Retry-After": "1"}}


class Refusal(HTTPException):
    """Error with a status of HTTP, the field of the request at fault, and OpenAI's code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message, _ERROR_HEADERS.get(status))
        self.param, self.code = param, code


async def as_openai(request: Request, error: Any) -> Response:
    """The answer to a request that ends in an HTTPException, in OpenAI's form."""
    kind = _ERROR_TYPES.get(error.status_code, "invalid_request_error")
    about = {"param": getattr(error, "param", None), "code": getattr(error, "code", None)}
    return JSONResponse({"error": {"message": error.detail, "type": kind, **about}}, error.status_code, error.headers)


def _as_list(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(one, (int, list)) for one in texts):
        raise ValueError("token ids are another tokenizer's: send texts (LangChain: check_embedding_ctx_length=False)")
    return texts


# As many as OpenAI takes.
_Many = Field(min_length=1, max_length=2048)
_Query = Annotated[str, Field(pattern=r"\S")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse and check a body; a Refusal names the field that is unknown, missing or wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(next(iter(first["loc"]), ""))
            reason = first["msg"].removeprefix("Value error, ")
            fields = ", ".join(cls.model_fields)
            raise Refusal(400, f"{field or 'The body'}: {reason}. Fields: {fields}.", field or None) from None


class EmbeddingRequest(_Body):
    """Body of ``/v1/embeddings``; the models NAME:query and NAME:document choose a prompt."""

    input: Annotated[list[str], BeforeValidator(_as_list), _Many]
    model: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    def task(self, name: str) -> Task | None:
        """The prompt that is asked for; a Refusal where the model's name is not ``name`` with or without a task."""
        names: dict[str, Task | None] = {name: None, f"{name}:query": "query", f"{name}:document": "document"}
        asked = name if self.model is None else self.model
        if asked not in names:
            raise Refusal(404, f"There is no model {asked!r} here, but {', '.join(names)}.", "model", "model_not_found")
        return names[asked]


class SearchRequest(_Body):
    """Body of ``/v1/search``."""

    query: _Query | Annotated[list[_Query], _Many]
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    where: dict[str, Any] | None = None
    mode: Literal["hybrid", "vectors", "words"] | None = None
    explain: bool = False
