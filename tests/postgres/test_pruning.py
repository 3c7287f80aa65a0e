"""Retention drops whole days. Only live and recently finished jobs outlive their day."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date, timedelta
from uuid import UUID

import asyncpg
import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import IfExists, JobState
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Retrying
from holdfast.store.postgres import maintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import Fetch
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.postgres.past import (
    NOON,
    RETENTION,
    add_days,
    day_of,
    days_with_partitions,
    id_of,
    is_sound,
    prune_held_open,
    pruned,
    skipped,
)
from tests.store_contract.steps import BROKEN, ENDINGS, job, wants
from tests.worker.harness import until

ONLY_18 = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

LONG = timedelta(days=100)
SUCCEED = Transition(Move.SUCCEED)
DAYS_AGO = 5
MOST_DAYS = 8


async def ended(
    store: PostgresStore, kind: str, transition: Transition, key: str | None = None, days_ago: int = DAYS_AGO
) -> UUID:
    """Enqueue a job with the ID of an old day and end it now."""
    new = job(id=id_of(days_ago), kind=kind, key=key)
    await store.enqueue([new])
    (leased,) = await store.claim(wants(kind, lease=LONG))
    assert await store.finish([Finish(leased.lease, transition)]) == [Fenced.DONE]
    return new.id


async def test_a_day_is_dropped_with_all_jobs_that_ended_before_the_retention(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, MOST_DAYS)
        await PostgresClock(store).freeze(NOON)
        succeeded = await ended(store, "work", Transition(Move.SUCCEED, result=Json("1")), key="a")
        canceled = await ended(store, "work", ENDINGS["cancel"], key="b")
        new = job(id=id_of(0))
        await store.enqueue([new])
        (leased,) = await store.claim(wants())
        await store.finish([Finish(leased.lease, SUCCEED)])
        await PostgresClock(store).advance(RETENTION + timedelta(hours=1))
        counts = await pruned(store)
        assert counts["jobs_pruned"] == 2
        assert counts["jobs_moved"] == 0
        reader = PostgresReader(store)
        assert [await reader.get(id) for id in (succeeded, canceled)] == [None, None]
        assert await store.retry([succeeded, canceled]) == [Retrying.UNKNOWN, Retrying.UNKNOWN]
        assert await store.cancel([succeeded]) == [Canceling.UNKNOWN]
        assert (await reader.count())[JobState.SUCCEEDED] == 1
        assert min(await days_with_partitions(connection)) >= day_of(1)
        assert await connection.fetchval("SELECT count(*) FROM holdfast.attempt_error") == 0
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 0
        await is_sound(connection)
        again = await store.enqueue([job(key="a"), job(key="b")])
        assert [each.is_new for each in again] == [True, True]


async def test_jobs_that_must_stay_outlive_their_day(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, MOST_DAYS)
        clock = PostgresClock(store)
        dead = await ended(store, "dead", ENDINGS["fail"], key="dead")
        old = await ended(store, "work", SUCCEED, key="old")
        retried = await ended(store, "retried", SUCCEED)
        await clock.advance(timedelta(days=30))
        recent = await ended(store, "work", Transition(Move.SUCCEED, result=Json('{"pages": 3}')), key="recent")
        ready = job(id=id_of(DAYS_AGO), kind="ready", delay=timedelta(days=90), payload=Json('"ready"'), key="ready")
        running = job(id=id_of(DAYS_AGO), kind="running", payload=Json('"running"'))
        failing = job(id=id_of(DAYS_AGO), kind="failing")
        await store.enqueue([ready, running, failing])
        (leased,) = await store.claim(wants("running", lease=LONG))
        (doomed,) = await store.claim(wants("failing", lease=LONG))
        await store.renew([Renewal(leased.lease, LONG, Json("0.5"))])
        assert await store.retry([retried]) == [Retrying.READY]
        reader = PostgresReader(store)
        before = {id: await reader.get(id) for id in (dead, recent, ready.id, running.id, retried)}

        counts = await pruned(store)

        assert (counts["jobs_pruned"], counts["jobs_moved"]) == (1, 5)
        assert await reader.get(old) is None
        assert {id: await reader.get(id) for id in before} == before
        assert [len(found.errors) for found in before.values() if found] == [1, 0, 0, 0, 0]
        assert [key["key"] for key in await connection.fetch("SELECT key FROM holdfast.key ORDER BY key")] == (
            ["dead", "ready", "recent"]
        )
        await is_sound(connection)
        # All of them still work.
        assert await store.finish([Finish(leased.lease, SUCCEED)]) == [Fenced.DONE]
        assert await store.finish([Finish(doomed.lease, Transition(Move.FAIL, error=BROKEN))]) == [Fenced.DONE]
        assert await store.retry([dead, recent]) == [Retrying.READY, Retrying.READY]
        await clock.advance(timedelta(days=91))
        live = await store.claim(wants("dead", "work", "ready", "retried", lease=LONG))
        assert {each.id for each in live} == {dead, recent, ready.id, retried}
        assert {each.payload for each in live if each.kind == "ready"} == {'"ready"'}
        assert await store.finish([Finish(each.lease, SUCCEED) for each in live]) == [Fenced.DONE] * 4
        await is_sound(connection)
        # The default partition is pruned too, once their retention is over.
        await clock.advance(timedelta(days=2))
        assert (await pruned(store))["jobs_pruned"] == 5
        assert [row["id"] for row in await connection.fetch("SELECT id FROM holdfast.job")] == [failing.id]
        assert [row["key"] for row in await connection.fetch("SELECT key FROM holdfast.key")] == []
        assert (await reader.count())[JobState.FAILED] == 1
        await is_sound(connection)


async def test_a_day_with_too_many_remaining_jobs_is_pruned_one_by_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_MOST_MOVED", 10)
    monkeypatch.setattr(maintenance, "_BATCH", 3)
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, MOST_DAYS)
        for number in range(8):
            await ended(store, "work", SUCCEED, key=f"{number}")
        await PostgresClock(store).advance(timedelta(days=10))
        await store.enqueue([job(id=id_of(DAYS_AGO)) for _ in range(11)])
        day = day_of(DAYS_AGO)
        assert {reason for reason in await skipped(store) if str(day) in reason} == {
            f"{day}: too many jobs must stay to drop its partitions, so its jobs are pruned one by one"
        }
        assert (await PostgresReader(store).count())[JobState.SUCCEEDED] == 0
        assert day in await days_with_partitions(connection)
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 0
        await is_sound(connection)
        assert len(await store.claim(wants())) == 11


async def test_a_day_with_too_many_remaining_bytes_is_not_moved_under_a_lock(database: Database) -> None:
    """Every enqueue and claim would have to wait during the move."""
    async with opened_store(database.url) as store, connected(database.url) as other:
        await add_days(other, DAYS_AGO)
        await ended(store, "work", SUCCEED, key="old")
        await PostgresClock(store).advance(timedelta(days=10))
        large = [job(id=id_of(DAYS_AGO), payload=Json(f'"{random.randbytes(50_000).hex()}"')) for _ in range(60)]
        await store.enqueue(large)
        day = day_of(DAYS_AGO)
        async with other.transaction():
            # A producer is in the middle of its transaction. An attempt to lock it out would give another reason.
            await other.execute("SELECT FROM holdfast.job LIMIT 1")
            assert [reason for reason in await skipped(store) if str(day) in reason] == [
                f"{day}: too many jobs must stay to drop its partitions, so its jobs are pruned one by one"
            ]
            assert (await PostgresReader(store).count())[JobState.SUCCEEDED] == 0
        assert day in await days_with_partitions(other)
        await is_sound(other)
        leased = await store.claim(wants(limit=100))
        assert {each.id: each.payload for each in leased} == {each.id: each.payload for each in large}


async def test_a_drop_that_takes_too_long_releases_its_locks(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        await add_days(other, MOST_DAYS)
        await ended(store, "work", SUCCEED, key="old")
        await PostgresClock(store).advance(timedelta(days=10))
        ready = job(id=id_of(DAYS_AGO))
        await store.enqueue([ready])
        # Simulate a server that stalls in the middle.
        await other.execute(
            """
            CREATE FUNCTION public.stand_still() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
            CREATE TRIGGER slow BEFORE INSERT ON holdfast.job_other FOR EACH ROW EXECUTE FUNCTION public.stand_still()
            """
        )
        day = day_of(DAYS_AGO)
        assert f"{day}: moving the jobs that must stay took too long, so its jobs are pruned one by one" in (
            await skipped(store)
        )
        assert (await PostgresReader(store).count())[JobState.SUCCEEDED] == 0
        assert day in await days_with_partitions(other)
        await is_sound(other)
        assert [each.id for each in await store.claim(wants())] == [ready.id]


async def test_a_client_that_hangs_before_its_commit_releases_the_locks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_DROP_SECONDS", 0.2)
    async with opened_store(database.url) as store, connected(database.url) as other:
        await add_days(other, DAYS_AGO)
        ready = job(id=id_of(DAYS_AGO))
        await store.enqueue([ready])
        maintenance_transaction = store.maintenance_transaction

        @asynccontextmanager
        async def hanging() -> AsyncIterator[Fetch]:
            async with maintenance_transaction() as fetch:
                yield fetch
                # Everything is dropped but not committed: this enqueue waits until the server ends the transaction.
                await other.execute("SELECT holdfast.enqueue('work', '{}')")

        monkeypatch.setattr(store, "maintenance_transaction", hanging)
        with pytest.raises(StoreUnavailable):
            await maintenance.drop_day(store, day_of(DAYS_AGO), RETENTION)
        assert day_of(DAYS_AGO) in await days_with_partitions(other)
        assert len(await store.claim(wants())) == 2
        await is_sound(other)


async def test_a_day_in_use_is_left_for_the_next_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_DROP_TRIES", 1)
    async with opened_store(database.url) as store, connected(database.url) as other:
        await add_days(other, DAYS_AGO)
        (new, behind) = (job(id=id_of(DAYS_AGO)), job(id=id_of(DAYS_AGO)))
        await store.enqueue([new, behind])
        (leased, _) = await store.claim(wants(lease=LONG))
        await PostgresClock(store).advance(timedelta(days=10))
        async with other.transaction():
            # A handler that finishes its own job and is slow to commit.
            await other.execute(_FINISH_IN, leased.id, leased.lease.claim)
            assert any(
                line.startswith(f"{day_of(DAYS_AGO)}: its partitions are in use") for line in await skipped(store)
            )
        counts = await pruned(store)
        assert (counts["jobs_pruned"], counts["jobs_moved"]) == (0, 2)
        shown = await PostgresReader(store).get(leased.id)
        assert shown is not None
        assert shown.state is JobState.SUCCEEDED
        await is_sound(other)


async def test_an_attempt_to_drop_one_day_is_not_followed_by_an_attempt_on_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt blocks every later transaction, and a long reader of one day would block the drop of every day."""
    tried: list[date] = []
    drop_day = maintenance.drop_day

    async def noted(store: PostgresStore, day: date, retention: timedelta, patience: timedelta) -> object:
        tried.append(day)
        return await drop_day(store, day, retention, patience)

    monkeypatch.setattr(maintenance, "drop_day", noted)
    async with opened_store(database.url) as store, connected(database.url) as other:
        await add_days(other, MOST_DAYS)
        in_default = await ended(store, "work", SUCCEED, days_ago=MOST_DAYS + 1)
        await PostgresClock(store).advance(timedelta(days=10))
        async with other.transaction():
            await other.execute("SELECT FROM holdfast.job LIMIT 1")
            assert await skipped(store) == {
                f"{day_of(MOST_DAYS)}: its partitions are in use, so its jobs are pruned one by one"
            }
        assert set(tried) == {day_of(MOST_DAYS)}
        assert len(tried) <= 2
        assert await PostgresReader(store).get(in_default) is None, "what needs no such lock is done all the same"


async def test_all_locks_of_a_drop_share_one_timeout(database: Database) -> None:
    async with (
        connected(database.url) as connection,
        connected(database.url) as other,
        connected(database.url) as watching,
    ):
        await add_days(connection, 1)
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '1h'")
            async with other.transaction():
                await other.execute("LOCK TABLE ONLY holdfast.job IN ACCESS SHARE MODE")
                locking = asyncio.ensure_future(connection.execute("SELECT holdfast.lock_day($1)", day_of(1)))
                await until(lambda: _waits(watching), "it waits for the first lock")
            await locking
            assert await connection.fetchval("SELECT current_setting('lock_timeout')::interval < '1 hour'")


async def test_a_job_finished_while_its_day_is_being_dropped_stays(database: Database) -> None:
    """The finish commits after the check for recent jobs and before the drop has its lock."""
    outcomes: list[str] = []
    async with (
        opened_store(database.url) as store,
        connected(database.url) as other,
        connected(database.url) as watching,
    ):
        await add_days(other, MOST_DAYS)

        async def meet() -> bool:
            new = job(id=id_of(DAYS_AGO))
            await store.enqueue([new])
            (leased,) = await store.claim(wants(lease=LONG))
            async with other.transaction():
                await other.execute(_FINISH_IN, leased.id, leased.lease.claim)
                pruning = asyncio.ensure_future(maintenance.drop_day(store, day_of(DAYS_AGO), RETENTION))
                await until(lambda: pruning.done() or _waits(watching), "the drop waits for the lock")
            outcomes.append((await pruning)[0])
            assert await PostgresReader(store).get(new.id) is not None
            await is_sound(watching)
            return outcomes[-1] == "changed"

        # The drop gives up after a tenth of a second, and a busy machine may need that long for the commit.
        await until(meet, "a finish came in between")
        assert set(outcomes) <= {"locked", "changed"}


_FINISH_IN = "SELECT holdfast.finish_in_transaction($1, $2, NULL)"
_Act = Callable[[PostgresStore, UUID], Awaitable[object]]


async def _claim(store: PostgresStore, ready: UUID) -> object:
    return [each.id for each in await store.claim(wants("ready", lease=LONG))] == [ready]


async def _cancel(store: PostgresStore, ready: UUID) -> object:
    return await store.cancel([ready]) == [Canceling.CANCELED]


async def _enqueue(store: PostgresStore, ready: UUID) -> object:
    (enqueued,) = await store.enqueue([job(id=id_of(DAYS_AGO))])
    return enqueued.is_new


async def _enqueue_keyed(store: PostgresStore, ready: UUID) -> object:
    (enqueued,) = await store.enqueue([job(id=id_of(DAYS_AGO), key="new")])
    return enqueued.is_new


async def _replace(store: PostgresStore, ready: UUID) -> object:
    (enqueued,) = await store.enqueue([job(kind="ready", key="report", if_exists=IfExists.REPLACE)])
    return enqueued.replaced and enqueued.id == ready


@pytest.mark.parametrize("act", [_claim, _cancel, _enqueue, _enqueue_keyed, _replace])
async def test_a_statement_that_waited_for_the_drop_finds_the_moved_job(database: Database, act: _Act) -> None:
    async with opened_store(database.url) as store, connected(database.url) as watching:
        await add_days(watching, MOST_DAYS)
        ready = job(id=id_of(DAYS_AGO), kind="ready", key="report")
        await store.enqueue([ready])
        # Plan with the partition in every connection that the store may use below.
        await asyncio.gather(*(store.claim(wants("nothing")) for _ in range(4)))
        async with prune_held_open(database.url, DAYS_AGO):
            acting = asyncio.ensure_future(act(store, ready.id))
            await until(lambda: _waits(watching), "the statement waits for the lock")
        assert await acting
        await is_sound(watching)


async def test_a_retry_and_a_failure_succeed_after_waiting_for_the_drop(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as watching:
        await add_days(watching, MOST_DAYS)
        recent = await ended(store, "work", SUCCEED)
        new = job(id=id_of(DAYS_AGO), kind="failing")
        await store.enqueue([new])
        (leased,) = await store.claim(wants("failing", lease=LONG))
        async with prune_held_open(database.url, DAYS_AGO):
            retrying = asyncio.ensure_future(store.retry([recent]))
            failing = asyncio.ensure_future(store.finish([Finish(leased.lease, ENDINGS["fail"])]))
            await until(lambda: _waits(watching, 2), "both wait for the lock")
        assert await retrying == [Retrying.READY]
        # The drop held the row when the worker tried, so the worker tries again.
        assert await failing == [Fenced.LOCKED]
        assert await store.finish([Finish(leased.lease, ENDINGS["fail"])]) == [Fenced.DONE]
        await is_sound(watching)
        dead = await PostgresReader(store).get(new.id)
        assert dead is not None
        assert dead.state is JobState.FAILED


_VERBS: dict[str, Callable[[PostgresStore], Awaitable[object]]] = {
    "claim": lambda store: store.claim(wants("ready")),
    "replace": lambda store: store.enqueue([job(kind="ready", key="report", if_exists=IfExists.REPLACE)]),
    "rescue": lambda store: store.rescue(10),
    "keep": lambda store: store.enqueue([job(kind="ready", key="report")]),
}


@pytest.mark.parametrize("verb", list(_VERBS))
async def test_a_statement_with_an_old_snapshot_fails_instead_of_losing_a_job(database: Database, verb: str) -> None:
    """If repeatable read is the default, a claim's snapshot is older than the lock that it waits for."""
    async with opened_store(database.url) as store, connected(database.url) as old:
        await add_days(old, MOST_DAYS)
        ready = job(id=id_of(DAYS_AGO), kind="ready", key="report")
        running = job(id=id_of(DAYS_AGO), kind="running")
        await store.enqueue([ready, running])
        assert len(await store.claim(wants("running", lease=timedelta(0)))) == 1
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT holdfast.now()")
        assert (await pruned(store))["jobs_moved"] == 2
        with pytest.raises(StoreUnavailable, match="could not serialize"):
            await _VERBS[verb](OneConnectionStore(old))
        await old.execute("ROLLBACK")
        assert [each.id for each in await store.claim(wants("ready"))] == [ready.id]
        assert [each.id for each in await store.rescue(10)] == [running.id]
        await is_sound(old)


async def test_a_retry_of_a_job_with_a_missing_row_changes_nothing(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        (new,) = await store.enqueue([job()])
        (leased,) = await store.claim(wants())
        await store.finish([Finish(leased.lease, SUCCEED)])
        await connection.execute("DELETE FROM holdfast.job")
        assert await store.retry([new.id]) == [Retrying.UNKNOWN]
        assert await connection.fetchval("SELECT count(*) FROM holdfast.finished") == 1
        assert await connection.fetchval("SELECT count(*) FROM holdfast.ready") == 0
        assert (await PostgresReader(store).count())[JobState.SUCCEEDED] == 1


async def test_rows_left_by_a_crash_after_the_drop_are_swept(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, MOST_DAYS)
        await ended(store, "work", ENDINGS["cancel"], key="a")
        await PostgresClock(store).advance(timedelta(days=10))
        async with prune_held_open(database.url, DAYS_AGO):
            pass
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 1
        assert (await pruned(store))["rows_swept"] == 2
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 0
        assert await connection.fetchval("SELECT count(*) FROM holdfast.attempt_error") == 0


@ONLY_18
async def test_pruning_refuses_a_transaction_that_cannot_see_everything(database: Database) -> None:
    async with connected(database.url) as connection:
        await add_days(connection, MOST_DAYS)
        async with connection.transaction(isolation="repeatable_read"):
            with pytest.raises(asyncpg.RaiseError, match="read committed"):
                await connection.fetch("SELECT * FROM holdfast.drop_day($1, 0, '{}', 10, 10)", day_of(DAYS_AGO))
        # The engine sets the isolation level it needs, regardless of the database's default.
        await connection.execute(
            f"ALTER DATABASE \"{database.name}\" SET default_transaction_isolation = 'repeatable read'"
        )
        async with opened_store(database.url) as store:
            assert (await pruned(store))["partitions_dropped"] > 0


async def _waits(connection: "asyncpg.Connection[asyncpg.Record]", number: int = 1) -> bool:
    waiting: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return waiting >= number
