"""Tables of the application that refer to Holdfast's own: what they refuse stays, and everything else is removed."""

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from holdfast.doctor.findings import Level
from holdfast.domain.lifecycle import Move, Transition
from holdfast.maintenance.chores import Chore, Retention, all_chores, run_chore
from holdfast.store.contract import Finish
from holdfast.store.postgres import maintenance
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.doctor.examined import only
from tests.postgres.past import (
    RETENTION,
    add_days,
    day_of,
    days_with_partitions,
    id_of,
    is_sound,
    pruned,
    skipped,
)
from tests.store_contract.steps import ENDINGS, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

SUCCEED = Transition(Move.SUCCEED)
OLDEST, LATER = 8, 5
OTHER = UUID(int=1)
"""An ID of the default partition."""


async def ended(store: PostgresStore, ids: Iterable[UUID], transition: Transition = SUCCEED) -> None:
    """Make these jobs, and end them long before the retention."""
    await store.enqueue([job(id=id) for id in ids])
    leased = await store.claim(wants(limit=5_000, lease=timedelta(days=1000)))
    await store.finish([Finish(each.lease, transition) for each in leased])
    await PostgresClock(store).advance(timedelta(days=10))


async def refer(connection: "asyncpg.Connection[asyncpg.Record]", *ids: UUID, rule: str = "", to: str = "job") -> None:
    await connection.execute(f"CREATE TABLE invoice (job_id uuid REFERENCES holdfast.{to} (id) {rule})")
    await connection.executemany("INSERT INTO invoice VALUES ($1)", [(id,) for id in ids])


async def remaining(connection: "asyncpg.Connection[asyncpg.Record]", table: str = "job") -> set[UUID]:
    return {row["id"] for row in await connection.fetch(f"SELECT id FROM holdfast.{table}")}


def chore(store: PostgresStore, name: str) -> Chore:
    retention = Retention(RETENTION, RETENTION, RETENTION)
    return next(each for each in all_chores(PostgresMaintenance(store), retention) if each.name == name)


async def test_a_job_that_an_invoice_refers_to_stays_and_all_others_go(database: Database) -> None:
    ids = [id_of(days) for days in (OLDEST, LATER) for _ in range(20)]
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        await ended(store, [*ids, OTHER])
        await refer(connection, ids[3], ids[11])
        assert (await pruned(store))["jobs_pruned"] == len(ids) + 1 - 2
        assert await remaining(connection) == {ids[3], ids[11]}
        assert await days_with_partitions(connection) == [day_of(OLDEST), day_of(LATER)]
        await pruned(store)
        assert await days_with_partitions(connection) == [day_of(OLDEST)]
        await is_sound(connection)
        await connection.execute("DELETE FROM invoice")
        assert (await pruned(store))["jobs_pruned"] == 2


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL"])
async def test_a_foreign_key_that_lets_its_job_go_keeps_nothing(database: Database, rule: str) -> None:
    ids = [id_of(OLDEST) for _ in range(5)]
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        await ended(store, ids)
        await refer(connection, *ids, rule=rule)
        await pruned(store)
        assert await remaining(connection) == set()
        await pruned(store)
        assert day_of(OLDEST) not in await days_with_partitions(connection)
        await is_sound(connection)


async def test_a_view_of_one_partition_keeps_only_that_partition(database: Database) -> None:
    ids = [id_of(days) for days in (OLDEST, LATER)]
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        await ended(store, ids)
        await connection.execute(f"CREATE VIEW seen AS SELECT * FROM holdfast.job_{day_of(OLDEST):%Y%m%d}")
        (reason,) = await skipped(store)
        assert reason.startswith(f"{day_of(OLDEST)}: ")
        assert "view public.seen depends on " in reason
        assert await remaining(connection) == set()
        assert day_of(LATER) not in await days_with_partitions(connection)
        await is_sound(connection)


async def test_dead_letters_behind_batches_that_must_stay_are_removed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_BATCH", 10)
    kept, old = [id_of(LATER) for _ in range(25)], [id_of(LATER) for _ in range(25)]
    async with opened_store(database.url) as store, connected(database.url) as connection:
        for ids in (kept, old):
            await ended(store, ids, ENDINGS["fail"])
        await refer(connection, *kept)
        report = await run_chore(PostgresMaintenance(store), chore(store, "prune dead letters"), lambda: False)
        assert (report.counts["dead_letters_pruned"], report.error, report.is_done) == (25, None, True)
        assert await remaining(connection, "dead_letter") == set(kept)
        await is_sound(connection)


async def test_a_pass_tries_a_limited_number_of_jobs_that_must_stay_and_the_next_one_continues(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_BATCH", 10)
    monkeypatch.setattr(maintenance, "_MOST_REFUSED", 10)
    kept, old = [UUID(int=number) for number in range(1, 16)], UUID(int=99)
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await ended(store, [*kept, old])
        await refer(connection, *kept)
        always = PostgresMaintenance(store)
        for left in ({*kept, old}, set(kept)):
            async for _ in always.prune_jobs(RETENTION):
                pass
            assert await remaining(connection) == left


async def test_doctor_says_what_the_database_refused_until_it_no_longer_does(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await ended(store, [OTHER])
        await refer(connection, OTHER)
        pruning = chore(store, "prune jobs")
        report = await run_chore(PostgresMaintenance(store), pruning, lambda: False)
        assert (report.error, report.is_done) == (None, True)
        finding = await only(database, "maintenance")
        assert finding.level is Level.WARNING
        assert finding.line.startswith("prune jobs: the default partition: jobs that must stay: ")
        assert 'violates foreign key constraint "invoice_job_id_fkey' in finding.line
        assert "operations page" in (finding.next_step or "")
        # A pass that was cut short knows nothing new.
        await run_chore(PostgresMaintenance(store), pruning, lambda: True)
        assert (await only(database, "maintenance")).level is Level.WARNING
        await connection.execute("DROP TABLE invoice")
        await run_chore(PostgresMaintenance(store), pruning, lambda: False)
        assert (await only(database, "maintenance")).level is Level.OK
