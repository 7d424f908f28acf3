"""Connections: requests that do not arrive are abandoned, and answers that come early can be read."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds for a request's header, from the connection or from the header's first byte on.
HEADER_SECONDS = 30.0
# Seconds for its body. The application answers 408 earlier; this limit is for bodies that it does
# not read.
BODY_SECONDS = 40.0
# How many seconds a client may go on sending after it was answered.
LINGER_SECONDS = 30.0
_UNFINISHED = (h11.IDLE, h11.SEND_BODY)


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, with a time limit for each request, and connections that are closed gently.

    uvicorn waits forever for the rest of a request. And it closes a connection right after an
    answer that comes before the end of the body: the client, still sending, sees a reset connection
    instead.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._watched_state: Any = None
        self._gentle_transport: GentleTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._gentle_transport = GentleTransport(transport, self.conn, self.loop)
        super().connection_made(self._gentle_transport)  # type: ignore[arg-type]
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        if self._gentle_transport is not None and self._gentle_transport.is_lingering:
            return
        super().data_received(data)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _watch_request(self) -> None:
        """Start a deadline for a request's header and for its body, and end it with the request."""
        state = self.conn.their_state
        if state is self._watched_state:
            return
        self._watched_state = state
        self._cancel_deadline()
        if state in _UNFINISHED:
            seconds = HEADER_SECONDS if state is h11.IDLE else BODY_SECONDS
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        # A request may have ended, and its answer been sent, since data last came.
        if self._gentle_transport is not None and self.conn.their_state in _UNFINISHED:
            self._gentle_transport.abort()


class GentleTransport:
    """A transport that, when closed while a request arrives, first sends its answer and reads on.

    Args:
        transport: The connection.
        conn: The state of its requests.
        loop: The event loop.
    """

    def __init__(
        self,
        transport: Any,
        conn: h11.Connection,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._conn = conn
        self._loop = loop
        self.is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_lingering or bool(self._transport.is_closing())

    def close(self) -> None:
        is_arriving = self._conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if self.is_lingering or not is_arriving or self._transport.is_closing():
            self._transport.close()
            return
        self.is_lingering = True
        try:
            self._transport.write_eof()
        except OSError:  # the client is gone, and asyncio does not know yet
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._loop.call_later(LINGER_SECONDS, self._transport.abort)
