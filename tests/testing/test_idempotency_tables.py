"""Tables under the check: they are restored before each run, even after a transaction that was left open."""

import gc

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.testing import Tables, check_idempotency
from holdfast.testing.idempotency import tables
from tests.databases import Database, connected
from tests.testing.outside import Job, check_outside, hurt

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def test_a_check_that_gives_up_causes_no_warning_about_connections(database: Database) -> None:
    async def handler(job: Job) -> None:
        connection = await asyncpg.connect(database.url)
        for _ in range(3):
            await connection.execute("SELECT 1")
        await connection.close()

    with pytest.raises(InvalidInput, match="took 2 steps"):
        await check_outside(handler, also=(), most_steps=2)
    gc.collect()


async def test_a_transaction_that_the_handler_leaves_open_is_rolled_back_and_reported(database: Database) -> None:
    with psycopg.connect(database.url) as shared:
        shared.execute("CREATE TABLE entry (way text)")
        shared.commit()

        def handler(job: Job) -> None:
            shared.execute("INSERT INTO entry VALUES ('kept') ON CONFLICT DO NOTHING")
            shared.commit()
            shared.execute("SELECT FROM entry")

        app = Holdfast("memory:")
        app.handler("checked")(handler)
        report = await check_idempotency(app, "checked", observe=Tables(database.url, "entry"))
        assert hurt(report) == [2, 3, None]
        assert "left open" in report.notes[0]


async def test_a_transaction_of_another_process_is_named(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_LOCK_MILLISECONDS", 50)
    app = Holdfast("memory:")

    @app.handler("checked")
    async def handler(job: Job) -> None: ...

    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE entry (way text)")
        async with connection.transaction():
            await connection.execute("SELECT FROM entry")
            with pytest.raises(
                InvalidInput, match=r"\(held: entry by process \d+, idle in transaction after SELECT FROM entry\)"
            ):
                await check_idempotency(app, "checked", observe=Tables(database.url, "entry"))
    with pytest.raises(InvalidInput, match=r'Tables: relation "nowhere" does not exist'):
        await check_idempotency(app, "checked", observe=Tables(database.url, "nowhere"))


async def test_values_that_depend_on_gaps_between_serial_numbers_are_not_compared(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE entry (id serial, job uuid UNIQUE, is_even boolean)")

    async def handler(job: Job) -> None:
        """Draws two numbers each time. A crash in between wastes one, and the second one is odd from then on."""
        async with connected(database.url) as connection:
            number = await connection.fetchval("SELECT nextval('entry_id_seq')")
            await connection.execute(
                "INSERT INTO entry (id, job, is_even) VALUES ($1, $2, nextval('entry_id_seq') % 2 = 0) "
                "ON CONFLICT (job) DO NOTHING",
                number,
                job.id,
            )

    app = Holdfast("memory:")
    app.handler("checked")(handler)
    report = await check_idempotency(app, "checked", observe=Tables(database.url, "entry"))
    assert report.ok, report
    assert report.ignored == ("entry.id", "entry.is_even")


async def test_unobserved_rows_do_not_make_a_handler_idempotent(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE stock (amount integer); INSERT INTO stock VALUES (5)")

    app = Holdfast("memory:")

    @app.handler("take")
    async def take(job: Job) -> None:
        async with connected(database.url) as connection:
            await connection.execute("UPDATE stock SET amount = amount - 1")

    with pytest.raises(InvalidInput, match=r"take writes to a database \(UPDATE stock .*nothing observes it; give obs"):
        await check_idempotency(app, "take")


async def test_a_handler_that_writes_to_an_unobserved_table_is_not_called_idempotent(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE paid (job uuid PRIMARY KEY); CREATE SCHEMA books")
        await connection.execute("CREATE TABLE books.entry (amount integer)")

    app = Holdfast("memory:")

    @app.handler("pay")
    async def pay(job: Job) -> None:
        async with connected(database.url) as connection:
            await connection.execute("INSERT INTO paid VALUES ($1) ON CONFLICT DO NOTHING", job.id)
            await connection.execute("WITH wanted AS (SELECT 5 AS amount) INSERT INTO books.entry SELECT * FROM wanted")

    async def totals() -> dict[str, object]:
        async with connected(database.url) as connection:
            return {"total": await connection.fetchval("SELECT count(*) > 0 FROM books.entry")}

    paid = Tables(database.url, "paid")
    report = await check_idempotency(app, "pay", observe=paid)
    assert (report.ok, report.problems, report.unobserved) == (False, (), ("books.entry",))
    assert str(report).splitlines()[:2] == [
        "pay may or may not be idempotent: nothing observed books.entry",
        'give observe=Tables(url, "books.entry") or a function that reads it; or ignore=["books.entry"]',
    ]
    with pytest.raises(AssertionError, match=r"nothing observed books\.entry"):
        report.raise_for_problems()
    assert (await check_idempotency(app, "pay", observe=paid, ignore=["books.entry"])).ok
    # The check trusts a function that reads the table.
    assert (await check_idempotency(app, "pay", observe=(paid, totals))).ok
    everything = await check_idempotency(app, "pay", observe=Tables(database.url, "paid", "books.entry"))
    assert (everything.unobserved, hurt(everything)) == ((), [2, None])
