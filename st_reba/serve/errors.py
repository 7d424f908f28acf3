"""What is refused, in the form that OpenAI's clients read."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: Of HTTP.
        message: What is wrong and what to do.
        param: The field of the request.
        code: OpenAI's name of the case.

    Example:
        >>> Refusal(400, "input is empty", "input").body()["error"]["type"]
        'invalid_request_error'
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, dict[str, str | None]]:
        """The answer's content."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer."""
        headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(self.status, {})
        if self.status in (408, 413):
            # The rest of the body is not read.
            headers = {"Connection": "close"}
        return JSONResponse(self.body(), self.status, headers)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """An error of the router: there is no such path, or not with this method."""
    status = int(getattr(error, "status_code", 500))
    said = f"{request.method} {request.url.path}: {HTTPStatus(status).phrase.lower()}"
    return Refusal(status, said).response()
