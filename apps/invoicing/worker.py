"""The worker: an app with the handlers and runners of this service, and the two ways to run it.

Every variable of the worker is a setting of Holdfast; this is the one place that says which.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apps.invoicing.handlers import add_handlers
from apps.invoicing.reports import QUEUE
from apps.invoicing.runners import OnRun, add_runners
from apps.invoicing.settings import OUTBOX, Misconfigured, Settings, milliseconds
from apps.invoicing.tools import Tools
from apps.invoicing.worker_metrics import WorkerMetrics
from holdfast import Holdfast, InvalidInput, TickReport, run_tick, run_worker

log = logging.getLogger("invoicing.worker")

_MAINTENANCE = "maintenance"

# For what Holdfast may still find wrong with one of them.
_VARIABLES = {
    "store": "DATABASE_URL",
    "concurrency": "OUTBOX_CONCURRENCY",
    "lease": "OUTBOX_LEASE_DURATION_MS",
    "poll": "WORKER_IDLE_BACKOFF_MAX_MS",
    "shard_count": "WORKER_TICK_SHARD_COUNT",
}


def build_app(
    settings: Settings,
    tools: Tools,
    on_run: OnRun = lambda _name, _seconds: None,
    *,
    follows_up: bool = False,
) -> Holdfast:
    """`tools` need not be open yet; they must be when the worker runs. `on_run`: after each run of a scheduler.

    `follows_up`: a scheduler that left something has another turn at once. A tick is one pass, so there it has not.
    """
    longest_idle = milliseconds(settings.worker_idle_backoff_max_ms)
    error_backoff = milliseconds(settings.worker_tick_loop_error_backoff_ms)
    try:
        app = Holdfast(
            settings.database_url,
            runners=runner_names(settings),
            tick_max=milliseconds(settings.worker_tick_overall_max_ms),
            runner_max=milliseconds(settings.worker_tick_runner_max_ms),
            runner_items=settings.worker_tick_runner_max_items,
            shard_index=settings.worker_tick_shard_index,
            shard_count=settings.worker_tick_shard_count,
            # None at all would mean the same wait as after a tick that found nothing.
            busy_delay=milliseconds(max(1, settings.worker_busy_loop_delay_ms)),
            idle_backoff_min=milliseconds(settings.worker_idle_backoff_min_ms),
            # The same whether PostgreSQL rings for it or not.
            idle_backoff_max=longest_idle,
            poll=longest_idle,
            idle_backoff_jitter=milliseconds(settings.worker_idle_backoff_jitter_ms),
            error_backoff_min=error_backoff,
            error_backoff_max=error_backoff,
            error_backoff_jitter=milliseconds(settings.worker_tick_loop_max_jitter_ms),
            shutdown=milliseconds(settings.worker_shutdown_timeout_ms),
            claim_max=settings.outbox_batch_size,
            concurrency=settings.outbox_concurrency,
            lease=milliseconds(settings.outbox_lease_duration_ms),
            renew=milliseconds(settings.outbox_lease_heartbeat_ms),
        )
    except InvalidInput as error:
        name, colon, problem = str(error).partition(":")
        raise Misconfigured(f"{_VARIABLES.get(name, name)}{colon}{problem}") from error
    add_handlers(app, settings, tools)
    add_runners(app, settings, on_run, follows_up=follows_up)
    return app


def runner_names(settings: Settings) -> tuple[str, ...]:
    """The chosen runners under Holdfast's names. Maintenance of the store comes last, chosen or not."""
    return (*(QUEUE if name == OUTBOX else name for name in settings.worker_tick_runners), _MAINTENANCE)


def run_background(settings: Settings) -> int:
    """Until SIGTERM or Ctrl-C; the exit code."""
    tools = Tools(settings)
    metrics = WorkerMetrics()
    app = build_app(settings, tools, metrics.add_run, follows_up=True)

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        _log_what_is_missing(settings)
        async with tools.opened(app.opened.url):
            # The first tick has everything in it, like any other.
            await ask_for_schedulers(app, settings)
            yield

    # Before anything else is opened, so that a port in use is found at once.
    with metrics.served(settings.worker_metrics_host, settings.worker_metrics_port):
        return run_worker(app, around=around, on_tick=metrics.add)


def run_once(settings: Settings) -> TickReport:
    """One tick, in which every chosen scheduler has its turn, whatever its timetable says."""
    tools = Tools(settings)
    app = build_app(settings, tools)

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        async with tools.opened(app.opened.url):
            await ask_for_schedulers(app, settings)
            yield

    return run_tick(app, around=around)


async def ask_for_schedulers(app: Holdfast, settings: Settings) -> None:
    await app.declare()
    now = await app.clock.now()
    # One that is due runs anyway, and twice in a row would be once too often. One that is paused is to rest.
    waiting = {each.name for each in await app.schedules.list() if each.next_occurrence > now and not each.paused}
    for name in settings.worker_tick_runners:
        if name in waiting:
            await app.schedules.run_now(name)


def _log_what_is_missing(settings: Settings) -> None:
    schedulers = [name for name in settings.worker_tick_runners if name != OUTBOX]
    if schedulers and None in (settings.worker_api_base_url, settings.worker_api_service_token):
        missing = "WORKER_API_BASE_URL and WORKER_API_SERVICE_TOKEN"
        log.warning("%s will fail until %s are set", " and ".join(schedulers), missing)
