"""The variables of the background loop: when a worker looks again after work, without work, and after a failure.

Each wait either ends at once or outlasts the test, so the speed of the machine does not matter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from apps.invoicing.runners import ENDPOINTS
from apps.invoicing.settings import BILLING, REMINDERS
from apps.invoicing.worker import runner_names
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.schedules import DueSchedules
from holdfast.worker.turn import Turn
from holdfast.worker.worker import Worker
from tests.apps.invoicing.issuing import Bench, opened_bench, worker_settings
from tests.apps.invoicing.patience import until
from tests.apps.invoicing.scheduler_api import TOKEN, scheduler_api
from tests.databases import Database

pytestmark = pytest.mark.postgres

FOR_EVER = 10**9
"""In milliseconds: eleven days. A random part of it is below one second only once in a million times."""

_LONG_ENOUGH_SECONDS = 0.7

QUICK = {
    "worker_busy_loop_delay_ms": 10,
    "worker_idle_backoff_min_ms": 10,
    "worker_idle_backoff_max_ms": 20,
    "worker_idle_backoff_jitter_ms": 0,
    "worker_tick_loop_error_backoff_ms": 10,
    "worker_tick_loop_max_jitter_ms": 0,
}
RESTING = {"worker_idle_backoff_min_ms": FOR_EVER, "worker_idle_backoff_max_ms": FOR_EVER}
"""With these waits, this worker never looks again without a reason."""


@pytest.fixture(autouse=True)
def no_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wake-ups, because a wake-up ends every wait."""
    monkeypatch.setenv("HOLDFAST_LISTEN", "false")


@asynccontextmanager
async def opened(database: Database, folder: Path, **variables: object) -> AsyncIterator[Bench]:
    async with opened_bench(worker_settings(database.url, folder, **{**QUICK, **variables})) as bench:
        yield bench


@asynccontextmanager
async def working(bench: Bench, runners: Sequence[str] = ("queue",)) -> AsyncIterator[None]:
    worker = bench.app.worker(runners=runners)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def add_job(bench: Bench, number: int) -> UUID:
    """Add one job alone: the tax job of an invoice."""
    issued = await bench.issue(number)
    await bench.app.cancel([issued.render_job, issued.email_job])
    return issued.tax_job


async def is_done(bench: Bench, job: UUID) -> None:
    await until(lambda: bench.is_final(job))


async def is_left_alone(bench: Bench, job: UUID) -> None:
    await asyncio.sleep(_LONG_ENOUGH_SECONDS)
    assert (await bench.job(job)).attempt == 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which the looks for jobs ended. The first look also asks for suspects."""
    over: list[float] = []
    fill = Worker.fill

    async def noted(self: Worker, limit: int | None = None, **how: bool) -> Turn:
        look = await fill(self, limit, **how)
        over.append(time.monotonic())
        return look

    monkeypatch.setattr(Worker, "fill", noted)
    return over


async def is_resting(looks: list[float], after: int) -> None:
    """Wait until there have been `after` looks, and check that no more follow."""
    await until(lambda: len(looks) >= after)
    await asyncio.sleep(_LONG_ENOUGH_SECONDS)
    assert len(looks) == after


async def test_the_first_tick_comes_at_once(database: Database, tmp_path: Path) -> None:
    async with opened(database, tmp_path, **RESTING) as bench:
        job = await add_job(bench, 1)
        async with working(bench):
            await is_done(bench, job)


async def test_batches_follow_each_other_while_jobs_remain(database: Database, tmp_path: Path) -> None:
    variables = {**RESTING, "worker_busy_loop_delay_ms": FOR_EVER, "outbox_batch_size": 1}
    async with opened(database, tmp_path, **variables) as bench:
        jobs = [await add_job(bench, number) for number in range(5)]
        async with working(bench):
            for job in jobs:
                await is_done(bench, job)


async def test_a_tick_that_did_work_is_soon_followed_by_another(
    database: Database, tmp_path: Path, looks: list[float]
) -> None:
    async with opened(database, tmp_path, **RESTING) as bench:
        await add_job(bench, 1)
        async with working(bench):
            await is_resting(looks, after=2)


@pytest.mark.parametrize("name", ["worker_busy_loop_delay_ms", "worker_idle_backoff_jitter_ms"])
async def test_after_work_the_next_tick_comes_after_the_busy_delay_and_the_jitter(
    database: Database, tmp_path: Path, looks: list[float], name: str
) -> None:
    async with opened(database, tmp_path, **{name: FOR_EVER}) as bench:
        await add_job(bench, 1)
        async with working(bench):
            await is_resting(looks, after=1)


@pytest.mark.parametrize("name", ["worker_idle_backoff_min_ms", "worker_idle_backoff_jitter_ms"])
async def test_after_an_idle_tick_the_next_comes_after_the_idle_back_off_and_the_jitter(
    database: Database, tmp_path: Path, looks: list[float], name: str
) -> None:
    variables = {**(RESTING if name.endswith("min_ms") else {}), name: FOR_EVER}
    async with opened(database, tmp_path, **variables) as bench, working(bench):
        await is_resting(looks, after=1)
        await is_left_alone(bench, await add_job(bench, 1))


async def test_an_idle_worker_with_schedulers_does_not_query_the_database(
    database: Database, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    due = PostgresSchedules.due
    asked: list[Sequence[str]] = []

    async def noted(self: PostgresSchedules, declared: Sequence[str]) -> DueSchedules:
        asked.append(declared)
        return await due(self, declared)

    monkeypatch.setattr(PostgresSchedules, "due", noted)
    async with opened(database, tmp_path, **RESTING) as bench, working(bench, runner_names(bench.settings)):
        await until(lambda: len(looks) >= 1)
        await until(lambda: bool(asked))
        # A little over a second, the interval at which the worker used to look for schedules.
        await asyncio.sleep(2 * _LONG_ENOUGH_SECONDS)
        assert (len(looks), len(asked)) == (1, 1)


async def test_a_busy_delay_of_zero_means_no_delay(database: Database, tmp_path: Path, looks: list[float]) -> None:
    async with opened(database, tmp_path, **RESTING, worker_busy_loop_delay_ms=0) as bench:
        await add_job(bench, 1)
        async with working(bench):
            await is_resting(looks, after=2)


async def test_the_idle_back_off_ends_at_its_maximum(database: Database, tmp_path: Path, looks: list[float]) -> None:
    """Twenty doublings of ten milliseconds would be hours."""
    async with opened(database, tmp_path) as bench, working(bench):
        await until(lambda: len(looks) > 20)
        await is_done(bench, await add_job(bench, 1))


async def test_the_idle_back_off_doubles(database: Database, tmp_path: Path, looks: list[float]) -> None:
    variables = {"worker_idle_backoff_min_ms": 2, "worker_idle_backoff_max_ms": FOR_EVER}
    async with opened(database, tmp_path, **variables) as bench, working(bench):
        await until(lambda: len(looks) > 8)
    waits = [later - earlier for earlier, later in pairwise(looks)]
    assert all(wait >= 0.001 * 2**times for times, wait in enumerate(waits))


@pytest.mark.parametrize(
    ("variables", "comes_back"),
    [
        ({}, True),
        ({"worker_tick_loop_error_backoff_ms": FOR_EVER}, False),
        ({"worker_tick_loop_max_jitter_ms": FOR_EVER}, False),
    ],
    ids=["at once", "error back-off", "its jitter"],
)
async def test_the_error_back_off_comes_after_a_tick_that_failed(
    database: Database,
    tmp_path: Path,
    variables: dict[str, object],
    comes_back: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(database, tmp_path, **variables) as bench:
        job = await add_job(bench, 1)
        await bench.tools.pool.execute("ALTER TABLE holdfast.job RENAME TO away")
        try:
            async with working(bench):
                await until(lambda: "runner failed, trying again" in caplog.text)
                await bench.tools.pool.execute("ALTER TABLE holdfast.away RENAME TO job")
                await (is_done if comes_back else is_left_alone)(bench, job)
        finally:
            await bench.tools.pool.execute("ALTER TABLE IF EXISTS holdfast.away RENAME TO job")


@pytest.mark.parametrize(
    ("variables", "calls"),
    [
        ({}, 3),
        ({"worker_tick_loop_error_backoff_ms": FOR_EVER}, 1),
        ({"worker_tick_loop_max_jitter_ms": FOR_EVER}, 1),
    ],
    ids=["at once", "error back-off", "its jitter"],
)
async def test_a_failed_scheduler_runs_again_after_the_error_back_off_and_delays_no_other(
    database: Database, tmp_path: Path, variables: dict[str, object], calls: int
) -> None:
    """Both are due every second."""
    reminders, billing = ENDPOINTS[REMINDERS], ENDPOINTS[BILLING]
    async with scheduler_api() as api:
        api.refused = {reminders}
        given = {"worker_api_base_url": api.url, "worker_api_service_token": TOKEN, **variables}
        async with opened(database, tmp_path, **given) as bench, working(bench, runner_names(bench.settings)):
            await until(lambda: api.calls.count(billing) >= 4)
            assert api.calls.count(reminders) >= calls
            if variables:
                assert api.calls.count(reminders) == calls
