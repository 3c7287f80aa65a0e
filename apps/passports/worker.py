"""The app and its worker. Only this module maps the application's variables to settings of Holdfast."""

import logging
from datetime import timedelta

from apps.passports.codes import DB_UNAVAILABLE, DatabaseUnavailable
from apps.passports.deliveries import settle_all
from apps.passports.handlers.compile_passport import compile_passport
from apps.passports.handlers.deliver_webhook import deliver_webhook, fail_delivery
from apps.passports.handlers.generate_qr import generate_qr
from apps.passports.handlers.parse_facts import parse_facts
from apps.passports.handlers.sign_passport import sign_passport
from apps.passports.jobs import (
    COMPILE_PASSPORT,
    DELIVER_WEBHOOK,
    GENERATE_QR,
    PARSE_FACTS,
    QUEUE,
    SIGN_PASSPORT,
    Priority,
)
from apps.passports.settings import Misconfigured, Settings
from apps.passports.tools import Tools
from holdfast import Holdfast, InvalidInput, run_worker
from holdfast.backoff import power_of_two
from holdfast.logs import setup_logging
from holdfast.schedules import Occurrence

log = logging.getLogger("passports.worker")

_LONGEST_DELAY = timedelta(seconds=1024)


def build_app(settings: Settings, tools: Tools | None = None) -> Holdfast[Tools]:
    """Build the app. The API uses it to enqueue and to read jobs; a worker also opens its lifespan, the tools."""
    tools = tools or Tools(settings)
    poll = timedelta(milliseconds=settings.bpc_jobs_poll_interval_ms)
    try:
        app = Holdfast(
            settings.bpc_database_url,
            lifespan=tools.opened,
            concurrency=settings.bpc_jobs_concurrency,
            lease=timedelta(seconds=settings.bpc_jobs_lease_seconds),
            renew=timedelta(seconds=settings.bpc_jobs_lease_renew_seconds),
            poll=poll,
            # The same interval while idle, with and without wake-ups.
            idle_backoff_min=poll,
            idle_backoff_max=poll,
            rabbitmq_url=settings.bpc_queue_url if settings.bpc_queue_enabled else None,
            rabbitmq_exchange=settings.bpc_queue_exchange,
            rabbitmq_routing_key=settings.bpc_queue_routing_key,
            health_broker=settings.bpc_health_require_queue,
        )
    except InvalidInput as error:
        raise Misconfigured(str(error)) from error
    _add_handlers(app, settings)
    return app


def _add_handlers(app: Holdfast[Tools], settings: Settings) -> None:
    attempts, backoff = settings.bpc_jobs_max_attempts, power_of_two(_LONGEST_DELAY)
    app.handler(PARSE_FACTS, attempts=attempts, backoff=backoff)(parse_facts)
    app.handler(COMPILE_PASSPORT, attempts=attempts, backoff=backoff)(compile_passport)
    app.handler(SIGN_PASSPORT, attempts=attempts, backoff=backoff)(sign_passport)
    app.handler(GENERATE_QR, attempts=attempts, backoff=backoff)(generate_qr)
    # A receiver may take half a minute. Half of the slots remain for everything else.
    at_once = max(1, settings.bpc_jobs_concurrency // 2)
    app.handler(DELIVER_WEBHOOK, attempts=attempts, backoff=backoff, limit=at_once)(deliver_webhook)
    app.on_dead(DELIVER_WEBHOOK, priority=Priority.CRITICAL, queue=QUEUE, attempts=attempts, backoff=backoff)(
        fail_delivery
    )
    app.error(DatabaseUnavailable, code=DB_UNAVAILABLE)

    @app.runner("settle deliveries", "every 1m")
    async def settle_deliveries(occurrence: Occurrence) -> dict[str, int]:
        """A canceled or deleted job is no death, so nothing else ends its delivery."""
        tools: Tools = occurrence.state
        return {"settled": await settle_all(tools.pool, app)}


def run_background(settings: Settings) -> int:
    """Run until SIGTERM or Ctrl-C, and return the exit code."""
    app = build_app(settings)
    setup_logging(app.settings, level="info")
    if settings.bpc_signing_key is None:
        log.warning("BPC_SIGNING_KEY is not set: signing will fail with SIGNING_KEY_MISSING")
    return run_worker(app)
