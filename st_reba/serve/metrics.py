"""What Prometheus reads."""

from __future__ import annotations

from starlette.responses import Response

from ..optional import required


class Metrics:
    """Counters of one application.

    Example:
        >>> metrics = Metrics()
        >>> metrics.texts.inc(3)
        >>> b"st_reba_texts_total 3.0" in metrics.response().body
        True
    """

    def __init__(self) -> None:
        self._client = client = required("prometheus_client", "serve")
        # Its own, as a process may hold several applications.
        self._registry = to = client.CollectorRegistry()
        self.requests = client.Counter(
            "st_reba_requests", "Requests that were answered.", ["path", "status"], registry=to
        )
        self.seconds = client.Histogram(
            "st_reba_request_seconds", "From the first byte to the answer.", ["path"], registry=to
        )
        self.texts = client.Counter("st_reba_texts", "Texts that were encoded.", registry=to)
        self.tokens = client.Counter("st_reba_tokens", "Positions that they took.", registry=to)
        self.batch = client.Histogram(
            "st_reba_batch_texts", "Texts of a batch.", buckets=[2**n for n in range(9)], registry=to
        )
        self.waiting = client.Gauge("st_reba_waiting_texts", "Texts that were accepted and not answered.", registry=to)

    def response(self) -> Response:
        """The page."""
        return Response(self._client.generate_latest(self._registry), media_type=self._client.CONTENT_TYPE_LATEST)
