"""A handler that blocks the event loop does not delay jobs that its worker has claimed but not started."""

from pathlib import Path

import pytest

from holdfast import JobState
from tests.worker import jobs
from tests.worker.conftest import Workers
from tests.worker.harness import Database, entries_of, until

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


async def test_jobs_waiting_in_a_worker_with_a_blocked_loop_are_run_by_another(
    database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        blocks = (await app.enqueue("blocks", {"name": "gate"}, priority=0)).id
        quick = [each.id for each in await app.enqueue_many([app.job("quick") for _ in range(20)])]
        blocked = workers.start(concurrency=20)
        await until(lambda: entries_of(tmp_path, blocks, "start"), "the loop is blocked")
        assert (await app.jobs.count())[JobState.RUNNING] == 20
        other = workers.start(concurrency=20)
        await until(lambda: all(entries_of(tmp_path, id, "end") for id in quick), "the other worker has done them", 10)
        assert not entries_of(tmp_path, blocks, "end")
        (tmp_path / "gate").touch()
        await until(lambda: entries_of(tmp_path, blocks, "end"), "the loop turns again")
        for worker in (blocked, other):
            await worker.stopped()
        found = [await app.jobs.get(id) for id in (blocks, *quick)]
    assert {(job.state, job.attempt, job.losses) for job in found if job} == {(JobState.SUCCEEDED, 1, 0)}
    assert all(len(entries_of(tmp_path, id, "start")) == 1 for id in (blocks, *quick))
    assert blocked.tally == {"succeed": 1, "release": 19}
    assert "lease was lost" not in blocked.log
