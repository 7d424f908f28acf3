"""Requests as checked values, and refusals in the form of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..encode import Role

_ERROR_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# After 408 and 413, the rest of the body is not read.
_CLOSE_HEADERS = {"Connection": "close"}
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: _CLOSE_HEADERS,
    413: _CLOSE_HEADERS,
    429: {"Retry-After": "1"},
}


class Refusal(HTTPException):
    """An error with an HTTP status, the request field at fault, and OpenAI's error code."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(status, message, _ERROR_HEADERS.get(status))
        self.param = param
        self.code = code


async def as_openai(request: Request, error: Exception) -> Response:
    """The answer to a request that ends in an HTTPException, in OpenAI's form."""
    assert isinstance(error, HTTPException)
    is_of_router = error.status_code == 404 and not isinstance(error, Refusal)
    error_object = {
        "message": _describe_paths(request) if is_of_router else error.detail,
        "type": _ERROR_TYPES.get(error.status_code, "invalid_request_error"),
        "param": getattr(error, "param", None),
        "code": getattr(error, "code", None),
    }
    return JSONResponse({"error": error_object}, error.status_code, error.headers)


def _describe_paths(request: Request) -> str:
    """A message that lists this server's paths, for a client that asked for another API's."""
    paths = ", ".join(route.path for route in request.app.routes)
    return (
        f"There is no {request.url.path!r:.200} here, but {paths}. A client's base URL ends in /v1."
    )


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return value
    if value and all(type(item) is int or _is_of_integers(item) for item in value):
        raise ValueError(
            "token ids are another tokenizer's: send texts (LangChain: check_embedding_ctx_length=False)"
        )
    if any(isinstance(item, list) for item in value):
        raise ValueError("send a text or a list of texts, but no list within the list")
    return value


def _is_of_integers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


# As OpenAI limits the number of texts.
_TextCount = Field(min_length=1, max_length=2048)
_Query = Annotated[str, Field(pattern=r"\S")]


def _kind_of_query(value: object) -> str:
    """The form by which a query is checked, so that a message is about that form."""
    return "list" if isinstance(value, list) else "text"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Parse and check a body; a Refusal names the field that is unknown, missing or wrong."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first_error = error.errors()[0]
            field = str(next(iter(first_error["loc"]), ""))
            reason = first_error["msg"].removeprefix("Value error, ")
            known_fields = ", ".join(cls.model_fields)
            message = f"{field or 'The body':.60}: {reason}. Fields: {known_fields}."
            raise Refusal(400, message, field or None) from None


# A query and a document in the words of NVIDIA's, Voyage's, Cohere's, Nomic's, Google's and Jina's
# clients. None of the other purposes has a prompt of its own.
_INPUT_TYPES: dict[str, Role | None] = {
    "query": "query",
    "search_query": "query",
    "retrieval_query": "query",
    "retrieval.query": "query",
    "passage": "document",
    "document": "document",
    "search_document": "document",
    "retrieval_document": "document",
    "retrieval.passage": "document",
    "classification": None,
    "clustering": None,
    "separation": None,
    "semantic_similarity": None,
    "text-matching": None,
}


def _known_input_type(value: str) -> str:
    if value.lower() not in _INPUT_TYPES:
        raise ValueError(f"{value!r:.60} is not known; choose from {', '.join(_INPUT_TYPES)}")
    return value.lower()


def _may_truncate(value: bool | str) -> bool:
    """Whether texts that are too long are cut (True), or refused (False)."""
    if isinstance(value, bool):
        return value
    if value.upper() not in ("END", "NONE"):
        raise ValueError(
            f"{value!r:.60} is not supported; texts are cut at their 'END', or refused with 'NONE'"
        )
    return value.upper() == "END"


_Truncation = Annotated[bool | str, AfterValidator(_may_truncate)] | None


class EmbeddingRequest(_Body):
    """Body of ``/v1/embeddings``: OpenAI's fields, and those that other widely used clients send besides.

    A field is here for one of three reasons: it changes the answer as the client expects; it can
    only ask for what is done anyway; or it concerns the caller and not the vectors.
    """

    input: Annotated[list[str], BeforeValidator(_as_list), _TextCount]
    model: str | None = None
    # Voyage's client calls it output_dimension.
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, validation_alias=AliasChoices("dimensions", "output_dimension")
    )
    encoding_format: Literal["float", "base64"] | None = None
    # Chooses the prompt; Google's and Nomic's clients call it task_type, Jina's task.
    input_type: Annotated[str, AfterValidator(_known_input_type)] | None = Field(
        None,
        validation_alias=AliasChoices("input_type", "task_type", "task"),
    )
    # What happens to a text that is too long: NVIDIA's and Cohere's name, and Voyage's.
    truncate: _Truncation = None
    truncation: _Truncation = None
    # Ask only for what is done anyway: NVIDIA's, Voyage's, Cohere's and Jina's clients.
    modality: Literal["text"] | list[Literal["text"]] | None = None
    output_dtype: Literal["float"] | None = None
    embedding_type: Literal["float"] | None = None
    embedding_types: list[Literal["float"]] | None = None
    late_chunking: Literal[False] | None = None
    return_multivector: Literal[False] | None = None
    # OpenAI's, for its statistics; and LiteLLM's, which RAGFlow sends to every server.
    user: str | None = None
    drop_params: bool | None = None

    def task(
        self,
        served_name: str,
        unserved_tasks: Collection[Role | None] = (),
    ) -> Role | None:
        """The prompt that the model's name or ``input_type`` asks for.

        Args:
            served_name: The name of the served model.
            unserved_tasks: Tasks whose names are not listed for a client that asks for another
                model.

        Raises:
            Refusal: The model's name is not ``served_name`` with or without a task, or the two ask
                for different prompts.
        """
        named_task = task_of_model(self.model, served_name, unserved_tasks)
        if self.input_type is None:
            return named_task
        typed_task = _INPUT_TYPES[self.input_type]
        if named_task and named_task != typed_task:
            contradiction = f"contradicts the model's name {self.model!r}: drop one of them."
            raise Refusal(
                400,
                f"input_type={self.input_type!r} {contradiction}",
                "input_type",
            )
        return typed_task

    def may_truncate(self) -> bool:
        """Whether the end of a text may be cut; it may unless the client forbids it."""
        return self.truncate is not False and self.truncation is not False


def model_names(
    served_name: str,
    unserved_tasks: Collection[Role | None] = (),
) -> dict[str, Role | None]:
    """The names of the served model, and the prompt that each chooses; but not those of some tasks."""
    task_of_name: dict[str, Role | None] = {
        served_name: None,
        f"{served_name}:query": "query",
        f"{served_name}:document": "document",
    }
    return {name: task for name, task in task_of_name.items() if task not in unserved_tasks}


def task_of_model(
    requested_name: str | None,
    served_name: str,
    unserved_tasks: Collection[Role | None],
) -> Role | None:
    """The prompt that a request's ``model`` chooses, None being the served name; a Refusal of an unknown one."""
    if requested_name is None:
        return None
    names = model_names(served_name)
    if requested_name not in names:
        raise unknown_model(requested_name, model_names(served_name, unserved_tasks))
    return names[requested_name]


def unknown_model(requested_name: str, known_names: Iterable[str]) -> Refusal:
    """The refusal of a model that is not served."""
    message = f"There is no model {requested_name!r:.200} here, but {', '.join(known_names)}."
    return Refusal(404, message, "model", "model_not_found")


class SearchRequest(_Body):
    """Body of ``/v1/search``."""

    query: Annotated[
        Annotated[_Query, Tag("text")] | Annotated[list[_Query], _TextCount, Tag("list")],
        Discriminator(_kind_of_query),
    ]
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    where: dict[str, Any] | None = None
    mode: Literal["hybrid", "vectors", "words"] | None = None
    explain: bool = False
    # As OpenAI's clients send it; a server has one model.
    model: str | None = None

    def check_model(self, served_name: str, unserved_tasks: Collection[Role | None] = ()) -> None:
        """Refuse the name of another model, and that of this one for documents."""
        if task_of_model(self.model, served_name, unserved_tasks) == "document":
            raise Refusal(
                400,
                f"model={self.model!r}: texts are searched for as queries. Send {served_name!r}.",
                "model",
            )
