"""Many producers race for one key while other verbs run: only one job is made, and no newer payload is lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import cycle
from typing import TypeAlias
from uuid import UUID

import asyncpg
import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import KeyLocked, StoreUnavailable
from holdfast.domain.job import IfExists, JobState, NewJob
from holdfast.domain.json_text import decode, encode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, impatient, opened_store
from tests.postgres.past import is_sound, pruned
from tests.store_contract.steps import BROKEN, LEASE, job, wants
from tests.worker.harness import until

pytestmark = [
    pytest.mark.parametrize("server", ["embedded-18"], indirect=True),
]

REPLACE = IfExists.REPLACE
KEEP_LIVE = IfExists.KEEP_LIVE
SUCCEED = Transition(Move.SUCCEED)
RETRY = Transition(Move.RETRY, error=BROKEN)
RELEASE = Transition(Move.RELEASE)
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_ENQUEUE = "SELECT id, is_new FROM holdfast.enqueue('work', '{}', key => $1)"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def newer(number: int = 1, key: str = "report") -> NewJob:
    return job(key=key, payload=encode({"key": key, "number": number}), if_exists=REPLACE)


async def replaced(store: PostgresStore, number: int = 1, key: str = "report") -> Enqueued:
    (answer,) = await store.enqueue([newer(number, key)])
    return answer


async def claimable(store: PostgresStore) -> list[tuple[UUID, int]]:
    """Claim everything that is due and return the IDs and numbers."""
    return [(each.id, decode(each.payload)["number"]) for each in await store.claim(wants())]


@asynccontextmanager
async def crowd(url: str, size: int) -> AsyncIterator[Sequence[Connection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(url)) for _ in range(size)]


async def until_waiting(watching: Connection, number: int = 1) -> None:
    async def wait() -> bool:
        return bool(await watching.fetchval(_WAITING) >= number)

    await until(wait, f"{number} wait for a lock")


async def rows(connection: Connection) -> dict[str, int]:
    tables = ("job", "ready", "key", "lease", "finished", "ledger", "attempt_error")
    return {table: await connection.fetchval(f"SELECT count(*) FROM holdfast.{table}") for table in tables}


@pytest.mark.long
async def test_sixteen_producers_racing_a_thousand_times_make_a_thousand_jobs(database: Database) -> None:
    async with crowd(database.url, 16) as producers:
        statements = [await producer.prepare(_ENQUEUE) for producer in producers]
        for number in range(1000):
            # Rotate the order, so a different producer goes first each time.
            turn = statements[number % 16 :] + statements[: number % 16]
            found = await asyncio.gather(*(statement.fetchrow(f"key-{number}") for statement in turn))
            answers = [tuple(row) for row in found if row is not None]
            assert sorted(is_new for _, is_new in answers) == [False] * 15 + [True]
            assert len({id for id, _ in answers}) == 1
        # The fifteen thousand conflicts have left no rows behind and used no sequence numbers.
        counts = await rows(producers[0])
        assert {table: count for table, count in counts.items() if count} == {"job": 1000, "ready": 1000, "key": 1000}
        assert await producers[0].fetchval("SELECT is_called FROM holdfast.ledger_number_seq") is False


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_all_producers_waiting_for_the_first_get_one_job(database: Database, ending: str) -> None:
    async with crowd(database.url, 6) as (first, *others), connected(database.url) as watching:
        transaction = first.transaction()
        await transaction.start()
        first_id = await first.fetchval(_ENQUEUE, "report")
        waiting = asyncio.gather(*(other.fetchrow(_ENQUEUE, "report") for other in others))
        await until_waiting(watching, len(others))
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        answers = [tuple(row) for row in await waiting if row is not None]
        assert len({id for id, _ in answers}) == 1
        assert Counter(is_new for _, is_new in answers)[True] == (1 if ending == "rollback" else 0)
        assert (answers[0][0] == first_id) is (ending == "commit")
        counts = await rows(watching)
        assert (counts["job"], counts["ready"], counts["key"]) == (1, 1, 1)


async def test_a_producer_waits_only_so_long_for_another_transaction(database: Database) -> None:
    async with opened_store(database.url) as store, crowd(database.url, 2) as (first, other):
        definition = await other.fetchval("SELECT pg_get_functiondef('holdfast.enqueue'::regproc)")
        assert definition.count("'10s'") == 1
        await other.execute(definition.replace("'10s'", "'100ms'"))
        transaction = first.transaction()
        await transaction.start()
        await first.fetchval(_ENQUEUE, "report")
        with pytest.raises(KeyLocked) as refused:
            await store.enqueue([job(key="report")])
        assert str(refused.value) == "another transaction holds the key 'report' and has not ended; try again"
        assert isinstance(refused.value, StoreUnavailable)
        with pytest.raises(KeyLocked, match="one of the keys 'a', 'b', 'c' and 2 more"):
            await store.enqueue([job(key=key) for key in ("a", "b", "c", "d", "report")])
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.fetchval(_ENQUEUE, "report")
        await transaction.commit()
        answers = await store.enqueue([job(key="a"), job(key="report")])
        assert [each.is_new for each in answers] == [True, False]


async def test_a_producers_own_lock_timeout_applies_and_is_restored(database: Database) -> None:
    async with connected(database.url) as first, connected(impatient(database.url, 50)) as hurried:
        for connection, patience in ((first, "0"), (hurried, "50ms")):
            async with connection.transaction():
                await connection.fetchval(_ENQUEUE, f"of {patience}")
                await connection.fetchval(_ENQUEUE, f"of {patience}")
                assert await connection.fetchval("SHOW lock_timeout") == patience
        async with first.transaction():
            await first.fetchval(_ENQUEUE, "report")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await hurried.fetchval(_ENQUEUE, "report")
        assert await first.fetchval("SHOW lock_timeout") == "0"


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
@pytest.mark.parametrize("happened", ["enqueued", "taken over", "replaced", "claimed"])
async def test_an_old_snapshot_fails_cleanly_instead_of_returning_a_wrong_answer(
    database: Database, isolation: str, happened: str
) -> None:
    async with opened_store(database.url) as store, connected(database.url) as old:
        if happened != "enqueued":
            await replaced(store, 0)
        if happened == "taken over":
            await store.claim(wants())
        transaction = old.transaction(isolation=isolation)  # type: ignore[arg-type]
        await transaction.start()
        await old.fetchval("SELECT count(*) FROM holdfast.key")
        asked = newer(2)
        if happened == "enqueued":
            await store.enqueue([asked_first := job(key="report")])
            assert asked_first.id != asked.id
        elif happened == "claimed":
            await store.claim(wants())
        else:
            await replaced(store, 1)
        with pytest.raises(StoreUnavailable, match="could not serialize"):
            await OneConnectionStore(old).enqueue([asked])
        await transaction.rollback()
        # Retry in a transaction that sees what happened:
        async with old.transaction(isolation=isolation):  # type: ignore[arg-type]
            (answer,) = await OneConnectionStore(old).enqueue([asked])
        assert answer.replaced is (happened != "claimed")
        assert await claimable(store) == [(answer.id, 2)]
        await is_sound(old)


async def test_a_key_seen_by_an_old_snapshot_is_returned_there(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as old:
        first = await replaced(store)
        async with old.transaction(isolation="repeatable_read"):
            await old.fetchval("SELECT count(*) FROM holdfast.key")
            await store.claim(wants())
            row = await old.fetchrow(_ENQUEUE, "report")
        assert row is not None
        assert tuple(row) == (first.id, False)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_job_is_not_claimed_while_its_replacement_is_uncommitted(database: Database, ending: str) -> None:
    async with opened_store(database.url) as store, connected(database.url) as producer:
        id = (await replaced(store, 1)).id
        transaction = producer.transaction()
        await transaction.start()
        assert (await replaced(OneConnectionStore(producer), 2)).replaced
        assert await store.claim(wants()) == []
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        assert await claimable(store) == [(id, 2 if ending == "commit" else 1)]
        await is_sound(producer)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_two_concurrent_replacements_leave_one_job_with_the_second_payload(
    database: Database, ending: str
) -> None:
    async with opened_store(database.url) as store, crowd(database.url, 2) as (producer, watching):
        id = (await replaced(store, 0)).id
        transaction = producer.transaction()
        await transaction.start()
        assert (await replaced(OneConnectionStore(producer), 1)).replaced
        replacing = asyncio.ensure_future(replaced(store, 2))
        await until_waiting(watching)
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        assert await replacing == Enqueued(id, is_new=False, replaced=True)
        assert await claimable(store) == [(id, 2)]
        await is_sound(watching)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_replacement_waits_for_a_claim_and_follows_its_outcome(database: Database, ending: str) -> None:
    async with opened_store(database.url) as store, crowd(database.url, 2) as (claiming, watching):
        id = (await replaced(store, 1)).id
        transaction = claiming.transaction()
        await transaction.start()
        assert await claimable(OneConnectionStore(claiming)) == [(id, 1)]
        replacing = asyncio.ensure_future(replaced(store, 2))
        await until_waiting(watching)
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        answer = await replacing
        assert (answer.is_new, answer.replaced) == ((True, False) if ending == "commit" else (False, True))
        assert (answer.id == id) is (ending == "rollback")
        assert await claimable(store) == [(answer.id, 2)]
        await is_sound(watching)


async def test_a_claim_with_an_old_snapshot_never_runs_a_replaced_payload(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as old:
        id = (await replaced(store, 1)).id
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT holdfast.now()")
        assert (await replaced(store, 2)).replaced
        with pytest.raises(StoreUnavailable, match="could not serialize"):
            await OneConnectionStore(old).claim(wants())
        await old.execute("ROLLBACK")
        assert await claimable(store) == [(id, 2)]


class Workshop:
    """Claims and ends jobs until it is closing and none is left, and records which jobs succeeded."""

    def __init__(self) -> None:
        self.succeeded: Counter[tuple[str, int]] = Counter()
        self.running: list[str] = []
        self.most_at_once: Counter[str] = Counter()
        self.is_closing = False

    async def work(self, store: PostgresStore) -> None:
        # Every third attempt does not succeed, so its job is ready again and can be replaced.
        endings = cycle((SUCCEED, SUCCEED, RETRY, SUCCEED, SUCCEED, RELEASE))
        while (leased := await store.claim(wants(limit=2))) or not self.is_closing:
            keys = [decode(each.payload)["key"] for each in leased]
            self.running += keys
            for key in keys:
                self.most_at_once[key] = max(self.most_at_once[key], self.running.count(key))
            for each, key in zip(leased, keys, strict=True):
                ending = next(endings)
                # Another worker may claim the next job before this one learns that its finish committed.
                self.running.remove(key)
                assert await store.finish([Finish(each.lease, ending)]) == [Fenced.DONE]
                if ending is SUCCEED:
                    payload = decode(each.payload)
                    self.succeeded[payload["key"], payload["number"]] += 1


async def test_while_workers_run_only_the_newest_replacement_is_executed(
    database: Database,
) -> None:
    """For two consecutive payloads, exactly one is true: the first one ran, or the second one replaced it."""
    rounds, keys = 150, ("a", "b", "c", "d")
    workshop = Workshop()
    answers: dict[str, list[Enqueued]] = {key: [] for key in keys}
    async with crowd(database.url, 8) as connections:
        stores = [OneConnectionStore(connection) for connection in connections]

        async def produce(store: PostgresStore, key: str) -> None:
            for number in range(rounds):
                answers[key].append(await replaced(store, number, key))

        working = [asyncio.ensure_future(workshop.work(store)) for store in stores[4:]]
        await asyncio.gather(*(produce(store, key) for store, key in zip(stores, keys, strict=False)))
        workshop.is_closing = True
        await asyncio.gather(*working)
        await is_sound(connections[0])
        assert (await PostgresReader(stores[0]).count())[JobState.READY] == 0
    for key in keys:
        followers = [answer.replaced for answer in answers[key][1:]] + [False]
        ran = [workshop.succeeded[key, number] for number in range(rounds)]
        assert ran == [0 if is_replaced else 1 for is_replaced in followers]
    outcomes = Counter(answer.replaced for each in answers.values() for answer in each)
    assert min(outcomes[True], outcomes[False]) > 10, outcomes


async def test_producers_replacing_the_same_jobs_do_not_deadlock(database: Database) -> None:
    keys = [f"key-{number}" for number in range(20)]
    async with crowd(database.url, 6) as connections:
        stores = [OneConnectionStore(connection) for connection in connections]
        workshop = Workshop()
        working = [asyncio.ensure_future(workshop.work(store)) for store in stores[4:]]

        async def produce(store: PostgresStore, turn: int) -> None:
            for number in range(10):
                order = keys if (turn + number) % 2 else keys[::-1]
                await store.enqueue([newer(number, key) for key in order])

        await asyncio.gather(*(produce(store, turn) for turn, store in enumerate(stores[:4])))
        workshop.is_closing = True
        await asyncio.gather(*working)
        await is_sound(connections[0])


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_pruning_does_not_wait_for_a_key_that_is_being_taken_over(database: Database, ending: str) -> None:
    retention = timedelta(days=1)
    async with (
        opened_store(impatient(database.url, 200)) as store,
        connected(database.url) as producer,
    ):
        ids = [UUID(int=number) for number in range(1, 4)]
        await store.enqueue([job(id=id, key=f"key-{id.int}") for id in ids])
        leased = await store.claim(wants(lease=LEASE))
        await store.finish([Finish(each.lease, SUCCEED) for each in leased])
        await PostgresClock(store).advance(2 * retention)
        transaction = producer.transaction()
        await transaction.start()
        assert (await replaced(OneConnectionStore(producer), 1, "key-2")).is_new
        assert (await pruned(store, retention))["jobs_pruned"] == 2
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        kept = {row["key"] for row in await producer.fetch("SELECT key FROM holdfast.key")}
        assert kept == {"key-2"}
        assert (await pruned(store, retention))["jobs_pruned"] == 1
        (again,) = await store.enqueue([job(key="key-2")])
        assert again.is_new is (ending == "rollback")
        await is_sound(producer)


def live(number: int = 1, key: str = "report") -> NewJob:
    return job(key=key, payload=encode({"key": key, "number": number}), if_exists=KEEP_LIVE)


async def kept_live(store: PostgresStore, number: int = 1, key: str = "report") -> Enqueued:
    (answer,) = await store.enqueue([live(number, key)])
    return answer


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_if_two_producers_find_a_final_job_one_of_them_makes_the_next(database: Database, ending: str) -> None:
    async with opened_store(database.url) as store, crowd(database.url, 2) as (producer, watching):
        await kept_live(store, 0)
        (leased,) = await store.claim(wants())
        await store.finish([Finish(leased.lease, SUCCEED)])
        transaction = producer.transaction()
        await transaction.start()
        first = await kept_live(OneConnectionStore(producer), 1)
        assert first.is_new
        asking = asyncio.ensure_future(kept_live(store, 2))
        await until_waiting(watching)
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        second = await asking
        assert (second.is_new, second.id == first.id) == ((False, True) if ending == "commit" else (True, False))
        assert await claimable(store) == [(second.id, 1 if ending == "commit" else 2)]
        await is_sound(watching)


async def test_a_job_with_an_uncommitted_finish_is_live_and_enqueueing_does_not_wait_for_it(database: Database) -> None:
    async with opened_store(impatient(database.url, 200)) as store, connected(database.url) as finishing:
        first = await kept_live(store, 0)
        (leased,) = await store.claim(wants())
        async with finishing.transaction():
            await finishing.execute(
                "SELECT holdfast.finish_in_transaction($1, $2, NULL)", leased.id, leased.lease.claim
            )
            assert await kept_live(store, 1) == Enqueued(first.id, is_new=False)
        assert (await kept_live(store, 2)).is_new
        await is_sound(finishing)


async def test_while_workers_run_a_key_never_has_more_than_one_live_job(database: Database) -> None:
    """Producers, some of them sharing a key, race with claims and finishes."""
    rounds, keys = 150, ("a", "b")
    workshop = Workshop()
    answers: dict[str, list[Enqueued]] = {key: [] for key in keys}
    async with crowd(database.url, 8) as connections:
        stores = [OneConnectionStore(connection) for connection in connections]

        async def produce(store: PostgresStore, turn: int) -> None:
            key = keys[turn % len(keys)]
            for number in range(rounds):
                answers[key].append(await kept_live(store, turn * rounds + number, key))

        working = [asyncio.ensure_future(workshop.work(store)) for store in stores[4:]]
        await asyncio.gather(*(produce(store, turn) for turn, store in enumerate(stores[:4])))
        workshop.is_closing = True
        await asyncio.gather(*working)
        await is_sound(connections[0])
        assert (await PostgresReader(stores[0]).count())[JobState.READY] == 0
    assert workshop.most_at_once == Counter(keys)
    made = {key: {answer.id for answer in answers[key] if answer.is_new} for key in keys}
    assert {key: {answer.id for answer in answers[key]} for key in keys} == made
    # Each of them succeeded exactly once.
    assert Counter(key for key, _ in workshop.succeeded.elements()) == {key: len(ids) for key, ids in made.items()}
    assert all(10 < len(ids) < 2 * rounds for ids in made.values()), made
