"""The worker: an app with the handlers and runners of this service, and the two ways to run it.

Only this module maps the worker's variables to settings of Holdfast.
"""

import logging

from apps.invoicing.handlers import add_handlers
from apps.invoicing.reports import QUEUE
from apps.invoicing.runners import OnRun, add_runners
from apps.invoicing.settings import OUTBOX, Misconfigured, Settings, milliseconds
from apps.invoicing.tools import Tools
from apps.invoicing.worker_metrics import WorkerMetrics
from holdfast import Holdfast, InvalidInput, run_tick, run_worker
from holdfast.logs import setup_logging
from holdfast.types import TickReport

log = logging.getLogger("invoicing.worker")

_MAINTENANCE = "maintenance"

# For errors that Holdfast may still find in one of them.
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
) -> Holdfast[Tools]:
    """Build the app. Its worker opens the tools. `on_run` is called after each run of a scheduler.

    `follows_up`: a scheduler that left items gets another turn at once. A tick is only one pass, so this does not apply
    to it.
    """
    longest_idle = milliseconds(settings.worker_idle_backoff_max_ms)
    error_backoff = milliseconds(settings.worker_tick_loop_error_backoff_ms)

    try:
        app = Holdfast(
            settings.database_url,
            lifespan=lambda app: tools.opened(app.url),
            runners=runner_names(settings),
            tick_max=milliseconds(settings.worker_tick_overall_max_ms),
            runner_max=milliseconds(settings.worker_tick_runner_max_ms),
            runner_items=settings.worker_tick_runner_max_items,
            shard_index=settings.worker_tick_shard_index,
            shard_count=settings.worker_tick_shard_count,
            # Zero would mean the same wait as after a tick that found nothing.
            busy_delay=milliseconds(max(1, settings.worker_busy_loop_delay_ms)),
            idle_backoff_min=milliseconds(settings.worker_idle_backoff_min_ms),
            # The same wait with and without PostgreSQL's notifications.
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
    add_handlers(app, settings)
    add_runners(app, settings, on_run, follows_up=follows_up)
    return app


def runner_names(settings: Settings) -> tuple[str, ...]:
    """The chosen runners under Holdfast's names. The store's maintenance always comes last, chosen or not."""
    return (*(QUEUE if name == OUTBOX else name for name in settings.worker_tick_runners), _MAINTENANCE)


def run_background(settings: Settings) -> int:
    """Run until SIGTERM or Ctrl-C, and return the exit code."""
    metrics = WorkerMetrics()
    app = build_app(settings, Tools(settings), metrics.add_run, follows_up=True)
    _set_up_logging(app, "info")
    # Open the port before anything else, so a port in use is reported at once.
    with metrics.served(settings.worker_metrics_host, settings.worker_metrics_port):
        _log_what_is_missing(settings)
        return run_worker(app, on_tick=metrics.add)


def run_once(settings: Settings) -> TickReport:
    """Run one tick."""
    app = build_app(settings, Tools(settings))
    _set_up_logging(app, "warning")
    return run_tick(app)


def _set_up_logging(app: Holdfast[Tools], level: str) -> None:
    setup_logging(app.settings, level=level)
    # A log line for each request of a scheduler is only noise.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _log_what_is_missing(settings: Settings) -> None:
    schedulers = [name for name in settings.worker_tick_runners if name != OUTBOX]
    if schedulers and None in (settings.worker_api_base_url, settings.worker_api_service_token):
        missing = "WORKER_API_BASE_URL and WORKER_API_SERVICE_TOKEN"
        log.warning("%s will fail until %s are set", " and ".join(schedulers), missing)
