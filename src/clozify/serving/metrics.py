"""Prometheus metrics of a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """One server's counters and histograms, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("clozify_requests", "Requests answered", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "clozify_predict_seconds",
            "Seconds from request to answer",
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.texts = Counter("clozify_texts", "Texts classified", registry=self.registry)
        self.abstained = Counter(
            "clozify_abstained_texts", "Texts without a prediction", ["reason"], registry=self.registry
        )
        self.batch_rows = Histogram(
            "clozify_batch_rows", "Texts per batch", buckets=ROWS_BUCKETS, registry=self.registry
        )
        self.waiting = Gauge("clozify_waiting_requests", "Requests without an answer yet", registry=self.registry)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
