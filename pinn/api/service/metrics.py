"""Metrics of the service for Prometheus."""

from __future__ import annotations

from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST as MEDIA_TYPE

from pinn.api.service.lanes import Lane

__all__ = ["MEDIA_TYPE", "Metrics"]

#: Upper bounds of the buckets in the histogram of response times, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Prometheus counters and histograms of one HTTP service.

    Attributes:
        answered: Number of requests that received a response.
        kept: Number of responses served from the cache.
    """

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.answered = 0
        self._requests = Counter(
            "pinn_requests", "Requests answered.", ["endpoint", "status"], registry=registry
        )
        self._seconds = Histogram(
            "pinn_request_seconds", "Time from receiving a request to sending its response, in "
                                    "seconds.", ["endpoint"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self.kept = Counter(
            "pinn_kept_answers", "Answers served from the cache.", registry=registry
        )
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request by endpoint and HTTP status, and record its duration in seconds."""
        self.answered += 1
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def watch(self, name: str, lane: Lane) -> None:
        """Export the numbers of running and waiting requests of a process group as metrics."""
        for what, text in (("running", "Answers computed now."), ("waiting", "Requests queued.")):
            gauge = Gauge(f"pinn_{name}_{what}", text, registry=self._registry)
            gauge.set_function(partial(getattr, lane, what))

    def page(self) -> bytes:
        """Return the content of the ``/metrics`` page."""
        return generate_latest(self._registry)
