"""The proxy in front of a real PostgreSQL: which connection it cuts, when, and what the server has done by then."""

import asyncio
import gc
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, InvalidInput, JobState, RunningJob, StoreUnavailable
from holdfast_lab.faults.protocol import Conversation, Messages, Opening, is_meant
from holdfast_lab.faults.proxy import Cut, Proxy, When
from tests.producer.connection_kinds import LOST
from tests.worker.harness import Database, drained, fast, until, working

pytestmark = pytest.mark.fault

INSERT = "INSERT INTO effect (note) VALUES ($1)"
LITERAL = "INSERT INTO effect (note) VALUES ('one')"
WHEN = pytest.mark.parametrize(("when", "rows"), [("before", 0), ("after", 1)])


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy.before(database.url, seed=7) as proxy:
        yield proxy


@asynccontextmanager
async def through(proxy: Proxy) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection that tolerates a sudden end."""
    connection = await asyncpg.connect(proxy.url)
    try:
        yield connection
    finally:
        connection.terminate()


def rows(database: Database) -> int:
    ((number,),) = database.query("SELECT count(*) FROM effect")
    assert isinstance(number, int)
    return number


def swallowed(proxy: Proxy) -> int:
    return sum(fault.what == "swallowed" for fault in proxy.faults)


async def by_parameters(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(INSERT, "one")
    finally:
        connection.terminate()


async def by_a_prepared_statement(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        statement = await connection.prepare(f"{INSERT} RETURNING number")
        await statement.fetchval("one")
    finally:
        connection.terminate()


async def by_text(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(LITERAL)
    finally:
        connection.terminate()


async def by_psycopg(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO effect (note) VALUES (%s)", ["one"])


async def by_a_pipeline(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute("INSERT INTO effect (note) VALUES (%s)", ["one"])


async def by_copy(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.copy_records_to_table("effect", records=[("insert",)], columns=["note"])
    finally:
        connection.terminate()


async def by_psycopg_copy(url: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY effect (note) FROM STDIN") as copy,
    ):
        copy.write_row(["insert"])


SINGLE = [by_parameters, by_a_prepared_statement, by_text, by_psycopg, by_a_pipeline]
COPIES = [by_copy, by_psycopg_copy]


@pytest.mark.parametrize("write", [*SINGLE, *COPIES])
@WHEN
async def test_a_statement_is_cut_before_the_server_gets_it_or_after_it_has_answered(
    database: Database, proxy: Proxy, write: Callable[[str], Awaitable[None]], when: When, rows: int
) -> None:
    of = "copy" if write in COPIES else "insert"
    proxy.plan(Cut(when, of=of))
    with pytest.raises(LOST):
        await write(proxy.url)
    assert database.query("SELECT count(*) FROM effect") == [(rows,)]
    (fault,) = proxy.faults
    assert (fault.what, of in fault.statement.casefold()) == (f"cut {when}", True)
    # The cut happens only once.
    await write(proxy.url)
    assert database.query("SELECT count(*) FROM effect") == [(rows + 1,)]


@WHEN
async def test_only_a_real_commit_is_cut(database: Database, proxy: Proxy, when: When, rows: int) -> None:
    proxy.plan(Cut(when))

    async def write() -> None:
        async with through(proxy) as connection, connection.transaction(isolation="read_committed"):
            await connection.execute("SET LOCAL synchronous_commit = on")
            await connection.execute(INSERT, "one")

    with pytest.raises(LOST):
        await write()
    assert database.query("SELECT count(*) FROM effect") == [(rows,)]
    assert [fault.statement for fault in proxy.faults] == ["COMMIT;"]


async def test_the_nth_statement_is_counted_over_all_connections_and_only_its_own_is_cut(
    database: Database, proxy: Proxy
) -> None:
    proxy.plan(Cut("before", of="insert into effect", nth=3, times=2))
    async with through(proxy) as first, through(proxy) as second, through(proxy) as third:
        await first.execute(INSERT, "one")
        await second.execute(INSERT, "two")
        with pytest.raises(LOST):
            await first.execute(INSERT, "three")
        with pytest.raises(LOST):
            await second.execute(INSERT, "four")
        await third.execute(INSERT, "five")
    assert database.query("SELECT note FROM effect ORDER BY number") == [("one",), ("two",), ("five",)]
    assert [(fault.what, fault.connection) for fault in proxy.faults] == [("cut before", 1), ("cut before", 2)]


async def test_the_same_seed_cuts_the_same_statements(database: Database) -> None:
    async def done(seed: int) -> list[str]:
        with Proxy.before(database.url, seed=seed) as proxy:
            proxy.plan(Cut("either", of="insert", share=0.5, times=None))
            outcomes = []
            for _ in range(12):
                try:
                    await by_text(proxy.url)
                    outcomes.append("")
                except LOST:
                    outcomes.append(proxy.faults[-1].what)
            return outcomes

    first = await done(1)
    assert set(first) == {"", "cut before", "cut after"}
    assert rows(database) == sum(each != "cut before" for each in first)
    assert await done(1) == first
    assert await done(2) != first


async def test_all_connections_can_swallow_data_and_flow_again(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as silent, through(proxy) as unharmed:
        proxy.swallow()
        asked = asyncio.ensure_future(silent.execute(LITERAL))
        connecting = asyncio.ensure_future(asyncpg.connect(proxy.url))
        await until(lambda: swallowed(proxy) == 2, "both have said something that nobody heard")
        assert len(proxy.connections) == 3
        assert not asked.done()
        assert not connecting.done()
        proxy.flow()
        for lost in (asked, connecting):
            with pytest.raises(LOST):
                await lost
        # This connection lost nothing.
        await unharmed.execute(LITERAL)
    assert rows(database) == 1


async def test_a_single_connection_can_swallow_data(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as silent, through(proxy) as other:
        proxy.swallow(1)
        asked = asyncio.ensure_future(silent.execute(LITERAL))
        await other.execute(LITERAL)
        async with through(proxy) as third:
            await third.execute(LITERAL)
        assert not asked.done()
        proxy.cut(1)
        with pytest.raises(LOST):
            await asked
        await other.execute(LITERAL)
    assert rows(database) == 3


async def test_existing_connections_are_half_open_and_new_ones_are_not(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as old:
        proxy.half_open()
        asked = asyncio.ensure_future(old.execute(LITERAL))
        async with through(proxy) as new:
            await new.execute(LITERAL)
        await until(lambda: swallowed(proxy) == 1, "it has said something that nobody heard")
        assert not asked.done()
        proxy.flow()
        with pytest.raises(LOST):
            await asked
    assert rows(database) == 1


async def test_an_answer_is_held_back_after_the_server_has_acted(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as connection:
        proxy.delay(3600, way="to_client")
        asked = asyncio.ensure_future(connection.execute(LITERAL))
        await until(lambda: rows(database) == 1, "the server has acted")
        assert not asked.done()
        proxy.cut_all()
        with pytest.raises(LOST):
            await asked


async def test_a_delay_applies_in_each_direction(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as connection:
        proxy.delay(0.05, jitter=0.01)
        started = time.monotonic()
        await connection.execute(LITERAL)
        # The round trip may take longer, but not shorter.
        assert time.monotonic() - started >= 0.1
    assert rows(database) == 1


def test_a_connection_opened_while_the_proxy_ends_is_closed() -> None:
    """An unclosed connection would cause a warning in any later test that triggers garbage collection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(30):
            with Proxy(server.getsockname()) as proxy:
                clients = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
            for client in clients:
                client.close()
    gc.collect()


async def test_every_connection_is_refused_until_it_flows_again(database: Database, proxy: Proxy) -> None:
    async with through(proxy) as connection:
        proxy.refuse()
        with pytest.raises(LOST):
            await connection.execute(LITERAL)
        with pytest.raises(LOST):
            await asyncpg.connect(proxy.url)
    proxy.flow()
    await by_text(proxy.url)
    assert rows(database) == 1


async def test_a_half_closed_connection_is_closed_for_the_client(proxy: Proxy) -> None:
    async with through(proxy) as connection, through(proxy) as other:
        proxy.half_close(1)
        await until(connection.is_closed, "the client has heard")
        assert await other.fetchval("SELECT 1") == 1


async def test_a_half_closed_connection_still_forwards_data_from_the_client() -> None:
    """The proxy also forwards protocols other than PostgreSQL's."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await reader.read(100):
            writer.write(received)
            await heard.put(received)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server, Proxy.open("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"AMQP\x00\x00\x09\x01")
        assert await reader.read(100) == await heard.get() == b"AMQP\x00\x00\x09\x01"
        proxy.half_close()
        assert await reader.read() == b""
        writer.write(b"still here")
        assert await heard.get() == b"still here"
        writer.close()
        await until(lambda: not proxy.connections, "the connection has ended")


async def test_encryption_is_refused_so_that_the_proxy_can_read(proxy: Proxy) -> None:
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        psycopg.connect(f"{proxy.url}?sslmode=require")


def test_a_url_leads_through_the_proxy() -> None:
    proxy = Proxy(("db", 5432))
    found = proxy.through("postgresql://me:secret@db:6000/app?host=/run&port=7&sslmode=require&lock_timeout=5")
    proxy._loop.close()
    assert found == "postgresql://me:secret@127.0.0.1:0/app?lock_timeout=5"


@pytest.mark.parametrize(
    "given", [{"when": "during"}, {"nth": 0}, {"times": 0}, {"share": 1.5}], ids=["when", "nth", "times", "share"]
)
def test_a_cut_that_makes_no_sense_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Cut(**given)  # type: ignore[arg-type]


@WHEN
async def test_an_enqueue_that_is_cut_and_repeated_makes_one_job(
    database: Database, proxy: Proxy, when: When, rows: int
) -> None:
    async with Holdfast(proxy.url) as app:
        proxy.plan(Cut(when, of="enqueue"))
        with pytest.raises(StoreUnavailable):
            await app.enqueue("work", {}, key="once")
        assert (await app.jobs.count())[JobState.READY] == rows
        again = await app.enqueue("work", {}, key="once")
        assert again.is_new is not bool(rows)
        assert (await app.jobs.count())[JobState.READY] == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_finish_that_is_cut_is_written_once_and_its_job_runs_once(proxy: Proxy, when: When) -> None:
    app, ran = Holdfast(proxy.url), []

    @app.handler("work")
    async def work(job: RunningJob[object]) -> None:
        ran.append(job.id)

    async with app:
        proxy.plan(Cut(when, of="finish", times=2))
        enqueued = await app.enqueue_many([app.job("work", {}) for _ in range(5)])
        async with working(app):
            counts = await drained(app)
    assert counts == {JobState.SUCCEEDED: 5}
    assert sorted(ran) == sorted(each.id for each in enqueued)
    assert [fault.what for fault in proxy.faults] == [f"cut {when}"] * 2


def message(kind: bytes, content: bytes = b"") -> bytes:
    return kind + struct.pack("!i", 4 + len(content)) + content


@given(
    st.lists(st.tuples(st.sampled_from([b"Q", b"d", b"S"]), st.binary(max_size=20)), max_size=8),
    st.lists(st.integers(1, 9)),
)
def test_messages_are_reassembled_however_the_network_splits_them(
    sent: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    expected = [message(kind, content) for kind, content in sent]
    stream, messages, found = b"".join(expected), Messages(), []
    for size in [*cuts, len(stream)]:
        found += list(messages.take(stream[:size]))
        stream = stream[size:]
    assert found == expected


@given(st.lists(st.integers(1, 9)))
def test_an_opening_is_understood_however_the_network_splits_it(cuts: list[int]) -> None:
    startup = struct.pack("!ii", 13, 196608) + b"user\0"
    stream = struct.pack("!ii", 8, 80877104) + struct.pack("!ii", 8, 80877103) + startup + b"rest"
    opening, passed, answers, after = Opening(), b"", b"", b""
    for size in [*cuts, len(stream)]:
        part, stream = stream[:size], stream[size:]
        if opening.is_over:
            after += part
            continue
        on, back = opening.take(part)
        passed, answers = passed + on, answers + back
        after += opening.rest if opening.is_over else b""
    assert (passed, answers, after, opening.is_postgres) == (startup, b"NN", b"rest", True)


def test_in_a_pipeline_the_answer_of_each_statement_is_known() -> None:
    conversation = Conversation()
    conversation.hear(message(b"Z", b"I"))
    asked = [
        message(b"P", b"a\0SELECT 1\0\0\0"), message(b"B", b"\0a\0"), message(b"E", b"\0\0\0\0\0"), message(b"S"),
        message(b"P", b"b\0INSERT\0\0\0"), message(b"B", b"\0b\0"), message(b"E", b"\0\0\0\0\0"),
    ]  # fmt: skip
    executed = [(conversation.statement_of(each), conversation.answer_of_next) for each in asked]
    assert [each for each in executed if each[0] is not None] == [("SELECT 1", 2), ("INSERT", 3)]


@pytest.mark.parametrize(
    ("statement", "of", "meant"),
    [
        ("COMMIT;", "commit", True),
        ("  end", "COMMIT", True),
        ("-- after all\nCOMMIT", "commit", True),
        ("BEGIN ISOLATION LEVEL READ COMMITTED", "commit", False),
        ("SELECT * FROM holdfast.finish_succeeded($1)", "finish", True),
        ("/* not a finish */ SELECT 1 -- finish", "finish", False),
        ("insert into jobs", "INSERT INTO", True),
    ],
)
def test_matching_a_statement(statement: str, of: str, meant: bool) -> None:
    assert is_meant(statement, of) is meant


async def test_a_job_whose_claims_went_unanswered_is_released_without_counting_a_loss(proxy: Proxy) -> None:
    """The job has killed no worker. Counted twice, the loss would make it a suspect that never ran."""
    app, ran = Holdfast(proxy.url), []

    @app.handler("work")
    async def work(job: RunningJob[object]) -> None:
        ran.append(job.fence)

    async with app:
        proxy.plan(Cut("after", of=".claim(", times=4))
        enqueued = await app.enqueue("work", {})
        async with working(app, fast(lease=timedelta(seconds=12))):
            await drained(app)
        job = await app.jobs.get(enqueued.id)
    assert job is not None
    assert (job.state, job.attempt, job.losses, ran) == (JobState.SUCCEEDED, 1, 0, [job.fence])
    assert [fault.what for fault in proxy.faults] == ["cut after"] * (4)
