"""Claims whose answer was lost: the worker releases the jobs, so none of them has to lose its lease."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob, StoreUnavailable
from holdfast.domain.claim import new_claim
from holdfast.domain.job import Lease, LeasedJob
from holdfast.store.claims import Taken
from holdfast.store.contract import ClaimRequest, JobFilter
from holdfast.store.memory.store import MemoryStore
from tests.worker.harness import Database, drained, fast, final_job, until, working

HOUR = timedelta(hours=1)


async def test_a_claim_executed_after_the_worker_looked_for_it_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Holdfast("memory:")
    app.handler("work")(_nothing)
    late: list[tuple[ClaimRequest, UUID]] = []
    looks = 0

    async with app:
        store = app.opened.store
        assert isinstance(store, MemoryStore)
        claim, leases_of = store.claim, store.leases_of

        async def lose_the_first(request: ClaimRequest) -> list[LeasedJob]:
            if not late and not request.suspects:
                late.append((request, new_claim(request.holder)))
                raise StoreUnavailable("the connection was lost")
            # No other claim may take the job before the late one.
            return await claim(request) if looks > 1 else []

        async def counted(holder: UUID) -> list[Lease]:
            nonlocal looks
            found = await leases_of(holder)
            looks += 1
            if looks == 1:
                assert len(store._claim(*late[0])) == 1
            return found

        monkeypatch.setattr(store, "claim", lose_the_first)
        monkeypatch.setattr(store, "leases_of", counted)
        id = (await app.enqueue("work")).id
        async with working(app, fast(lease=HOUR)):
            job = await final_job(app, id, seconds=10)
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)


@pytest.mark.postgres
async def test_the_jobs_of_a_claim_whose_lost_second_request_ran_late_are_released(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Holdfast(database.url)
    app.handler("work")(_nothing)
    lost: list[tuple[Any, ...]] = []
    requests = looks = 0

    async with app:
        store: Any = app.opened.store
        claim_from, leases_of = store.claim_from, store.leases_of

        async def lose_the_second(*arguments: Any) -> Taken:  # noqa: ANN401
            nonlocal requests
            requests += 1
            if requests == 2:
                lost.append(arguments)
                raise StoreUnavailable("the connection was lost")
            taken: Taken = await claim_from(*arguments)
            return taken

        async def counted(holder: UUID) -> list[Lease]:
            nonlocal looks
            found: list[Lease] = await leases_of(holder)
            looks += 1
            if looks == 1:
                assert (await claim_from(*lost[0])).jobs, "the server executes it now"
            return found

        monkeypatch.setattr(store, "claim_from", lose_the_second)
        monkeypatch.setattr(store, "leases_of", counted)
        await app.enqueue_many([app.job("work", priority=number % 10) for number in range(200)])
        async with working(app, fast(lease=HOUR, concurrency=100)):
            assert await drained(app, seconds=20) == {JobState.SUCCEEDED: 200}
        assert requests > 1
        assert {job.losses for job in await app.jobs.list(JobFilter(), 200)} == {0}


async def test_looking_ends_when_no_lease_of_a_lost_claim_can_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast("memory:")
    app.handler("work")(_nothing)
    monkeypatch.setattr("holdfast.worker.unheard._LATEST_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.worker.unheard._LOOK_SECONDS", 0.05)
    looks, failures = 0, 1

    async with app:
        store = app.opened.store
        claim, leases_of = store.claim, store.leases_of

        async def fail_once(request: ClaimRequest) -> list[LeasedJob]:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise StoreUnavailable("the connection was lost")
            return await claim(request)

        async def counted(holder: UUID) -> list[Lease]:
            nonlocal looks
            looks += 1
            return await leases_of(holder)

        monkeypatch.setattr(store, "claim", fail_once)
        monkeypatch.setattr(store, "leases_of", counted)
        async with working(app, fast(lease=timedelta(milliseconds=500))) as process:
            unheard = process.worker._unheard
            await until(lambda: looks > 1, "it looks more than once")
            await until(lambda: not unheard._lost, "but not forever")
            await unheard._look()
            assert await unheard._look() is None


def _nothing(job: RunningJob[Any]) -> None:
    """A handler."""
