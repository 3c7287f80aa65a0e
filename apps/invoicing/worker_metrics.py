"""What a worker tells Prometheus: how much each runner did in a tick and how long it took, and how jobs ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from apps.invoicing.reports import OUTCOMES, turns
from apps.invoicing.settings import OUTBOX
from holdfast import TickReport


class WorkerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ticks = Counter(
            "invoicing_worker_ticks", "Ticks in which a runner had something to do", registry=self.registry
        )
        self._processed = Counter(
            "invoicing_worker_processed", "Items that a runner has processed", ("runner",), registry=self.registry
        )
        self._per_tick = Histogram(
            "invoicing_worker_tick_processed",
            "Items that a runner processed in one tick",
            ("runner",),
            buckets=(0, 1, 2, 5, 10, 20, 50, 100, 200),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "invoicing_worker_tick_seconds", "How long a runner took in one tick", ("runner",), registry=self.registry
        )
        self._errors = Counter(
            "invoicing_worker_runner_errors", "Ticks in which a runner failed", ("runner",), registry=self.registry
        )
        self._outcomes = Counter(
            "invoicing_outbox_outcomes", "How attempts at jobs ended", ("outcome",), registry=self.registry
        )
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)

    def add(self, report: TickReport) -> None:
        self._ticks.inc()
        for turn in turns(report):
            self._processed.labels(turn.runner).inc(turn.processed)
            self._per_tick.labels(turn.runner).observe(turn.processed)
            self._seconds.labels(turn.runner).observe(turn.seconds)
            if turn.error is not None:
                self._errors.labels(turn.runner).inc()
            if turn.runner == OUTBOX:
                for outcome in OUTCOMES:
                    self._outcomes.labels(outcome).inc(turn.counts.get(outcome, 0))

    @contextmanager
    def served(self, port: int | None) -> Iterator[None]:
        """On /metrics of this port, if there is one."""
        if port is None:
            yield
            return
        server, thread = start_http_server(port, registry=self.registry)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
