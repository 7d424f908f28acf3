"""Talking to the Hub: calls that are tried again where that helps, and errors that say what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")

# Seconds before each further try, where the server names none.
WAITS = (1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT = 300.0
PASSING = (408, 429, 500, 502, 503, 504)
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class HubError(OSError):
    """The Hub refused, or could not be reached; the message says what to do."""


def access_token(token: str | None) -> str:
    """The token that the Hub is asked with: the given one, or the one that huggingface_hub keeps.

    Raises:
        ValueError: There is none, or it cannot be one. The message never holds it.
    """
    from huggingface_hub import get_token

    found = token or get_token()
    if not found:
        raise ValueError(f"there is no token for the Hub: {LOGIN} (a token with write access)")
    if not re.fullmatch(r"[\x21-\x7e]+", found):
        raise ValueError(f"the token for the Hub holds a space or another character that none has: {LOGIN}")
    return found


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__


def status(error: BaseException) -> int | None:
    """The status that a server answered with, if that is what went wrong."""
    for cause in causes(error):
        if (response := getattr(cause, "response", None)) is not None:
            return int(response.status_code)
    return None


def is_connection(error: BaseException) -> bool:
    """Whether a connection failed, ended early or took too long."""
    # By name, as huggingface_hub's releases use different HTTP libraries.
    names = {kind.__name__ for cause in causes(error) for kind in type(cause).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "TimeoutError"} - offline(error))


def offline(error: BaseException) -> set[str]:
    """The names that stand for a connection but mean that HF_HUB_OFFLINE forbids one."""
    is_offline = any(type(cause).__name__ == "OfflineModeIsEnabled" for cause in causes(error))
    return {"TransportError", "ConnectionError", "TimeoutError"} if is_offline else set()


def retry_after(error: BaseException) -> float | None:
    """Seconds that the server asks to wait, by Retry-After or RateLimit."""
    for cause in causes(error):
        headers = getattr(getattr(cause, "response", None), "headers", None) or {}
        if (text := headers.get("Retry-After", "").strip()).isdigit():
            return float(text)
        if match := re.search(r"\br=0;\s*t=(\d+)", headers.get("RateLimit", "")):
            return float(match[1])
    return None


def retried(call: Callable[[], Result], say: Callable[[str], Any]) -> Result:
    """Call, and again after errors that pass: 429 (as long as the server says), 5xx, cut connections.

    huggingface_hub does this itself when it asks how files are to be sent, and while it sends them, but not when it
    creates a repository or a branch, reads what is there, or commits.
    """
    for wait in WAITS:
        try:
            return call()
        except Exception as error:
            if status(error) not in PASSING and not (status(error) is None and is_connection(error)):
                raise
            named = retry_after(error)
            if named is not None and named > LONGEST_WAIT:
                raise
            wait = wait if named is None else named
            reason = status(error) or "the connection failed"
            say(f"The Hub is not ready ({reason}): trying again in {wait:g} s.")
            time.sleep(wait)
    return call()


def explained(error: Exception, repo_id: str, afterwards: str) -> Exception:
    """The error to raise instead: what went wrong, what to do, and how things are now."""
    code = status(error)
    answered = next((cause for cause in causes(error) if getattr(cause, "response", None) is not None), error)
    said = " ".join(str(getattr(answered, "server_message", None) or answered).split())
    if any(type(cause).__name__ == "OfflineModeIsEnabled" for cause in causes(error)):
        advice = "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: unset it to publish"
    elif code == 401:
        advice = f"401: the Hub does not accept the token: {LOGIN}"
    elif code == 403:
        owner = repo_id.split("/")[0]
        advice = (
            f"403: the token may not write to {repo_id}. Use a token with write access, of a member of {owner!r} "
            f"({LOGIN}) | {said}"
        )
    elif code == 404:
        advice = f"404: {repo_id} is not there, or the token may not see it: check ORG/NAME and --revision | {said}"
    elif code in (409, 412):
        advice = f"{code}: {repo_id} has changed meanwhile: look at it and push again | {said}"
    elif code == 429:
        seconds = retry_after(error)
        named = f"in {seconds:g} s" if seconds is not None else "later"
        advice = f"429: the Hub allows no more requests now: push again {named}"
    elif code is not None and code >= 500:
        advice = f"{code}: the Hub has an error of its own that did not pass: push again later | {said}"
    elif code is not None:
        advice = f"{code}: {said}"
    elif is_connection(error):
        advice = f"the connection to the Hub failed and did not come back: push again later | {list(causes(error))[-1]}"
    else:
        advice = " | ".join(str(cause) for cause in causes(error))
    return HubError(f"{advice.rstrip('.')}. {afterwards}")
