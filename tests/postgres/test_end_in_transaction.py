"""`finish_in` with an outcome: a handler's writes commit together with its failure, cancellation or snooze."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import asyncpg
import psycopg
import pytest

from holdfast.domain.claim import new_claim
from holdfast.domain.errors import StaleLease
from holdfast.domain.job import Job, JobState, Lease
from holdfast.domain.lifecycle import CANCEL_REQUESTED, Transition
from holdfast.store.contract import Canceling, Fenced, Finish, JobFilter, Renewal
from holdfast.store.events import NewSubscription
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, impatient, opened_store
from tests.store_contract.steps import BROKEN, ENDINGS, LEASE, OTHER_HOLDER, error_dicts, job, stored_error, wants

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("server", ["embedded-18"], indirect=True)]

Isolation = Literal["read_committed", "repeatable_read", "serializable"]
LEVELS: list[Isolation] = ["read_committed", "repeatable_read", "serializable"]


@dataclass(frozen=True, slots=True)
class Scene:
    store: PostgresStore
    clock: PostgresClock
    connection: "asyncpg.Connection[asyncpg.Record]"
    lease: Lease
    url: str

    async def end(self, ending: Transition, lease: Lease | None = None) -> None:
        await self.store.finish_in.end_statement(lease or self.lease, ending).execute_on(self.connection)

    async def shown(self) -> Job:
        found = await PostgresReader(self.store).get(self.lease.id)
        assert found is not None
        return found


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    async with opened_store(impatient(database.url, 150)) as store, connected(database.url) as connection:
        clock = PostgresClock(store)
        await clock.freeze(await clock.now())
        await PostgresEvents(store).declare([NewSubscription("work.dead", "holdfast.dead.work")])
        await store.enqueue([job()])
        (leased,) = await store.claim(wants())
        yield Scene(store, clock, connection, leased.lease, database.url)


async def made_by_death(scene: Scene) -> int:
    return len(await PostgresReader(scene.store).list(JobFilter(kind="work.dead"), 10))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_failure_commits_together_with_the_job_made_by_the_death_event(scene: Scene, level: Isolation) -> None:
    async with scene.connection.transaction(isolation=level):
        await scene.end(ENDINGS["fail"])
        assert (await scene.shown()).state is JobState.RUNNING
    found = await scene.shown()
    assert (found.state, found.attempt, found.fence) == (JobState.FAILED, 1, scene.lease.fence)
    assert error_dicts(found) == [stored_error(BROKEN, attempt=1, at=await scene.clock.now())]
    assert await made_by_death(scene) == 1
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["retry"])]) == [Fenced.ALREADY]
    assert await made_by_death(scene) == 1


async def test_a_cancellation_commits_and_is_not_a_death(scene: Scene) -> None:
    async with scene.connection.transaction():
        await scene.end(ENDINGS["cancel"])
    assert (await scene.shown()).state is JobState.CANCELED
    assert await made_by_death(scene) == 0
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["retry"])]) == [Fenced.ALREADY]


async def test_a_snooze_commits_and_does_not_count_the_attempt(scene: Scene) -> None:
    async with scene.connection.transaction():
        await scene.end(ENDINGS["snooze"])
    found = await scene.shown()
    assert (found.state, found.attempt) == (JobState.READY, 0)
    assert found.run_at == await scene.clock.now() + timedelta(seconds=5)
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["retry"])]) == [Fenced.STALE]
    await scene.clock.advance(timedelta(seconds=5))
    (again,) = await scene.store.claim(wants())
    assert (again.id, again.attempt) == (scene.lease.id, 1)


@pytest.mark.parametrize("ending", ["fail", "cancel", "snooze"])
async def test_a_rollback_undoes_the_ending(scene: Scene, ending: str) -> None:
    transaction = scene.connection.transaction()
    await transaction.start()
    await scene.end(ENDINGS[ending])
    await transaction.rollback()
    assert (await scene.shown()).state is JobState.RUNNING
    assert await made_by_death(scene) == 0
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["succeed"])]) == [Fenced.DONE]


@pytest.mark.parametrize("ending", ["fail", "cancel", "snooze"])
@pytest.mark.parametrize("level", LEVELS)
async def test_a_lost_lease_aborts_the_transaction(scene: Scene, level: Isolation, ending: str) -> None:
    await scene.connection.execute("CREATE TABLE effect (number integer)")
    transaction = scene.connection.transaction(isolation=level)
    await transaction.start()
    await scene.connection.execute("INSERT INTO effect VALUES (1)")
    await scene.clock.advance(LEASE)
    await scene.store.rescue(10)
    with pytest.raises(StaleLease if level == "read_committed" else asyncpg.SerializationError):
        await scene.end(ENDINGS[ending])
    assert await scene.connection.execute("COMMIT") == "ROLLBACK"
    assert await scene.connection.fetchval("SELECT count(*) FROM effect") == 0
    assert (await scene.shown()).state is JobState.READY
    assert await made_by_death(scene) == 0


async def test_another_claim_is_stale(scene: Scene) -> None:
    with pytest.raises(StaleLease, match="was lost"):
        await scene.end(ENDINGS["fail"], scene.lease._replace(claim=new_claim(OTHER_HOLDER)))


async def test_other_verbs_do_not_wait_for_the_transaction(scene: Scene) -> None:
    async with scene.connection.transaction():
        await scene.end(ENDINGS["fail"])
        (renewed,) = await scene.store.renew([Renewal(scene.lease, LEASE)])
        assert renewed.fenced is Fenced.LOCKED
        assert await scene.store.cancel([scene.lease.id]) == [Canceling.LOCKED]
        await scene.clock.advance(LEASE)
        assert await scene.store.rescue(10) == []
    assert (await scene.shown()).state is JobState.FAILED


async def test_a_snooze_cancels_a_job_that_a_person_canceled(scene: Scene) -> None:
    await scene.store.cancel([scene.lease.id])
    async with scene.connection.transaction():
        await scene.end(ENDINGS["snooze"])
    found = await scene.shown()
    assert (found.state, error_dicts(found)[0]["code"]) == (JobState.CANCELED, CANCEL_REQUESTED.code)


async def test_finish_in_works_from_psycopg_too(scene: Scene) -> None:
    with psycopg.connect(scene.url) as blocking:
        assert scene.store.finish_in.end_statement(scene.lease, ENDINGS["fail"]).execute_on(blocking) is None
    assert (await scene.shown()).state is JobState.FAILED
    assert await made_by_death(scene) == 1
