"""Workers that survive a restore of their database, or a failover to a standby that lagged behind."""

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.job import Lease
from tests.store_contract.restoring import of_database
from tests.worker.harness import Database, final_job, renewing, until, working

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


async def test_a_worker_that_claims_the_same_job_twice_keeps_the_claims_apart(database: Database) -> None:
    app = Holdfast(database.url)
    begun: list[Lease] = []
    stopped: list[Lease] = []
    let_go = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> int:
        begun.append(job.lease)
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            stopped.append(job.lease)
            raise
        return job.fence

    async with app:
        id = (await app.enqueue("waits")).id
        restore = await of_database(database.url)
        async with working(app, renewing(concurrency=2)) as worker:
            await until(lambda: len(begun) == 1, "the job runs")
            await restore()
            await until(lambda: len(begun) == 2, "the restored job runs too")
            await until(lambda: stopped, "the handler from before the restore is told that it lost its lease")
            let_go.set()
            job = await final_job(app, id)
            await until(lambda: worker.worker.is_empty, "both are over")
    assert stopped == begun[:1]
    assert (job.state, job.fence, job.result) == (JobState.SUCCEEDED, begun[1].fence, begun[1].fence)
    assert worker.tally == {"lost": 1, "succeed": 1}
