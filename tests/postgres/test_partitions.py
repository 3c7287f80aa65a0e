"""There are few partitions for any retention, even if some cannot be dropped, and the next one always exists."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast.domain.job import JobState, NewJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Finish
from holdfast.store.postgres import maintenance as postgres_maintenance
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.postgres.past import day_of, days_with_partitions, id_of, is_sound
from tests.store_contract.steps import job, wants

DAY = timedelta(days=1)
LONG = timedelta(days=1000)
START = datetime(2031, 1, 1, 12, 0, tzinfo=UTC)
# Eight days kept, eight days ahead, and the one about to be dropped: the number with a short retention.
FEW = 20
_IN_PARTITIONS = "SELECT count(*) FROM holdfast.job WHERE tableoid <> 'holdfast.job_other'::regclass"
_IN_DEFAULT = "SELECT count(*) FROM holdfast.job_other"
_LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
_LARGE = "CREATE OR REPLACE FUNCTION holdfast.default_is_large() RETURNS boolean LANGUAGE sql AS 'SELECT true'"


class Calendar:
    """A store whose clock moves day by day: each day has jobs, which finish at once, and maintenance."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", retention: timedelta) -> None:
        self._connection = connection
        self.store = OneConnectionStore(connection)
        self.retention = retention
        self.now = START
        self.maintenance = PostgresMaintenance(self.store)

    async def begin(self) -> None:
        """Drop the partitions of a fresh store, because they belong to the real date."""
        await _drop_all(self._connection)
        await PostgresClock(self.store).freeze(self.now)
        await self.maintain()

    async def pass_days(self, days: int) -> None:
        self.now += days * DAY
        await PostgresClock(self.store).freeze(self.now)
        await self.store.enqueue([self.job(), self.job()])
        leased = await self.store.claim(wants(lease=LONG))
        await self.store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in leased])
        await self.maintain()

    def job(self, **options: Any) -> NewJob:  # noqa: ANN401
        return job(id=UUID(int=(int(self.now.timestamp() * 1000) << 80) + (uuid4().int & ((1 << 80) - 1))), **options)

    async def maintain(self) -> None:
        for batches in (
            self.maintenance.add_partitions(self.retention),
            self.maintenance.prune_jobs(self.retention),
            self.maintenance.compact_counts(),
        ):
            async for _ in batches:
                pass

    async def kept(self) -> timedelta:
        """Return the age of the oldest finished job."""
        oldest: datetime = await self._connection.fetchval("SELECT min(finished_at) FROM holdfast.finished")
        return self.now - oldest


@pytest.mark.parametrize(("kept_days", "step"), [(8, 1), (30, 3), (400, 25)])
async def test_a_long_retention_still_needs_few_partitions(database: Database, kept_days: int, step: int) -> None:
    async with connected(database.url) as connection:
        calendar = Calendar(connection, timedelta(days=kept_days))
        await calendar.begin()
        most = 0
        for _ in range(2 * kept_days // step + 3):
            await calendar.pass_days(step)
            most = max(most, len(await days_with_partitions(connection)))
        assert most <= FEW
        assert await connection.fetchval(_IN_DEFAULT) == 0
        # Kept an eighth longer at most, plus two days.
        assert timedelta(days=kept_days - step) <= await calendar.kept() <= timedelta(days=kept_days * 9 / 8 + 2 + step)
        assert await calendar.maintenance.overdue_days(calendar.retention) == []
        await is_sound(connection)


async def test_a_claim_takes_no_more_locks_with_a_year_of_history_than_with_a_week(database: Database) -> None:
    async with connected(database.url) as connection:
        calendar = Calendar(connection, 8 * DAY)
        await calendar.begin()
        for _ in range(12):
            await calendar.pass_days(1)
        week = await _locks_of_a_claim(connection, calendar.store)
        calendar.retention = 400 * DAY
        for _ in range(20):
            await calendar.pass_days(25)
        assert await _locks_of_a_claim(connection, calendar.store) <= 1.2 * week


async def _locks_of_a_claim(connection: "asyncpg.Connection[asyncpg.Record]", store: PostgresStore) -> int:
    async with connection.transaction():
        await store.claim(wants())
        locks: int = await connection.fetchval(_LOCKS)
        return locks


async def _drop_all(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    for day in await days_with_partitions(connection):
        await connection.execute(f"DROP TABLE holdfast.job_{day:%Y%m%d}, holdfast.finished_{day:%Y%m%d}")


async def test_a_shortened_retention_applies_to_partitions_made_for_the_longer_one(
    database: Database,
) -> None:
    async with connected(database.url) as connection:
        calendar = Calendar(connection, 400 * DAY)
        await calendar.begin()
        for _ in range(3):
            await calendar.pass_days(6)
        assert len(await days_with_partitions(connection)) == 1
        assert await calendar.kept() == 12 * DAY
        calendar.retention = 4 * DAY
        await calendar.maintain()
        assert await calendar.kept() <= 4 * DAY
        await is_sound(connection)
        # New partitions have the right width, and the wide one is dropped when all of it is past.
        for _ in range(60):
            await calendar.pass_days(1)
        days = await days_with_partitions(connection)
        assert {later - earlier for earlier, later in pairwise(days)} == {DAY}
        await is_sound(connection)


@pytest.mark.long
async def test_days_that_cannot_be_dropped_make_the_next_partitions_wider(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a service schedules many jobs months ahead."""
    monkeypatch.setattr(postgres_maintenance, "_MOST_MOVED", 3)
    async with connected(database.url) as connection:
        calendar = Calendar(connection, 4 * DAY)
        await calendar.begin()
        for _ in range(120):
            await calendar.store.enqueue([calendar.job(kind="reminder", delay=100 * DAY) for _ in range(4)])
            await calendar.pass_days(1)
        # With daily partitions there would be more than a hundred.
        assert len(await days_with_partitions(connection)) <= 3 * FEW
        assert await calendar.kept() <= 6 * DAY
        assert (await PostgresReader(calendar.store).count())[JobState.READY] == 4 * 120
        await is_sound(connection)


async def test_a_partition_ends_before_a_day_with_ids_in_the_default_partition(database: Database) -> None:
    async with connected(database.url) as connection:
        calendar = Calendar(connection, 400 * DAY)
        store = calendar.store
        await _drop_all(connection)
        calendar.now += 10 * DAY
        await store.enqueue([early := calendar.job()])
        calendar.now -= 10 * DAY
        await store.enqueue([calendar.job()])
        await calendar.begin()
        # The job of today and the one of ten days later stay in the default partition.
        assert await _parts(connection) == [(START.date() + DAY, START.date() + 10 * DAY)]
        calendar.now += 10 * DAY
        await PostgresClock(store).freeze(calendar.now)
        await calendar.maintain()
        assert await _parts(connection) == [
            (START.date() + DAY, START.date() + 10 * DAY),
            (START.date() + 11 * DAY, START.date() + 61 * DAY),
        ]
        assert await connection.fetchval(_IN_DEFAULT) == 2
        assert early.id in {each.id for each in await store.claim(wants())}
        await is_sound(connection)


async def _parts(connection: "asyncpg.Connection[asyncpg.Record]") -> list[tuple[date, date]]:
    return [(row["day"], row["upto"]) for row in await connection.fetch("SELECT * FROM holdfast.partition_days()")]


# A large default partition


async def _added(store: PostgresStore, retention: timedelta = 8 * DAY) -> int:
    batches = [batch async for batch in PostgresMaintenance(store).add_partitions(retention)]
    return sum(batch.counts.get("partitions_added", 0) for batch in batches)


async def test_partitions_are_added_next_to_a_default_partition_too_large_to_scan(database: Database) -> None:
    """After weeks without maintenance, jobs enqueued from the day after tomorrow on have partitions again."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await _drop_all(connection)
        await store.enqueue([job(id=id_of(0)), job(id=id_of(-1))])
        await connection.execute(_LARGE)
        assert await _added(store) == 2 * 6
        assert await _parts(connection) == [(day_of(-days), day_of(-days - 1)) for days in range(2, 8)]
        assert await _added(store) == 0
        await PostgresClock(store).advance(3 * DAY)
        assert await _added(store) == 2 * 3
        await store.enqueue([job(id=id_of(-4)), job(id=id_of(-40))])
        assert await connection.fetchval(_IN_PARTITIONS) == 1, "and where there is none the default one takes it"
        await is_sound(connection)


@pytest.mark.parametrize(("kept_days", "parts"), [(8, 6), (32, 2), (400, 1)])
async def test_a_guard_spares_the_scan_of_the_default_partition(database: Database, kept_days: int, parts: int) -> None:
    said: list[str] = []
    async with connected(database.url) as connection:
        await _drop_all(connection)
        await connection.execute(_LARGE)
        connection.add_log_listener(lambda _, message: said.append(message.message))
        await connection.execute("SET client_min_messages = debug1")
        assert await _added(OneConnectionStore(connection), kept_days * DAY) == 2 * parts
        implied = [
            line for line in said if "default partition" in line and "is implied by existing constraints" in line
        ]
        assert len(implied) == 2 * parts


async def test_a_guard_left_behind_by_a_process_is_removed(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await _drop_all(connection)
        row = await connection.fetchrow("SELECT * FROM holdfast.guard_default(8, 1)")
        assert row is not None
        assert tuple(row) == (day_of(-2), day_of(-8))
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute("SELECT holdfast.enqueue('work', '{}', job_id => $1)", id_of(-3))
        assert await _added(store) == 2 * 8
        await store.enqueue([job(id=id_of(-3))])
        assert await connection.fetchval("SELECT count(*) FROM pg_constraint WHERE conname = 'guard'") == 0


async def test_todays_jobs_are_enqueued_and_claimed_while_a_guard_exists(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await _drop_all(connection)
        await connection.execute("SELECT holdfast.guard_default(8, 1)")
        await store.enqueue([job(id=id_of(0)), job(id=id_of(-1)), job(id=id_of(300)), job(id=uuid4())])
        assert len(await store.claim(wants())) == 4


async def test_a_guard_is_checked_while_jobs_come_and_go(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await _drop_all(connection)
        await connection.execute("SELECT holdfast.guard_default(8, 1)")
        async with connection.transaction():
            assert await connection.fetchval("SELECT holdfast.check_guard()") is True
            # The lock of the check is held until the transaction ends.
            async with asyncio.timeout(10):
                await store.enqueue([job(id=id_of(0))])
                (leased,) = await store.claim(wants())
                await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))])
        assert await connection.fetchval(_IN_DEFAULT) == 1
