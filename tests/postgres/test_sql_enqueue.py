"""holdfast.enqueue(): the public entry point for every language, inside the caller's transaction."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast.domain.errors import DuplicateJob
from holdfast.domain.event import LARGEST_HEADERS
from holdfast.domain.job import Job, JobState
from holdfast.store.events import NewSubscription
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import START, job, wants


async def _shown(store: PostgresStore, id: UUID) -> Job:
    found = await PostgresReader(store).get(id)
    assert found is not None
    return found


async def test_a_kind_and_a_payload_are_enough(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        row = await connection.fetchrow("SELECT * FROM holdfast.enqueue('invoice.send', '{\"invoice\": 17}')")
        assert row is not None
        assert row["is_new"] is True
        found = await _shown(store, row["id"])
    assert found.as_dict() == {
        **dict.fromkeys(Job.__slots__),
        "id": str(row["id"]),
        "kind": "invoice.send",
        "payload": {"invoice": 17},
        "queue": "default",
        "priority": 5,
        "state": JobState.READY,
        "tenant": "",
        "correlation_id": str(row["id"]),
        "attempt": 0,
        "losses": 0,
        "created_at": START.isoformat(),
        "run_at": START.isoformat(),
        "cancel_requested": False,
        "errors": [],
        "suspicion": 0,
    }


async def test_ids_made_by_the_database_are_current_version_7_uuids(database: Database) -> None:
    async with connected(database.url) as connection:
        rows = await connection.fetch("SELECT (holdfast.enqueue('work', '{}')).id FROM generate_series(1, 50)")
        now = datetime.now(UTC).timestamp()
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == 50
    for id in ids:
        assert (id.version, id.variant) == (7, "specified in RFC 4122")
        assert abs((id.int >> 80) / 1000 - now) < 60


async def test_every_option_can_be_set(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        id = uuid4()
        found_id = await connection.fetchval(
            "SELECT id FROM holdfast.enqueue(kind => 'a', payload => '[1]', queue => 'mail', priority => 0, "
            "delay => '90 s', tenant => 'acme', key => 'k', correlation_id => 'c', max_attempts => 1000, "
            "headers => '{\"h\": 1}', job_id => $1)",
            id,
        )
        assert found_id == id
        found = await _shown(store, id)
    assert (found.queue, found.priority, found.tenant, found.key) == ("mail", 0, "acme", "k")
    assert (found.correlation_id, found.max_attempts) == ("c", 1000)
    assert found.run_at == START + timedelta(seconds=90)
    assert found.as_dict()["headers"] == {"h": 1}


async def test_a_run_at_in_the_past_becomes_now(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        for run_at, expected in (
            (START - timedelta(days=1), START),
            (START, START),
            (START + timedelta(days=1), START + timedelta(days=1)),
        ):
            id = await connection.fetchval("SELECT id FROM holdfast.enqueue('work', '{}', run_at => $1)", run_at)
            assert (await _shown(store, id)).run_at == expected


REFUSED = {
    "kind => NULL, payload => '{}'": "kind: ",
    "kind => '', payload => '{}'": "kind: ",
    "kind => repeat('x', 201), payload => '{}'": "kind: ",
    "kind => 'a', payload => '{}', queue => NULL": "queue: ",
    "kind => 'a', payload => '{}', queue => ''": "queue: ",
    "kind => 'a', payload => '{}', queue => repeat('x', 101)": "queue: ",
    "kind => 'a', payload => '{}', priority => -1": "priority: -1 ",
    "kind => 'a', payload => '{}', priority => 10": "priority: 10 ",
    "kind => 'a', payload => '{}', priority => NULL": "priority: ",
    "kind => 'a', payload => '{}', max_attempts => 0": "max_attempts: 0 ",
    "kind => 'a', payload => '{}', max_attempts => 1001": "max_attempts: 1001 ",
    "kind => 'a', payload => '{}', delay => '-1 s'": "delay: ",
    "kind => 'a', payload => '{}', delay => '110 years'": "delay: ",
    "kind => 'a', payload => '{}', delay => '1 s', run_at => now()": "give a delay or a run_at, not both",
    "kind => 'a', payload => '{}', run_at => 'infinity'": "run_at: ",
    "kind => 'a', payload => '{}', run_at => '20000-01-01'": "run_at: ",
    "kind => 'a', payload => NULL": "payload: ",
    "kind => 'a', payload => to_json(repeat('x', 11000000))": "payload: ",
    "kind => 'a', payload => '{}', headers => json_build_object('x', repeat('x', 16400))": "headers: give JSON",
    "kind => 'a', payload => '{}', headers => json_build_object('holdfast.event', repeat('x', 20000))": "headers: ",
    "kind => 'a', payload => '{}', key => ''": "key",
    "kind => 'a', payload => '{}', key => repeat('x', 501)": "key",
    "kind => 'a', payload => '{}', tenant => repeat('😀', 200), key => repeat('😀', 500)": "key: ",
    "kind => 'a', payload => '{}', tenant => repeat('x', 201)": "key, tenant",
    "kind => 'a', payload => '{}', correlation_id => repeat('x', 201)": "key, tenant or correlation_id",
    "kind => 'a', payload => '{}', key => 'k', if_exists => 'update'": (
        "if_exists: 'update' is not known; use keep, keep_live or replace"
    ),
    "kind => 'a', payload => '{}', key => 'k', if_exists => NULL": "if_exists: NULL is not known",
    "kind => 'a', payload => '{}', if_exists => 'replace'": "if_exists and key_window need a key",
    "kind => 'a', payload => '{}', if_exists => 'keep_live'": "if_exists and key_window need a key",
    "kind => 'a', payload => '{}', key_window => '5 min'": "if_exists and key_window need a key",
    "kind => 'a', payload => '{}', key => 'k', key_window => '0'": "key_window: 00:00:00 ",
    "kind => 'a', payload => '{}', key => 'k', key_window => '-1 s'": "key_window: -00:00:01 ",
    "kind => 'a', payload => '{}', key => 'k', key_window => '110 years'": "key_window: ",
    "kind => 'a', payload => '{}', key => 'k', key_window => '1 s', if_exists => 'replace'": (
        "give if_exists => 'replace' or a key_window, not both"
    ),
    "kind => 'a', payload => '{}', key => 'k', key_window => '1 s', if_exists => 'keep_live'": (
        "give if_exists => 'keep_live' or a key_window, not both"
    ),
}


async def _refusal(connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> str:
    try:
        await connection.fetch(sql)
    except asyncpg.PostgresError as error:
        return str(error) if error.sqlstate == "HF002" else repr(error)
    return "not refused"


async def test_invalid_jobs_are_refused_with_one_line(database: Database) -> None:
    async with connected(database.url) as connection:
        for arguments, beginning in REFUSED.items():
            said = await _refusal(connection, f"SELECT * FROM holdfast.enqueue({arguments})")
            assert (said.startswith(beginning), "\n" in said) == (True, False), (arguments, said)
        assert await connection.fetchval("SELECT count(*) FROM holdfast.job") == 0


async def test_headers_of_an_event_may_be_as_large_as_those_of_a_job(database: Database) -> None:
    largest = json.dumps({"x": "x" * (LARGEST_HEADERS - len('{"x": ""}'))})
    async with opened_store(database.url) as store, connected(database.url) as connection:
        long_type = ".".join(["word"] * 51)
        await PostgresEvents(store).declare([NewSubscription("work", long_type)])
        await connection.execute("SELECT holdfast.enqueue('work', '{}', headers => $1::text::json)", largest)
        await connection.execute(
            "SELECT * FROM holdfast.publish($1, '{}', headers => $2::text::json)", long_type, largest
        )
        assert [len(leased.headers or "") >= LARGEST_HEADERS for leased in await store.claim(wants())] == [True, True]


async def test_keys_are_replaced_and_held_for_a_window_from_plain_sql(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        replacing = "SELECT * FROM holdfast.enqueue('work', $1, key => 'a', if_exists => 'replace')"
        first = await connection.fetchrow(replacing, "1")
        second = await connection.fetchrow(replacing, "2")
        assert first is not None
        assert second is not None
        assert dict(second) == {"id": first["id"], "is_new": False, "replaced": True}
        # The caller gave neither an ID nor a correlation ID, so the old ones stay.
        found = await _shown(store, first["id"])
        assert (found.payload, found.correlation_id) == (2, str(first["id"]))
        in_window = "SELECT (holdfast.enqueue('work', '{}', key => 'b', key_window => '5 min')).is_new"
        assert [await connection.fetchval(in_window) for _ in range(2)] == [True, False]
        await PostgresClock(store).advance(timedelta(minutes=5))
        assert await connection.fetchval(in_window) is True


async def test_an_id_that_exists_is_refused(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await store.enqueue([first := job()])
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.fetch("SELECT * FROM holdfast.enqueue('work', '{}', job_id => $1)", first.id)
        with pytest.raises(DuplicateJob, match=f"{first.id}.*; use a new id, or a key if it is the same work$"):
            await store.enqueue([job(id=first.id)])


async def test_a_job_appears_when_the_transaction_commits_and_not_before(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        id = await connection.fetchval("SELECT id FROM holdfast.enqueue('work', '{}', key => 'a')")
        assert await store.claim(wants()) == []
        await transaction.commit()
        assert [each.id for each in await store.claim(wants())] == [id]


async def test_a_rollback_leaves_neither_the_job_nor_its_key(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetchval("SELECT id FROM holdfast.enqueue('work', '{}', key => 'a')")
        await transaction.rollback()
        assert await store.claim(wants()) == []
        (answer,) = await store.enqueue([job(key="a")])
        assert answer.is_new


async def _until_it_waits(database: Database) -> None:
    """Wait until a session in this database waits for a lock."""
    async with connected(database.url) as watcher:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            while not await watcher.fetchval(query):
                pass


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("second", ["function", "store"])
async def test_two_producers_with_one_key_make_one_job(database: Database, ending: str, second: str) -> None:
    async with (
        opened_store(database.url) as store,
        connected(database.url) as first,
        connected(database.url) as other,
    ):
        transaction = first.transaction()
        await transaction.start()
        first_id = await first.fetchval("SELECT id FROM holdfast.enqueue('work', '{}', key => 'a')")

        async def enqueue_again() -> tuple[UUID, bool]:
            if second == "store":
                (answer,) = await store.enqueue([job(key="a")])
                return answer.id, answer.is_new
            row = await other.fetchrow("SELECT * FROM holdfast.enqueue('work', '{}', key => 'a')")
            assert row is not None
            return row["id"], row["is_new"]

        waiting = asyncio.create_task(enqueue_again())
        await _until_it_waits(database)
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        id, is_new = await waiting
        assert is_new is (ending == "rollback")
        assert (id == first_id) is (ending == "commit")
        assert [each.id for each in await store.claim(wants())] == [id]


async def test_many_producers_with_the_same_keys_make_one_job_each_and_do_not_deadlock(database: Database) -> None:
    async with opened_store(database.url, pool_size=8) as store:
        keys = [f"key-{number}" for number in range(30)]

        async def produce(turn: int) -> list[bool]:
            order = keys if turn % 2 else keys[::-1]
            return [answer.is_new for answer in await store.enqueue([job(key=key) for key in order])]

        answers = await asyncio.gather(*(produce(turn) for turn in range(8)))
        assert sum(sum(each) for each in answers) == len(keys)
        assert len(await store.claim(wants())) == len(keys)


async def test_a_conflicting_key_under_repeatable_read_never_makes_a_second_job(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        await connection.execute("SELECT FROM holdfast.ready")
        await store.enqueue([job(key="a")])
        with pytest.raises(asyncpg.SerializationError):
            await connection.fetchval("SELECT id FROM holdfast.enqueue('work', '{}', key => 'a')")
        await transaction.rollback()
        assert len(await store.claim(wants())) == 1
