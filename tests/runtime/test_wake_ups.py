"""How a real worker learns of jobs: through NOTIFY, even after its connection was killed, and by polling alone."""

import signal
import time

import pytest

from holdfast import Holdfast
from holdfast_lab.faults.proxy import Proxy
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, eventually

APP = "tests.runtime.apps.noting"
JOBS = 20
SECONDS = 60.0
"""For all jobs together. Even a worker that is not woken looks when it rescues, but only every ten seconds."""


async def enqueue_one_by_one(app: Holdfast, database: Database) -> None:
    """Enqueue each job when the previous one is done, so the worker is idle whenever a job arrives."""
    end = time.monotonic() + SECONDS
    for _ in range(JOBS):
        id = (await app.enqueue("quick")).id
        eventually(lambda job=id: database.effects(job), "the job is done", end - time.monotonic())  # type: ignore[misc]


def sleepers(database: Database) -> int:
    return len(database.query("SELECT holder FROM holdfast.sleeper"))


def kill_listener(database: Database) -> None:
    killed = database.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'listener'"
    )
    assert killed == [(True,)]


def end(worker: Command) -> None:
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.log


@pytest.mark.fault
async def test_a_worker_that_never_polls_is_woken_even_after_its_connection_was_killed(
    database: Database, commands: Commands
) -> None:
    listen_url = f"{database.url}&application_name=listener"
    worker = commands.start("worker", "--app", APP, poll="1h", idle_backoff_min="1h", listen_url=listen_url)
    async with Holdfast(database.url) as app:
        eventually(lambda: sleepers(database), "it sleeps")
        await enqueue_one_by_one(app, database)
        for _ in range(2):
            kill_listener(database)
            worker.has_logged("no wake-ups; polling continues")
            await enqueue_one_by_one(app, database)
    assert worker.log.count("wake-ups are back") == 2
    end(worker)
    assert sleepers(database) == 0


@pytest.mark.fault
async def test_a_worker_that_never_polls_notices_that_its_link_is_dead(
    database: Database, commands: Commands, proxy: Proxy
) -> None:
    worker = commands.start("worker", "--app", APP, poll="1h", idle_backoff_min="1h", listen_url=proxy.url)
    async with Holdfast(database.url) as app:
        eventually(lambda: sleepers(database), "it sleeps")
        proxy.half_open()
        await enqueue_one_by_one(app, database)
    assert "did not answer" in worker.log
    end(worker)


async def test_a_worker_that_does_not_listen_finds_jobs_by_polling(database: Database, commands: Commands) -> None:
    worker = commands.start("worker", "--app", APP, "--no-listen", "--poll", "100ms")
    worker.has_logged("worker started")
    async with Holdfast(database.url) as app:
        await enqueue_one_by_one(app, database)
    assert sleepers(database) == 0
    end(worker)
