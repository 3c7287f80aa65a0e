"""A worker's metrics for Prometheus: how much each runner did in a tick, how long it took, and how jobs ended."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from apps.invoicing.reports import OUTCOMES, turns
from apps.invoicing.settings import LOCKS, OUTBOX, Misconfigured
from holdfast.types import TickReport


class WorkerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ticks = Counter(
            "invoicing_worker_ticks", "Ticks in which a runner had something to do", registry=self.registry
        )
        self._processed = Counter(
            "invoicing_worker_processed",
            "Items that a runner has processed: attempts of the outbox, or items that a scheduler had the API make",
            ("runner",),
            registry=self.registry,
        )
        self._per_tick = Histogram(
            "invoicing_worker_tick_processed",
            "Items that a runner processed in one tick",
            ("runner",),
            buckets=(0, 1, 2, 5, 10, 20, 50, 100, 200),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "invoicing_worker_tick_seconds",
            "For a scheduler: the duration of one run, with all its API calls. For another runner: its turn in one "
            "tick, in which the outbox claims jobs and does not wait for them",
            ("runner",),
            registry=self.registry,
        )
        self._errors = Counter(
            "invoicing_worker_runner_errors", "Ticks in which a runner failed", ("runner",), registry=self.registry
        )
        self._outcomes = Counter(
            "invoicing_outbox_outcomes",
            "How attempts of jobs ended; the sum is the number that the outbox has processed",
            ("outcome",),
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)

    def add(self, report: TickReport) -> None:
        self._ticks.inc()
        for turn in turns(report):
            self._processed.labels(turn.runner).inc(turn.processed)
            self._per_tick.labels(turn.runner).observe(turn.processed)
            # A scheduler's calls continue after its turn in the tick, so add_run reports its time.
            if turn.runner not in LOCKS:
                self._seconds.labels(turn.runner).observe(turn.seconds)
            if turn.error is not None:
                self._errors.labels(turn.runner).inc()
            if turn.runner == OUTBOX:
                for outcome in OUTCOMES:
                    self._outcomes.labels(outcome).inc(turn.counts.get(outcome, 0))

    def add_run(self, scheduler: str, seconds: float) -> None:
        self._seconds.labels(scheduler).observe(seconds)

    @contextmanager
    def served(self, host: str, port: int | None) -> Iterator[None]:
        """Serve /metrics on this port, if one is set."""
        if port is None:
            yield
            return
        try:
            server, thread = start_http_server(port, host, self.registry)
        except (socket.gaierror, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a valid name"
            raise Misconfigured(f"WORKER_METRICS_HOST: {host} is not an address of this machine: {why}") from None
        except OSError as error:
            name = "HOST" if error.errno == errno.EADDRNOTAVAIL else "PORT"
            raise Misconfigured(f"WORKER_METRICS_{name}: cannot listen on {host}:{port}: {error.strerror}") from None
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
