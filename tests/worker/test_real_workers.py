"""Real worker processes, real signals: what a stopped, killed or ending worker does to its jobs."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast import JobState
from tests.worker import jobs
from tests.worker.conftest import Workers
from tests.worker.harness import (
    Database,
    codes,
    drained,
    entries_of,
    errors,
    final_job,
    job_in_state,
    journal,
    started_twice,
    until,
)

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


async def test_a_worker_stopped_past_its_lease_cannot_finish_what_another_has_finished(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        first = workers.start(lease="1s", concurrency=1)
        await first.started()
        id = (await app.enqueue("gated", {"name": "gate"})).id
        await until(lambda: entries_of(tmp_path, id, "start"), "the first worker started the job")
        first.send(signal.SIGSTOP)
        second = workers.start(lease="1s", concurrency=1)
        await until(lambda: len(entries_of(tmp_path, id, "start")) == 2, "the second worker started it")
        (tmp_path / "gate").touch()
        before = await final_job(app, id)
        assert before.state is JobState.SUCCEEDED
        first.send(signal.SIGCONT)
        # Its handler sees the open gate and ends, or is canceled; either way the worker has to learn of the loss.
        await until(lambda: "lease lost" in first.log or "lease was lost" in first.log, "the first worker was refused")
        first.send(signal.SIGTERM)
        second.send(signal.SIGTERM)
        assert await first.exit_code() == 0
        assert await second.exit_code() == 0
        assert await app.jobs.get(id) == before
    assert before.result == f'"{second.pid}"'
    assert codes(before) == ["LEASE_LOST"]
    assert (before.attempt, before.losses) == (2, 1)
    assert first.tally["succeed"] == 0
    assert first.tally["stale"] + first.tally["lost"] == 1
    assert second.tally["succeed"] == 1


async def test_a_worker_stopped_for_less_than_its_lease_keeps_its_jobs(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        first = workers.start(lease="5s", concurrency=1)
        await first.started()
        id = (await app.enqueue("gated", {"name": "gate"})).id
        await until(lambda: entries_of(tmp_path, id, "start"), "the job started")
        second = workers.start(lease="5s", concurrency=1)
        await second.started()
        for _ in range(3):
            first.send(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            first.send(signal.SIGCONT)
        (tmp_path / "gate").touch()
        job = await final_job(app, id)
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)
    assert not started_twice(journal(tmp_path))


async def test_a_job_that_kills_its_worker_dies_alone(database: Database, workers: Workers, tmp_path: Path) -> None:
    settings: dict[str, object] = {"lease": "1s", "concurrency": 250}
    async with jobs.build(database.url) as app:
        innocent = [app.job("quick", {"seconds": 0.01}) for _ in range(200)]
        guilty = app.job("killer")
        # In the middle, so that the first claim leases all of them together.
        await app.enqueue_many([*innocent[:100], guilty, *innocent[100:]])
        worker = workers.start(**settings)
        starts = 1

        async def nothing_is_live() -> bool:
            nonlocal worker, starts
            if not worker.is_running:
                worker, starts = workers.start(**settings), starts + 1
            counts = await app.jobs.count()
            return not counts[JobState.READY] and not counts[JobState.RUNNING]

        await until(nothing_is_live, "all jobs in a final state", 60)
        killer = await final_job(app, guilty.id)
        neighbours = [await final_job(app, new.id) for new in innocent]
        worker.send(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert (killer.state, killer.losses) == (JobState.DEAD, 3)
    assert codes(killer) == ["LEASE_LOST"] * 3
    assert [error["attempt"] for error in errors(killer)] == [1, 2, 3]
    assert {job.state for job in neighbours} == {JobState.SUCCEEDED}
    assert max(job.losses for job in neighbours) == 2
    assert starts == 4
    assert len(entries_of(tmp_path, guilty.id, "start")) == 3


async def test_jobs_of_a_worker_killed_in_mid_run_are_all_done_after_its_restart(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        enqueued = await app.enqueue_many([app.job("quick", {"seconds": 0.01}) for _ in range(300)])
        first = workers.start(lease="1s", concurrency=8)
        await until(lambda: len(journal(tmp_path)) > 100, "the worker is in the middle of it")
        first.send(signal.SIGKILL)
        await first.exit_code()
        second = workers.start(lease="1s", concurrency=8)
        assert await drained(app) == {JobState.SUCCEEDED: 300}
        second.send(signal.SIGTERM)
        assert await second.exit_code() == 0
        lost = [job for each in enqueued if (job := await app.jobs.get(each.id)) is not None and job.losses]
    assert lost
    assert all(codes(job) == ["LEASE_LOST"] for job in lost)
    # A second start is explained by a lost lease and by nothing else.
    assert set(started_twice(journal(tmp_path))) <= {job.id for job in lost}


async def test_a_worker_told_to_stop_under_load_gives_back_what_it_has_not_started(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        await app.enqueue_many([app.job("quick", {"seconds": 0.01}) for _ in range(3000)])
        worker = workers.start(concurrency=16, most_ahead=1000)
        await until(lambda: len(journal(tmp_path)) > 500, "the worker is under load")
        worker.send(signal.SIGTERM)
        assert await worker.exit_code(seconds=12) == 0
        counts = await app.jobs.count()
        attempts = database.query("SELECT DISTINCT attempt, losses FROM holdfast.ready")
        due = await app.opened.store.next_due(["default"], ["quick"])
    assert counts[JobState.RUNNING] == 0
    assert counts[JobState.READY] > 0
    assert attempts == [(0, 0)]
    assert due is not None
    assert not due
    assert counts[JobState.SUCCEEDED] == worker.tally["succeed"]
    starts = [entry.job for entry in journal(tmp_path) if entry.what == "start"]
    ends = [entry.job for entry in journal(tmp_path) if entry.what == "end"]
    assert set(starts) == set(ends)
    assert len(starts) == counts[JobState.SUCCEEDED]


@pytest.mark.parametrize("kind", ["gated", "gated_thread", "gated_child", "stubborn"])
async def test_a_handler_that_outlives_the_shutdown_time_is_interrupted_and_counts(
    kind: str, database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        id = (await app.enqueue(kind, {"name": "never"})).id
        worker = workers.start(*(["os._exit"] if kind == "stubborn" else []), shutdown="200ms", concurrency=1)
        await until(lambda: entries_of(tmp_path, id, "start"), "the handler started")
        worker.send(signal.SIGTERM)
        assert await worker.exit_code() == 0
        job = await job_in_state(app, id, JobState.READY)
    assert job.attempt == 1
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


async def test_a_worker_reborn_while_its_old_leases_last_waits_for_them(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        first = workers.start(lease="2s", concurrency=1)
        id = (await app.enqueue("gated", {"name": "gate"})).id
        await until(lambda: entries_of(tmp_path, id, "start"), "the job started")
        first.send(signal.SIGKILL)
        await first.exit_code()
        (tmp_path / "gate").touch()
        held = await app.jobs.get(id)
        assert held is not None
        assert held.lease_until is not None
        second = workers.start(lease="2s", concurrency=1)
        job = await final_job(app, id)
        second.send(signal.SIGTERM)
        assert await second.exit_code() == 0
    assert job.started_at is not None
    assert job.started_at >= held.lease_until
    assert job.fence is not None
    assert held.fence is not None
    assert job.fence > held.fence
    assert (job.attempt, job.losses) == (2, 1)


async def test_a_worker_killed_between_finish_and_commit_leaves_nothing_and_the_job_is_done_once(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "finished.hold").touch()
    async with jobs.build(database.url) as app:
        first = workers.start(lease="1s", concurrency=1)
        id = (await app.enqueue("asyncpg", {"url": database.url})).id
        await until((tmp_path / "finished.reached").exists, "the handler is inside its transaction")
        first.send(signal.SIGKILL)
        await first.exit_code()
        (tmp_path / "finished.hold").unlink()
        second = workers.start(lease="1s", concurrency=1)
        job = await final_job(app, id)
        second.send(signal.SIGTERM)
        assert await second.exit_code() == 0
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 2, 1)
    assert database.effects(id) == ["written"]
    assert database.query("SELECT count(*) FROM holdfast.ready WHERE kind = 'child'") == [(1,)]


async def test_a_worker_stopped_between_finish_and_commit_keeps_its_job_and_commits_later(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "finished.hold").touch()
    async with jobs.build(database.url) as app:
        first = workers.start(lease="1s", concurrency=1)
        id = (await app.enqueue("asyncpg", {"url": database.url})).id
        await until((tmp_path / "finished.reached").exists, "the handler is inside its transaction")
        first.send(signal.SIGSTOP)
        (tmp_path / "finished.hold").unlink()
        second = workers.start(lease="1s", concurrency=1)
        await second.started()
        overdue = "SELECT 1 FROM holdfast.lease WHERE until < holdfast.now() - interval '1s'"
        await until(lambda: database.query(overdue), "the lease ran out long ago")
        assert await app.opened.store.rescue(10) == []
        first.send(signal.SIGCONT)
        job = await final_job(app, id)
        for worker in (first, second):
            worker.send(signal.SIGTERM)
            assert await worker.exit_code() == 0
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)
    assert database.effects(id) == ["written"]
    assert first.tally["succeed"] == 1
