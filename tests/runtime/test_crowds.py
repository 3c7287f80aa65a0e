"""Several workers sleep on a queue and none of them polls: each job wakes a worker that can take it."""

import signal
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Holdfast
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, eventually

pytestmark = pytest.mark.long

APP, ELSEWHERE = "tests.runtime.apps.crowded", "tests.runtime.apps.crowded_elsewhere"
JOBS = 8


def start(commands: Commands, *apps: str, concurrency: int = 4) -> list[Command]:
    size = {"concurrency": str(concurrency)}
    workers = [commands.start("worker", "--app", app, poll="1h", idle_backoff_min="1h", **size) for app in apps]
    for worker in workers:
        worker.has_logged("worker started")
    return workers


def all_asleep(database: Database, workers: int) -> None:
    """Wait until all workers sleep and know of each other, which they learn with every renewal."""
    count = "SELECT count(*) FROM holdfast.sleeper"
    eventually(lambda: database.query(count) == [(workers,)], "all sleep")
    ((now,),) = database.query("SELECT clock_timestamp()")
    renewed = "SELECT min(until) > %s + interval '15 seconds' FROM holdfast.sleeper"
    eventually(lambda: database.query(renewed, now) == [(True,)], "all have renewed their rows")


def has_noted(database: Database, id: UUID, note: str) -> None:
    eventually(lambda: note in database.effects(id), f"{note}: {id}")


@pytest.mark.fault
async def test_another_worker_takes_the_job_if_the_woken_one_is_frozen(database: Database, commands: Commands) -> None:
    frozen, _ = start(commands, APP, APP)
    all_asleep(database, 2)
    frozen.send(signal.SIGSTOP)
    async with Holdfast(database.url) as app:
        for _ in range(JOBS):
            has_noted(database, (await app.enqueue("quick")).id, "done")


async def test_a_batch_fills_the_slots_of_all_sleepers(database: Database, commands: Commands, tmp_path: Path) -> None:
    workers = start(commands, *[APP] * 3, concurrency=1)
    all_asleep(database, 3)
    async with Holdfast(database.url) as app:
        jobs = await app.enqueue_many([app.job("gated", "gate") for _ in workers])
        for job in jobs:
            has_noted(database, job.id, "started")
    (tmp_path / "gate").touch()


async def test_a_job_wakes_a_worker_with_a_handler_for_it(database: Database, commands: Commands) -> None:
    start(commands, APP, APP, ELSEWHERE)
    all_asleep(database, 3)
    async with Holdfast(database.url) as app:
        for kind in ["quick", "elsewhere"] * JOBS:
            has_noted(database, (await app.enqueue(kind)).id, "done")


async def test_a_worker_at_the_limit_of_a_kind_leaves_its_jobs_to_another(
    database: Database, commands: Commands, tmp_path: Path
) -> None:
    start(commands, APP, APP)
    all_asleep(database, 2)
    async with Holdfast(database.url) as app:
        for number in range(JOBS // 2):
            for _ in range(2):
                has_noted(database, (await app.enqueue("limited", f"gate-{number}")).id, "started")
            (tmp_path / f"gate-{number}").touch()


async def test_a_retry_is_left_to_another_if_its_worker_is_full_by_then(
    database: Database, commands: Commands, tmp_path: Path
) -> None:
    start(commands, APP, APP, concurrency=1)
    all_asleep(database, 2)
    async with Holdfast(database.url) as app:
        for number in range(JOBS):
            retried = (await app.enqueue("again")).id
            has_noted(database, retried, "attempt 1")
            slow = (await app.enqueue("gated", f"gate-{number}")).id
            has_noted(database, slow, "started")
            has_noted(database, retried, "attempt 2")
            (tmp_path / f"gate-{number}").touch()
