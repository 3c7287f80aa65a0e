"""Many jobs are inserted by COPY, a few by one statement over arrays, and one by a simple statement: same result."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob, InvalidInput, StoreUnavailable
from holdfast.domain.job import JobState, NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.store.postgres import copying, driver, enqueuing
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import START, Options, job, wants
from tests.wake.ear import listening

if TYPE_CHECKING:
    import asyncpg

pytestmark = pytest.mark.parametrize(
    "server", [pytest.param("embedded-16", marks=pytest.mark.long), "embedded-18"], indirect=True
)

MANY = 400
# More than the socket buffers between client and server can hold, so the client must wait for the server.
LARGE = encode("x" * 20_000)
_WAITING_PROCESS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
# All dates of Python, from year 1 to the last one that Holdfast allows.
TIMES = st.integers(-1999 * 365, 7997 * 365).flatmap(
    lambda days: st.integers(0, 86_400_000_000 - 1).map(
        lambda microseconds: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=days, microseconds=microseconds)
    )
)
DELAYS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500))
VALUES = st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), NAMES)
JOBS = st.lists(
    st.fixed_dictionaries(
        {"kind": NAMES, "payload": VALUES.map(encode), "queue": NAMES, "priority": st.integers(0, 9)},
        optional={
            "tenant": NAMES,
            "correlation_id": NAMES,
            "max_attempts": st.integers(1, 1000),
            "headers": VALUES.map(encode),
        },
    ).flatmap(
        lambda said: st.one_of(
            st.just(said),
            DELAYS.map(lambda delay: {**said, "delay": delay}),
            TIMES.map(lambda run_at: {**said, "run_at": run_at}),
        )
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(autouse=True)
def _latency_does_not_choose_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of insert method must not depend on the network latency of this machine."""
    monkeypatch.setattr(enqueuing, "_MORE_ROUND_TRIPS", 0)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[PostgresStore]:
    async with opened_store(database.url) as store:
        await PostgresClock(store).freeze(START)
        yield store


def many(number: int = MANY) -> list[NewJob]:
    return [job(payload=encode({"number": each})) for each in range(number)]


async def waiting(watching: "asyncpg.Connection[asyncpg.Record]") -> int:
    """Return the process ID of the first backend that waits for a lock."""
    async with asyncio.timeout(30):
        while not (pid := await watching.fetchval(_WAITING_PROCESS)):  # noqa: ASYNC110 - the signal comes from the server
            await asyncio.sleep(0.005)
    return int(pid)


async def rows_of(store: PostgresStore, ids: Sequence[UUID]) -> list[tuple[object, ...]]:
    """Return everything that was written for these jobs except their IDs, in order."""
    async with store.acquired() as connection:
        rows = await connection.fetch(
            """
            SELECT job.created_at::text, job.priority, job.max_attempts, job.queue, job.kind, job.tenant,
                   nullif(job.correlation_id, job.id::text), job.key, job.payload::text, job.headers::text,
                   ready.run_at::text, ready.priority, ready.attempt, ready.losses, ready.queue, ready.kind
            FROM unnest($1::uuid[]) WITH ORDINALITY AS given (id, number)
            LEFT JOIN holdfast.job USING (id) LEFT JOIN holdfast.ready USING (id) ORDER BY number
            """,
            ids,
        )
    return [tuple(row) for row in rows]


@pytest.fixture
def verbs(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the statements that the store runs by name."""
    ran: list[str] = []
    fetch = store.fetch

    async def noting(verb: str, *arguments: object) -> "list[asyncpg.Record]":
        ran.append(verb)
        return await fetch(verb, *arguments)

    monkeypatch.setattr(store, "fetch", noting)
    return ran


@given(said=JOBS, moment=TIMES, kept=st.integers(1, 3))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_all_insert_methods_write_the_same_rows(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, said: list[dict[str, Any]], moment: datetime, kept: int
) -> None:
    monkeypatch.setattr(copying, "_KEPT_BEGINNINGS", kept)
    await PostgresClock(store).freeze(moment)
    written = []
    for least_copied, is_single in ((1, False), (len(said) + 1, False), (len(said) + 1, True)):
        jobs = [NewJob(**each) for each in said]
        monkeypatch.setattr(enqueuing, "_LEAST_COPIED", least_copied)
        for part in [[each] for each in jobs] if is_single else [jobs]:
            assert await store.enqueue(part) == [Enqueued(each.id, is_new=True) for each in part]
        written.append(await rows_of(store, [each.id for each in jobs]))
    copied, by_arrays, one_by_one = written
    assert copied == by_arrays == one_by_one


async def test_only_large_batches_are_copied(store: PostgresStore, verbs: list[str]) -> None:
    await store.enqueue(many(2))
    await store.enqueue(many(1))
    await store.enqueue([*many(), job(key="a")])
    assert verbs == ["enqueue_many", "enqueue_one", "enqueue_many_keyed"]
    await store.enqueue(many())
    assert len(verbs) == 3


async def test_jobs_are_inserted_by_a_statement_where_copy_is_refused(database: Database) -> None:
    """PostgreSQL refuses COPY to roles that are subject to row-level security policies."""
    role = f"{database.name}_app"
    async with connected(database.url) as owner:
        await owner.execute(
            f"""
            CREATE ROLE {role} LOGIN;
            GRANT USAGE ON SCHEMA holdfast TO {role};
            GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {role};
            GRANT ALL ON ALL SEQUENCES IN SCHEMA holdfast TO {role};
            ALTER TABLE holdfast.job ENABLE ROW LEVEL SECURITY;
            CREATE POLICY tenants ON holdfast.job USING (true) WITH CHECK (tenant = 'ours')
            """
        )
        try:
            async with opened_store(database.url.replace("postgres@", f"{role}@", 1)) as store:
                for _ in range(2):
                    assert len(await store.enqueue([job(tenant="ours") for _ in range(MANY)])) == MANY
                with pytest.raises(InvalidInput, match="policy"):
                    await store.enqueue([job(tenant="theirs") for _ in range(MANY)])
                assert (await PostgresReader(store).count())[JobState.READY] == 2 * MANY
        finally:
            await owner.execute(f"DROP POLICY tenants ON holdfast.job; DROP OWNED BY {role}; DROP ROLE {role}")


async def test_results_and_claims_of_many_jobs_keep_their_order(store: PostgresStore) -> None:
    jobs = many()
    assert await store.enqueue(jobs) == [Enqueued(each.id, is_new=True) for each in jobs]
    claimed = await store.claim(wants(limit=MANY))
    assert [(each.id, each.payload, each.created_at) for each in claimed] == [
        (each.id, each.payload, START) for each in jobs
    ]


async def test_payloads_larger_than_one_chunk_are_sent_whole(store: PostgresStore) -> None:
    text = "é" * 150_000
    jobs = [job(payload=encode([number, text if number % 100 == 50 else ""])) for number in range(MANY)]
    await store.enqueue(jobs)
    assert [each.payload for each in await store.claim(wants(limit=MANY))] == [each.payload for each in jobs]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"id": UUID(int=7)}, DuplicateJob),
        ({"payload": Json("{")}, InvalidInput),
        ({"payload": Json('"\0"')}, InvalidInput),
        ({"payload": Json('"\ud800"')}, InvalidInput),
    ],
    ids=["its id is taken", "no JSON", "a NUL", "half a character"],
)
@pytest.mark.parametrize("number", [1, 2, MANY])
async def test_one_invalid_job_rejects_the_whole_batch(
    store: PostgresStore, number: int, wrong: Options, error: type[Exception]
) -> None:
    """This holds for every insert method, and the connection stays usable."""
    await store.enqueue([job(id=UUID(int=7))])
    jobs = many(number)
    jobs[number // 2] = job(**wrong)
    with pytest.raises(error):
        await store.enqueue(jobs)
    assert (await PostgresReader(store).count())[JobState.READY] == 1
    await store.enqueue(many())
    assert (await PostgresReader(store).count())[JobState.READY] == 1 + MANY


@pytest.mark.parametrize("table", ["holdfast.clock", "holdfast.job", "holdfast.ready"])
async def test_an_enqueue_that_is_canceled_midway_leaves_nothing(database: Database, table: str) -> None:
    async with opened_store(database.url, pool_size=1) as store, connected(database.url) as other:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {table}")
            enqueuing = asyncio.ensure_future(store.enqueue(many()))
            await waiting(other)
            enqueuing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await enqueuing
        reader = PostgresReader(store)
        assert (await reader.count())[JobState.READY] == 0
        await store.enqueue(many())
        assert (await reader.count())[JobState.READY] == MANY


@pytest.mark.parametrize(
    ("payload", "reason"),
    [(encode(1), "administrator command"), (LARGE, "connection was lost")],
    ids=["all is sent", "most is not sent yet"],
)
async def test_losing_the_connection_midway_is_an_outage(database: Database, payload: Json, reason: str) -> None:
    async with opened_store(database.url, pool_size=1) as store, connected(database.url) as other:
        async with other.transaction():
            await other.execute("LOCK TABLE holdfast.job")
            jobs = [job(payload=payload) for _ in range(MANY)]
            enqueuing = asyncio.ensure_future(store.enqueue(jobs))
            await other.execute("SELECT pg_terminate_backend($1)", await waiting(other))
            with pytest.raises(StoreUnavailable, match=reason):
                await asyncio.wait_for(enqueuing, 20)
        await store.enqueue(many())
        assert (await PostgresReader(store).count())[JobState.READY] == MANY


@pytest.mark.parametrize("payload", [encode(1), LARGE], ids=["all is sent", "most is not sent yet"])
async def test_a_server_that_takes_too_long_is_an_outage(
    database: Database, monkeypatch: pytest.MonkeyPatch, payload: Json
) -> None:
    async with opened_store(database.url, pool_size=1) as store, connected(database.url) as other:
        async with other.transaction():
            await other.execute("LOCK TABLE holdfast.job")
            with monkeypatch.context() as patch:
                patch.setattr(driver, "COMMAND_SECONDS", 0.5)
                with pytest.raises(StoreUnavailable):
                    await store.enqueue([job(payload=payload) for _ in range(MANY)])
        await store.enqueue(many())
        assert (await PostgresReader(store).count())[JobState.READY] == MANY


async def test_a_network_that_goes_silent_is_an_outage(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy.before(database.url) as proxy:
        parts = copying._parts

        async def silent(rows: Iterator[bytes]) -> AsyncIterator[bytes]:
            proxy.swallow()
            async for part in parts(rows):
                yield part

        async with opened_store(proxy.url, pool_size=1) as store:
            with monkeypatch.context() as patch:
                patch.setattr(copying, "_parts", silent)
                patch.setattr(driver, "COMMAND_SECONDS", 0.5)
                with pytest.raises(StoreUnavailable):
                    await store.enqueue(many())
            proxy.flow()
            assert (await PostgresReader(store).count())[JobState.READY] == 0


async def test_a_worker_that_falls_asleep_during_the_copy_is_woken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the database's default isolation level gives the ring a snapshot from before the sleeper."""
    parts = copying._parts
    async with connected(database.url) as connection:
        await connection.execute(
            f"ALTER DATABASE \"{database.name}\" SET default_transaction_isolation = 'serializable'"
        )
    async with listening(database.url) as ear:

        async def late(rows: Iterator[bytes]) -> AsyncIterator[bytes]:
            await ear.asleep("default")
            async for part in parts(rows):
                yield part

        monkeypatch.setattr(copying, "_parts", late)
        async with opened_store(database.url) as store:
            await store.enqueue(many())
        assert await ear.heard() == ["default"]


@pytest.mark.parametrize(("delay", "is_heard"), [(timedelta(seconds=60), True), (timedelta(seconds=61), False)])
async def test_a_worker_sleeping_on_a_queue_is_woken_at_the_commit(
    database: Database, store: PostgresStore, delay: timedelta, is_heard: bool
) -> None:
    async with listening(database.url) as ear:
        for queue in ("default", "default", "mail"):
            await ear.asleep(queue)
        await store.enqueue([job(delay=delay) for _ in range(MANY)])
        assert await ear.heard() == ["default"] * is_heard
