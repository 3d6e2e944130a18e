"""The numbers that a server keeps for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Measures:
    """One server's numbers, apart from any other's in the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("clozify_requests", "Requests answered", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "clozify_predict_seconds", "From a request to its answer", buckets=SECONDS, registry=self.registry
        )
        self.texts = Counter("clozify_texts", "Texts classified", registry=self.registry)
        self.batch_rows = Histogram(
            "clozify_batch_rows", "Texts that were scored together", buckets=ROWS, registry=self.registry
        )
        self.waiting = Gauge("clozify_waiting_requests", "Requests not answered yet", registry=self.registry)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
