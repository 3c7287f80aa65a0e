"""Suspects and lost leases under concurrent transactions and with damaged rows."""

import logging
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.job import JobState, LeasedJob
from holdfast.domain.lifecycle import MOST_LOSSES, SUSPECT
from holdfast.store.contract import Fenced
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import in_schema
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast_lab.faults.sql_files import fault_statement
from tests.databases import Database, connected, impatient, opened_store
from tests.store_contract.steps import LEASE, SECOND, START, job, wants

SUSPECTS = wants(suspects=True)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast.suspects', 0))"
ONLY_18 = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def suspects(store: PostgresStore, number: int) -> list[UUID]:
    await PostgresClock(store).freeze(START)
    ids = [answer.id for answer in await store.enqueue([job() for _ in range(number)])]
    for _ in range(SUSPECT):
        assert len(await store.claim(wants())) == number
        await PostgresClock(store).advance(LEASE)
        assert len(await store.rescue(number)) == number
    return ids


async def suspicion(store: PostgresStore, id: UUID) -> int:
    found = await PostgresReader(store).get(id)
    assert found is not None
    return found.suspicion


async def test_of_two_concurrent_claims_of_suspects_one_gets_them_and_neither_waits(database: Database) -> None:
    async with opened_store(impatient(database.url, 200)) as store, connected(database.url) as other:
        ids = await suspects(store, 3)
        async with other.transaction():
            # The other claim holds its lock but has not leased anything yet.
            await other.execute(in_schema(_LOCK, "holdfast"))
            assert await store.claim(SUSPECTS) == []
        assert [each.id for each in await store.claim(SUSPECTS)] == ids


async def test_a_loss_is_absolved_once_the_row_of_its_job_is_unlocked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_store(impatient(database.url, 200)) as store, connected(database.url) as other:
        await PostgresClock(store).freeze(START)
        await store.enqueue([job()])
        (leased,) = await store.claim(wants())
        await PostgresClock(store).advance(LEASE)
        await store.rescue(1)
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM holdfast.ready FOR UPDATE")
        monkeypatch.setattr("holdfast.store.postgres.leasing._LOCKED_TRIES", 1)
        await store.absolve([leased.lease])
        assert await suspicion(store, leased.id) == 1
        await transaction.rollback()
        await store.absolve([leased.lease])
        assert await suspicion(store, leased.id) == 0


async def test_a_lease_being_finished_in_a_transaction_is_not_marked_as_running_alone(database: Database) -> None:
    async with opened_store(impatient(database.url, 200)) as store, connected(database.url) as other:
        await suspects(store, 1)
        (leased,) = await store.claim(SUSPECTS)
        async with other.transaction():
            await other.execute("SELECT FROM holdfast.lease FOR UPDATE")
            assert await store.run_alone(leased.lease, 1) is Fenced.LOCKED
        assert await store.run_alone(leased.lease, 1) is Fenced.DONE


@ONLY_18
@pytest.mark.parametrize("crash_limit", [0, 1000])
async def test_a_job_with_the_maximum_number_of_losses_is_rescued_and_claimed(
    database: Database, crash_limit: int
) -> None:
    """Its failed attempts still count as before."""
    failed = 3
    async with opened_store(database.url) as store, connected(database.url) as other:
        (id,) = await suspects(store, 1)
        await other.execute("UPDATE holdfast.ready SET losses = $1, attempt = $2", MOST_LOSSES, MOST_LOSSES + failed)
        for _ in range(3):
            (leased,) = await store.claim(SUSPECTS)
            assert (leased.losses, leased.attempt) == (MOST_LOSSES, MOST_LOSSES + failed + 1)
            if crash_limit:
                await store.run_alone(leased.lease, crash_limit)
            await PostgresClock(store).advance(LEASE)
            assert [each.state for each in await store.rescue(10)] == [JobState.READY]
            await PostgresClock(store).advance(timedelta(minutes=1))
        await other.execute("UPDATE holdfast.ready SET suspicion = $1", MOST_LOSSES)
        (leased,) = await store.claim(SUSPECTS)
        await store.run_alone(leased.lease, crash_limit or 1)
        await PostgresClock(store).advance(LEASE)
        assert [(each.id, each.state) for each in await store.rescue(10)] == [(id, JobState.DEAD)]


# One row that cannot be rescued

SPOILS = ["spoil_dead_letter", "spoil_finished", "spoil_ready"]


async def leased_and_lost(store: PostgresStore, number: int) -> list[LeasedJob]:
    await PostgresClock(store).freeze(START)
    await store.enqueue([job() for _ in range(number)])
    leased = await store.claim(wants(limit=number))
    await PostgresClock(store).advance(LEASE + SECOND)
    return leased


@ONLY_18
@pytest.mark.parametrize("spoil", SPOILS)
async def test_one_lease_that_cannot_be_rescued_does_not_delay_the_others(
    database: Database, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        leased = await leased_and_lost(store, 200)
        bad = leased[117].id
        await other.execute(fault_statement(spoil, "holdfast"), bad)
        with caplog.at_level(logging.ERROR):
            rescued = await store.rescue(500)
            assert {each.id for each in rescued} == {each.id for each in leased} - {bad}
            assert await store.rescue(500) == []
        (line,) = [record.getMessage() for record in caplog.records]
        assert str(bad) in line
        assert "unique constraint" in line


@ONLY_18
async def test_several_leases_that_cannot_be_rescued_do_not_delay_the_others(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        leased = await leased_and_lost(store, 200)
        bad = {each.id for each in leased[::7]}
        for id in bad:
            await other.execute(fault_statement("spoil_ready", "holdfast"), id)
        assert {each.id for each in await store.rescue(500)} == {each.id for each in leased} - bad


@ONLY_18
async def test_a_failed_rescue_is_tried_again_later(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("holdfast.store.rescue.monotonic", lambda: now)
    async with opened_store(database.url) as store, connected(database.url) as other:
        leased = await leased_and_lost(store, 3)
        await other.execute(fault_statement("spoil_ready", "holdfast"), leased[1].id)
        assert len(await store.rescue(10)) == 2
        await other.execute(fault_statement("mend_lease", "holdfast"), leased[1].id)
        assert await store.rescue(10) == []
        now += 5.1
        assert [each.id for each in await store.rescue(10)] == [leased[1].id]
