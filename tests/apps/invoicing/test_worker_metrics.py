"""The metrics of a worker: how long a scheduler's calls took, and how every attempt ended."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from apps.invoicing.jobs import RENDER_PDF, RenderPdf
from apps.invoicing.reports import OUTCOMES
from apps.invoicing.settings import OUTBOX, REMINDERS, Settings
from apps.invoicing.tools import Tools
from apps.invoicing.worker import build_app
from apps.invoicing.worker_metrics import WorkerMetrics
from tests.apps.invoicing.issuing import Bench, worker_settings
from tests.apps.invoicing.mail_server import mail_server
from tests.apps.invoicing.patience import PATIENCE, until
from tests.apps.invoicing.scheduler_api import TOKEN, scheduler_api
from tests.databases import Database

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def measured_bench(settings: Settings) -> AsyncIterator[tuple[Bench, WorkerMetrics]]:
    tools, metrics = Tools(settings), WorkerMetrics()
    app = build_app(settings, tools, metrics.add_run)
    app.lifespan = lambda _app: nullcontext(tools)
    async with app, tools.opened(app.url):
        yield Bench(app, tools, settings), metrics


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("status", [200, 500])
async def test_the_seconds_of_a_scheduler_are_the_duration_of_its_calls(
    database: Database, tmp_path: Path, status: int
) -> None:
    """In the background, where a scheduler's turn in the tick ends at once."""
    async with scheduler_api() as api:
        api.hold.clear()
        api.status = status
        settings = worker_settings(database.url, tmp_path, worker_api_base_url=api.url, worker_api_service_token=TOKEN)
        async with measured_bench(settings) as (bench, metrics):
            process = bench.app.worker(runners=(REMINDERS,))
            await bench.app.declare()
            await bench.app.schedules.run_now(REMINDERS)
            running = asyncio.create_task(process.run(metrics.add))
            await asyncio.wait_for(api.waiting.wait(), PATIENCE)
            began = time.monotonic()
            await asyncio.sleep(0.2)
            held = time.monotonic() - began
            api.hold.set()
            await until(lambda: value(metrics, "invoicing_worker_tick_processed_count", runner=REMINDERS) > 0)
            process.stop()
            await running
    runs = value(metrics, "invoicing_worker_tick_seconds_count", runner=REMINDERS)
    assert runs == len(api.calls)
    assert value(metrics, "invoicing_worker_tick_seconds_sum", runner=REMINDERS) >= held


async def test_every_attempt_that_was_processed_has_an_outcome(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails:
        mails.refuse = "451 try later"
        settings = worker_settings(database.url, tmp_path, smtp_url=mails.url, outbox_max_attempts=2)
        async with measured_bench(settings) as (bench, metrics):
            await bench.issue(1)
            await bench.issue(2, template="unknown")
            # This invoice's mail waits for its PDF, which is not due yet.
            waiting = await bench.issue(3)
            await bench.app.cancel([waiting.render_job])
            later = await bench.app.enqueue(RENDER_PDF, RenderPdf(waiting.document_id), delay="1h")
            await bench.tools.pool.execute(
                "UPDATE platform.document SET job_id = $1 WHERE id = $2", later.id, waiting.document_id
            )
            for _ in range(4):
                metrics.add(await bench.work())
                await bench.app.clock.advance(timedelta(seconds=10))
    ended = {outcome: value(metrics, "invoicing_outbox_outcomes_total", outcome=outcome) for outcome in OUTCOMES}
    assert ended.pop("canceled") == 0
    assert set(ended) == {"sent", "failed", "retried", "postponed"}
    assert all(ended.values()), ended
    assert sum(ended.values()) == value(metrics, "invoicing_worker_processed_total", runner=OUTBOX)
