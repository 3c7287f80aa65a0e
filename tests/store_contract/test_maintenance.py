"""Maintenance removes data older than its retention, with everything that belongs to it, and nothing else."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from typing import NamedTuple

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob
from holdfast.domain.job import IfExists, JobState
from holdfast.store.contract import Retrying
from holdfast.store.maintenance import Batch, MaintenanceStore
from holdfast.store.memory.maintenance import MemoryMaintenance
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresClock
from holdfast.store.schedules import NewRun
from tests.conftest import STORES
from tests.databases import Servers, StoreCase, opened_store
from tests.store_contract.steps import (
    START,
    enqueued,
    everything,
    in_state,
    job,
    lost,
    shown,
)

WEEK = timedelta(days=7)
DAY = timedelta(days=1)


class Kept(NamedTuple):
    case: StoreCase
    maintenance: MaintenanceStore


@pytest.fixture(params=("memory", *STORES))
async def kept(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Kept]:
    """Each store with its maintenance. Each test has its own database, because maintenance changes more than rows."""
    if request.param == "memory":
        memory = MemoryStore()
        await memory.clock.freeze(START)
        runs = MemoryRuns(memory)
        schedules = MemorySchedules(memory, runs)
        case = StoreCase("memory", memory, memory, memory.clock, schedules, runs)
        yield Kept(case, MemoryMaintenance(memory, runs))
        return
    with servers.get(request.param).fresh_database() as database:
        async with opened_store(database.url) as store:
            clock = PostgresClock(store)
            await clock.freeze(START)
            beside = PostgresReader(store), clock, PostgresSchedules(store), PostgresRuns(store)
            yield Kept(StoreCase(request.param, store, *beside), PostgresMaintenance(store))


async def done(batches: AsyncGenerator[Batch, None]) -> Counter[str]:
    counts: Counter[str] = Counter()
    async for batch in batches:
        assert batch.skipped is None
        counts.update(batch.counts)
    return counts


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.CANCELED])
async def test_a_finished_job_is_removed_when_its_retention_is_over(kept: Kept, state: JobState) -> None:
    case, maintenance = kept
    id = await in_state(case, state, key="invoice-1")
    await case.clock.advance(WEEK - DAY)
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 0
    assert (await shown(case, id)).state is state
    await case.clock.advance(2 * DAY + timedelta(seconds=1))
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 1
    assert await everything(case) == []
    assert (await case.reader.count())[state] == 0
    assert await case.store.retry([id]) == [Retrying.UNKNOWN]


async def test_a_key_can_be_reused_after_its_job_is_removed(kept: Kept) -> None:
    case, maintenance = kept
    first = await in_state(case, JobState.SUCCEEDED, key="invoice-1")
    (again,) = await case.store.enqueue([job(key="invoice-1")])
    assert (again.id, again.is_new) == (first, False)
    await case.clock.advance(30 * DAY)
    await done(maintenance.prune_jobs(WEEK))
    (again,) = await case.store.enqueue([job(key="invoice-1")])
    assert again.is_new


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.DEAD])
async def test_a_key_outlives_its_job_until_its_window_is_over(kept: Kept, state: JobState) -> None:
    case, maintenance = kept
    first = await in_state(case, state, key="report", window=30 * DAY)
    await case.clock.advance(30 * DAY - timedelta(seconds=1))
    await done(maintenance.prune_jobs(WEEK))
    await done(maintenance.prune_dead_letters(WEEK))
    assert await everything(case) == []
    for asked in (job(key="report", window=DAY), job(key="report")):
        (again,) = await case.store.enqueue([asked])
        assert (again.id, again.is_new) == (first, False)
    # Replacing a job that is gone makes a new one, which has the key from then on.
    (replacing,) = await case.store.enqueue([job(key="report", if_exists=IfExists.REPLACE)])
    assert replacing.is_new
    (again,) = await case.store.enqueue([job(key="report")])
    assert again.id == replacing.id


async def test_a_key_whose_window_is_over_is_free_before_and_after_its_removal(kept: Kept) -> None:
    case, maintenance = kept
    kinds = ("before", "after")
    for kind in kinds:
        await enqueued(case, kind=kind, key="report", window=DAY)
    await case.clock.advance(DAY)
    (before,) = await case.store.enqueue([job(kind="before", key="report")])
    await done(maintenance.prune_jobs(WEEK))
    (after,) = await case.store.enqueue([job(kind="after", key="report")])
    assert (before.is_new, after.is_new) == (True, True)
    # A key's current holder is not forgotten together with the expired window.
    await case.clock.advance(365 * DAY)
    await done(maintenance.prune_jobs(WEEK))
    again = await case.store.enqueue([job(kind=kind, key="report") for kind in kinds])
    assert [each.id for each in again] == [before.id, after.id]


async def test_repeating_a_call_with_the_same_id_makes_no_job_before_or_after_its_key_is_removed(kept: Kept) -> None:
    case, maintenance = kept
    id = await enqueued(case, key="report", window=DAY)
    await case.clock.advance(DAY)
    repeated = [job(id=id, key="report", window=DAY), job(id=id, key="report"), job(id=id, key="report")]
    for again in repeated:
        assert await case.store.enqueue([again]) == [Enqueued(id, is_new=False)]
        await done(maintenance.prune_jobs(WEEK))
    # The repeated calls did not take the key either.
    (new,) = await case.store.enqueue([job(key="report")])
    assert new.is_new
    for refused in (job(id=id, key="other"), job(id=id, key="report", kind="other"), job(id=id)):
        with pytest.raises(DuplicateJob, match=f"{id}.*exists"):
            await case.store.enqueue([refused])


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.FAILED, JobState.DEAD])
async def test_live_jobs_and_dead_letters_outlive_the_retention(kept: Kept, state: JobState) -> None:
    case, maintenance = kept
    id = await in_state(case, state, key="invoice-1")
    before = await shown(case, id)
    await case.clock.advance(365 * DAY)
    await done(maintenance.add_partitions(WEEK))
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 0
    assert await shown(case, id) == before
    assert (await case.reader.count())[state] == 1
    (again,) = await case.store.enqueue([job(key="invoice-1")])
    assert again.id == id


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.DEAD])
async def test_the_id_of_an_old_dead_letter_stays_taken(kept: Kept, state: JobState) -> None:
    case, maintenance = kept
    id = await in_state(case, state, key="invoice-1")
    await case.clock.advance(365 * DAY)
    await done(maintenance.prune_jobs(WEEK))
    for refused in (job(id=id), job(id=id, key="invoice-2"), job(id=id, key="invoice-1", kind="other")):
        with pytest.raises(DuplicateJob, match=f"{id}.*exists"):
            await case.store.enqueue([refused])
    assert await case.store.enqueue([job(id=id, key="invoice-1")]) == [Enqueued(id, is_new=False)]
    assert [found.id for found in await everything(case)] == [id]


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.DEAD])
async def test_a_dead_letter_is_removed_when_its_own_retention_is_over(kept: Kept, state: JobState) -> None:
    case, maintenance = kept
    old = await in_state(case, state, key="invoice-1")
    await case.clock.advance(29 * DAY)
    await done(maintenance.prune_jobs(WEEK))
    young = await in_state(case, state, kind="other")
    ready = await enqueued(case)
    await case.clock.advance(DAY + timedelta(seconds=1))
    assert (await done(maintenance.prune_dead_letters(30 * DAY)))["dead_letters_pruned"] == 1
    assert {found.id for found in await everything(case)} == {young, ready}
    assert (await case.reader.count())[state] == 1
    assert await case.store.retry([old]) == [Retrying.UNKNOWN]
    (again,) = await case.store.enqueue([job(key="invoice-1", kind="work")])
    assert again.is_new


async def test_a_job_that_a_person_retried_is_not_pruned_and_its_retention_starts_over(kept: Kept) -> None:
    case, maintenance = kept
    id = await in_state(case, JobState.SUCCEEDED)
    await case.clock.advance(30 * DAY)
    assert await case.store.retry([id]) == [Retrying.READY]
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 0
    await case.store.cancel([id])
    await case.clock.advance(WEEK - DAY)
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 0
    await case.clock.advance(3 * DAY)
    assert (await done(maintenance.prune_jobs(WEEK)))["jobs_pruned"] == 1


async def test_errors_are_kept_and_removed_with_their_job(kept: Kept) -> None:
    case, maintenance = kept
    goes = await lost(case, 1, kind="goes")
    await case.store.cancel([goes])
    stays = await lost(case, 2, kind="stays")
    await case.clock.advance(30 * DAY)
    await done(maintenance.prune_jobs(WEEK))
    assert [found.id for found in await everything(case)] == [stays]
    assert len((await shown(case, stays)).errors) == 2
    # A new job with the ID of the removed one inherits nothing.
    await case.store.enqueue([job(id=goes)])
    assert (await shown(case, goes)).errors == ()


async def test_runs_are_removed_when_their_retention_is_over(kept: Kept) -> None:
    case, maintenance = kept
    runs = case.runs
    for number in range(3):
        await runs.record(NewRun("report", f"ended-{number}"), timedelta(0), None, None)
    await runs.start(NewRun("report", "killed"))
    await case.clock.advance(10 * DAY)
    at_work = await runs.start(NewRun("report", "at work"))
    await runs.record(NewRun("queue", "young"), timedelta(0), None, None)
    await case.clock.advance(21 * DAY)
    assert (await done(maintenance.prune_runs(30 * DAY)))["runs_pruned"] == 4
    assert [run.replica for run in await runs.list(None, 10)] == ["young", "at work"]
    assert await runs.finish(at_work, None, None)
    newest = await runs.start(NewRun("report", "new"))
    assert newest > at_work
    await case.clock.advance(10 * DAY)
    assert (await done(maintenance.prune_runs(30 * DAY)))["runs_pruned"] == 1
    assert [run.replica for run in await runs.list(None, 10)] == ["new", "at work"]


async def test_maintenance_without_work_changes_nothing(kept: Kept) -> None:
    case, maintenance = kept
    id = await in_state(case, JobState.SUCCEEDED)
    before = await shown(case, id)
    # The store's clock is far from the days for which the store was set up, so there is work the first time.
    for step in (maintenance.add_partitions(WEEK), maintenance.prune_jobs(WEEK), maintenance.compact_counts()):
        await done(step)
    for _ in range(2):
        assert not any((await done(maintenance.add_partitions(WEEK))).values())
        assert not any((await done(maintenance.prune_jobs(WEEK))).values())
        assert not any((await done(maintenance.prune_dead_letters(WEEK))).values())
        assert not any((await done(maintenance.compact_counts())).values())
    assert await shown(case, id) == before


async def test_every_process_knows_which_maintenance_was_done_and_when(kept: Kept) -> None:
    case, maintenance = kept
    assert await maintenance.since_done() == {}
    await maintenance.mark_done("prune jobs")
    await case.clock.advance(DAY)
    await maintenance.mark_done("prune runs")
    assert await maintenance.since_done() == {"prune jobs": DAY, "prune runs": timedelta(0)}
    await maintenance.mark_done("prune jobs")
    assert await maintenance.since_done() == {"prune jobs": timedelta(0), "prune runs": timedelta(0)}
    # After the clock is moved back, a step must not wait until the clock has caught up.
    await case.clock.advance(-DAY)
    assert await maintenance.since_done() == {}


async def test_the_trouble_of_a_chore_is_known_until_a_pass_without_any(kept: Kept) -> None:
    maintenance = kept.maintenance
    assert await maintenance.troubles() == {}
    await maintenance.mark_failed("prune jobs", "an error")
    assert (await maintenance.since_done(), await maintenance.troubles()) == ({}, {"prune jobs": "an error"})
    await maintenance.mark_done("prune jobs", "a reason")
    await maintenance.mark_failed("prune runs", "another error")
    assert await maintenance.since_done() == {"prune jobs": timedelta(0)}
    assert await maintenance.troubles() == {"prune jobs": "a reason", "prune runs": "another error"}
    await maintenance.mark_done("prune jobs")
    assert await maintenance.troubles() == {"prune runs": "another error"}
