"""Many producers and one key, whatever the others do meanwhile: one job, and nothing newer is lost."""

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

from holdfast.domain.errors import KeyLocked, StoreUnavailable
from holdfast.domain.job import IfExists, JobState, NewJob
from holdfast.domain.json_text import decode, encode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Enqueued, Fenced, Finish
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
    """Claims everything that is due; the ids and numbers."""
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
async def test_sixteen_producers_race_a_thousand_times_and_make_a_thousand_jobs(database: Database) -> None:
    async with crowd(database.url, 16) as producers:
        statements = [await producer.prepare(_ENQUEUE) for producer in producers]
        for number in range(1000):
            # Whoever was asked first last time is asked last this time.
            turn = statements[number % 16 :] + statements[: number % 16]
            found = await asyncio.gather(*(statement.fetchrow(f"key-{number}") for statement in turn))
            answers = [tuple(row) for row in found if row is not None]
            assert sorted(is_new for _, is_new in answers) == [False] * 15 + [True]
            assert len({id for id, _ in answers}) == 1
        # Fifteen thousand conflicts have left nothing behind, and burned no number.
        counts = await rows(producers[0])
        assert {table: count for table, count in counts.items() if count} == {"job": 1000, "ready": 1000, "key": 1000}
        assert await producers[0].fetchval("SELECT is_called FROM holdfast.ledger_number_seq") is False


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_all_who_waited_for_the_first_get_one_job(database: Database, ending: str) -> None:
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


async def test_a_producer_waits_for_another_one_s_transaction_only_so_long(database: Database) -> None:
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


async def test_a_producer_s_own_patience_is_what_counts_and_is_left_as_it_was(database: Database) -> None:
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
async def test_an_old_snapshot_fails_cleanly_instead_of_giving_a_wrong_answer(
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
        # Asked again, in a transaction that sees what happened:
        async with old.transaction(isolation=isolation):  # type: ignore[arg-type]
            (answer,) = await OneConnectionStore(old).enqueue([asked])
        assert answer.replaced is (happened != "claimed")
        assert await claimable(store) == [(answer.id, 2)]
        await is_sound(old)


async def test_a_key_seen_by_an_old_snapshot_is_given_back_there(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as old:
        first = await replaced(store)
        async with old.transaction(isolation="repeatable_read"):
            await old.fetchval("SELECT count(*) FROM holdfast.key")
            await store.claim(wants())
            row = await old.fetchrow(_ENQUEUE, "report")
        assert row is not None
        assert tuple(row) == (first.id, False)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_job_that_is_being_replaced_is_not_claimed_until_that_is_decided(
    database: Database, ending: str
) -> None:
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
async def test_two_replacements_at_once_leave_one_job_with_the_second(database: Database, ending: str) -> None:
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
async def test_a_replacement_waits_for_a_claim_and_follows_what_became_of_it(database: Database, ending: str) -> None:
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


async def test_a_claim_with_an_old_snapshot_never_runs_what_was_replaced(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as old:
        id = (await replaced(store, 1)).id
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT holdfast.now()")
        assert (await replaced(store, 2)).replaced
        with pytest.raises(StoreUnavailable, match="could not serialize"):
            await OneConnectionStore(old).claim(wants())
        await old.execute("ROLLBACK")
        assert await claimable(store) == [(id, 2)]


class Workshop:
    """Claims and ends jobs until it is told to stop and nothing is left; knows what succeeded."""

    def __init__(self) -> None:
        self.succeeded: Counter[tuple[str, int]] = Counter()
        self.is_closing = False

    async def work(self, store: PostgresStore) -> None:
        # Every third attempt comes to nothing: its job is ready again, and may be replaced.
        endings = cycle((SUCCEED, SUCCEED, RETRY, SUCCEED, SUCCEED, RELEASE))
        while (leased := await store.claim(wants(limit=2))) or not self.is_closing:
            for each in leased:
                ending = next(endings)
                assert await store.finish([Finish(each.lease, ending)]) == [Fenced.DONE]
                if ending is SUCCEED:
                    payload = decode(each.payload)
                    self.succeeded[payload["key"], payload["number"]] += 1


async def test_of_what_is_replaced_under_the_hands_of_workers_the_newest_always_runs_and_nothing_older(
    database: Database,
) -> None:
    """Of two payloads in a row exactly one of these is true: the first one ran, or the second one replaced it."""
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


async def test_producers_that_replace_the_same_jobs_do_not_deadlock(database: Database) -> None:
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
async def test_pruning_does_not_wait_for_a_key_that_is_about_to_go_on(database: Database, ending: str) -> None:
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
