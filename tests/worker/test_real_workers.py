"""Real worker processes and signals: what happens to the jobs of a stopped or ending worker.

Workers that are killed, or paused for longer than their lease, are cases of the laboratory (R1, R2, R3, R5, R8).
"""

import signal
from pathlib import Path

import pytest

from holdfast import JobState
from tests.worker import jobs
from tests.worker.conftest import Workers
from tests.worker.harness import (
    Database,
    codes,
    entries_of,
    final_job,
    job_in_state,
    until,
)

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


@pytest.mark.parametrize("kind", ["gated", "gated_thread", "gated_child", "stubborn"])
async def test_a_handler_that_outlasts_the_shutdown_time_is_interrupted_and_uses_no_attempt(
    kind: str, database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        id = (await app.enqueue(kind, {"name": "never"})).id
        worker = workers.start(*(["os._exit"] if kind == "stubborn" else []), shutdown="200ms", concurrency=1)
        await until(lambda: entries_of(tmp_path, id, "start"), "the handler started")
        worker.send(signal.SIGTERM)
        assert await worker.exit_code() == 0
        job = await job_in_state(app, id, JobState.READY)
    assert job.attempt == 0
    assert job.losses == 0
    assert codes(job) == ["INTERRUPTED"]


async def test_a_worker_told_to_stop_lets_running_handlers_finish(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        ids = [(await app.enqueue(kind, {"name": "gate"})).id for kind in ("gated", "gated_thread", "gated_child")]
        worker = workers.start()
        await until(lambda: all(entries_of(tmp_path, id, "start") for id in ids), "the handlers started")
        worker.send(signal.SIGTERM)
        await until(lambda: "worker is stopping" in worker.log, "the worker is stopping")
        late = (await app.enqueue("quick")).id
        (tmp_path / "gate").touch()
        assert await worker.exit_code() == 0
        states = [(await final_job(app, id)).state for id in ids]
        unstarted = await app.jobs.get(late)
    assert states == [JobState.SUCCEEDED] * 3
    assert unstarted is not None
    assert (unstarted.state, unstarted.attempt) == (JobState.READY, 0)


async def test_a_worker_paused_between_finish_and_commit_keeps_its_job_and_commits_later(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "finished.hold").touch()
    async with jobs.build(database.url) as app:
        first = workers.start(lease="5s", concurrency=1)
        id = (await app.enqueue("asyncpg", {"url": database.url})).id
        await until((tmp_path / "finished.reached").exists, "the handler is inside its transaction")
        first.send(signal.SIGSTOP)
        (tmp_path / "finished.hold").unlink()
        second = workers.start(lease="5s", concurrency=1)
        await second.started()
        overdue = "SELECT 1 FROM holdfast.lease WHERE until < holdfast.now() - interval '1s'"
        await until(lambda: database.query(overdue), "the lease expired a while ago")
        assert await app.opened.store.rescue(10) == []
        first.send(signal.SIGCONT)
        job = await final_job(app, id)
        for worker in (first, second):
            worker.send(signal.SIGTERM)
            assert await worker.exit_code() == 0
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)
    assert database.effects(id) == ["written"]
    assert first.tally["succeed"] == 1
