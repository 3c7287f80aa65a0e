"""The API's metrics for Prometheus: requests, waits, and the health of the queue."""

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import Holdfast, JobState, StoreUnavailable
from holdfast.types import JobFilter

if TYPE_CHECKING:
    from starlette.routing import Route

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
STATES = {
    JobState.READY: "PENDING",
    JobState.RUNNING: "PROCESSING",
    JobState.SUCCEEDED: "SENT",
    JobState.FAILED: "FAILED",
    JobState.DEAD: "FAILED",
    JobState.CANCELED: "CANCELED",
}
"""The outbox's names for the states of its jobs. It has no word for a canceled job, which keeps Holdfast's."""
_RETRIES_LOOKED_AT = 500


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "invoicing_http_requests", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "invoicing_http_request_seconds",
            "Time until a request was answered",
            ("route",),
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 5, 15, 30),
            registry=registry,
        )
        self.waits = Gauge("invoicing_pdf_waits", "Requests that are waiting for a PDF", registry=registry)
        self.answers = Counter(
            "invoicing_pdf_answers",
            "Answers to waiting requests; GONE: the client had disconnected",
            ("status",),
            registry=registry,
        )
        self._is_up = Gauge("invoicing_store_up", "Whether the store answered this scrape", registry=registry)

    async def scrape(self, app: Holdfast) -> bytes:
        """Return all metrics. If the store is unavailable, this process's own metrics remain."""
        queue = b""
        try:
            queue = generate_latest(await _looked(app))
            self._is_up.set(1)
        except StoreUnavailable:
            self._is_up.set(0)
        return generate_latest(self._registry) + queue


async def _looked(app: Holdfast) -> CollectorRegistry:
    """The health of the queue, in a new registry: if it cannot be read now, there are no values at all.

    Zeros or outdated values would silence an alert.
    """
    counts = dict.fromkeys(STATES.values(), 0)
    for state, number in (await app.jobs.count()).items():
        counts[STATES[state]] += number
    backlog = await app.jobs.backlog()
    pending = await app.jobs.list(JobFilter(state=JobState.READY), limit=_RETRIES_LOOKED_AT)

    registry = CollectorRegistry()
    jobs = Gauge("invoicing_outbox_jobs", "Jobs by state", ("state",), registry=registry)
    for name, number in counts.items():
        jobs.labels(name).set(number)
    Gauge(
        "invoicing_outbox_due_pending", "Jobs that could be claimed now, up to 10,000 per queue", registry=registry
    ).set(sum(queue.due for queue in backlog))
    Gauge("invoicing_outbox_oldest_pending_seconds", "How long the oldest due job has waited", registry=registry).set(
        max((queue.oldest.total_seconds() for queue in backlog), default=0.0)
    )
    Gauge(
        "invoicing_outbox_retrying",
        f"Pending jobs that were tried before, among the newest {_RETRIES_LOOKED_AT} pending ones",
        registry=registry,
    ).set(sum(job.attempt > 0 for job in pending))
    return registry


class CountRequests:
    """Counts requests by the route's path template. Ids in a label would make a new series for each invoice."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            matched: Route | None = scope.get("route")
            route = matched.path if matched is not None else "none"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.requests.labels(method, route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - begun)
