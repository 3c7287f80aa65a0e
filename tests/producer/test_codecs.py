"""An application changes how its connections convert types; enqueueing and publishing still work.

The session may also be in another time zone.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import psycopg2
import psycopg2.extensions
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.types.string import StrDumper

from holdfast import Enqueued, Holdfast
from holdfast.store.contract import ClaimRequest, KindClaim
from tests.databases import connected, opened_store
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import KINDS, READ_COMMITTED, settled, verbs

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

FAR = datetime(2150, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DELAY = timedelta(days=36_000, hours=23, minutes=59, seconds=59, microseconds=1)


def refuse(value: object) -> Any:  # noqa: ANN401
    raise TypeError(f"{type(value).__name__} is not what this application uses")


class RefusingDumper(Dumper):
    def dump(self, obj: Any) -> Any:  # noqa: ANN401
        return refuse(obj)


class BytesLoader(Loader):
    def load(self, data: Any) -> bytes:  # noqa: ANN401
        return UUID(bytes(data).decode()).bytes


@asynccontextmanager
async def asyncpg_with_codecs(url: str) -> AsyncIterator[object]:
    """Some codecs can read what they wrote, and some need the values of another library."""
    async with connected(url) as connection:
        await connection.set_type_codec(
            "uuid", encoder=lambda id: id.bytes, decoder=lambda read: read, schema="pg_catalog", format="binary"
        )
        for name in ("interval", "timestamptz", "json", "jsonb"):
            await connection.set_type_codec(name, encoder=refuse, decoder=refuse, schema="pg_catalog")
        yield connection


@asynccontextmanager
async def psycopg_with_adapters(url: str) -> AsyncIterator[object]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.adapters.register_loader("uuid", BytesLoader)
        connection.adapters.register_dumper(str, StrDumper)
        for known in (UUID, timedelta, datetime):
            connection.adapters.register_dumper(known, RefusingDumper)
        yield connection


@asynccontextmanager
async def psycopg_without_an_encoding(url: str) -> AsyncIterator[object]:
    """Reads text as bytes."""
    with psycopg.connect(url, autocommit=True, client_encoding="SQL_ASCII") as connection:
        yield connection


@asynccontextmanager
async def psycopg2_with_a_type(url: str) -> AsyncIterator[object]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    as_bytes = psycopg2.extensions.new_type((2950,), "BYTES", lambda read, _: UUID(str(read)).bytes)
    psycopg2.extensions.register_type(as_bytes, connection)
    try:
        yield connection
    finally:
        connection.close()


Opening = Callable[[str], AbstractAsyncContextManager[object]]
every_connection = pytest.mark.parametrize(
    "opened", [asyncpg_with_codecs, psycopg_with_adapters, psycopg_without_an_encoding, psycopg2_with_a_type]
)


@every_connection
async def test_jobs_are_enqueued_with_any_type_conversion(shop: Shop, opened: Opening) -> None:
    app = shop.app
    plain = [app.job("ship", delay=DELAY), app.job("ship", run_at=FAR), app.job("ship")]
    keyed = [app.job("ship", key="a", delay=DELAY), app.job("ship", key="b", run_at=FAR, window="90s")]
    single = [app.job("ship", key="c", delay=DELAY, window="90s"), app.job("ship", run_at=FAR)]
    async with opened(shop.url) as connection:
        for many in (plain, keyed):
            answers = await settled(verbs(app, connection).enqueue_many(many, conn=connection))
            assert answers == [Enqueued(job.id, is_new=True) for job in many]
        assert await settled(verbs(app, connection).enqueue_many([app.job("ship", key="a")], conn=connection)) == [
            Enqueued(keyed[0].id, is_new=False)
        ]
        for job in single:
            assert await settled(verbs(app, connection).enqueue(job, conn=connection)) == Enqueued(job.id, is_new=True)
    for job in (*plain, *keyed, *single):
        (row,) = shop.rows(
            "SELECT run_at, created_at FROM holdfast.job JOIN holdfast.ready USING (id) WHERE id = %s", job.id
        )
        assert row["run_at"] == (job.run_at or row["created_at"] + (job.delay or timedelta(0)))
    windows = shop.rows(
        "SELECT until - created_at AS length FROM holdfast.key JOIN holdfast.job ON id = job_id ORDER BY key.key"
    )
    assert [row["length"] for row in windows] == [None, timedelta(seconds=90), timedelta(seconds=90)]


@every_connection
async def test_events_are_published_with_any_type_conversion(shop: Shop, opened: Opening) -> None:
    async with Holdfast(shop.url) as app:
        await app.subscriptions.save("receipt", "invoice.*")
    async with opened(shop.url) as connection:
        published = await settled(
            verbs(shop.app, connection).publish("invoice.paid", {"number": 17}, conn=connection, headers={"a": 1})
        )
    (made,) = published.jobs
    assert made.subscription == "receipt"
    (row,) = shop.rows("SELECT id, payload, correlation_id FROM holdfast.job")
    assert row == {"id": made.id, "payload": {"number": 17}, "correlation_id": str(published.event_id)}


@every_connection
async def test_a_job_is_finished_with_any_type_conversion(shop: Shop, opened: Opening) -> None:
    async with opened_store(shop.url, pool_size=1) as store:
        await store.enqueue([shop.app.job("ship")])
        kinds = {"ship": KindClaim(timedelta(minutes=1), 1)}
        (leased,) = await store.claim(ClaimRequest(uuid4(), 1, ("default",), kinds))
        statement = store.finish_in.statement(leased.lease, shop.app.job("ship", {"pages": 3}).payload)
    async with opened(shop.url) as connection:
        await settled(statement.execute_on(connection))
    assert shop.rows("SELECT id, result FROM holdfast.finished") == [{"id": leased.id, "result": {"pages": 3}}]


@pytest.mark.parametrize("kind", ["asyncpg_connection", "psycopg2_connection"])
async def test_a_day_has_24_hours_in_any_time_zone(shop: Shop, kind: str) -> None:
    """In Berlin, this day has 23."""
    async with opened_store(shop.url, pool_size=1) as store:
        await store.fetch("clock_freeze", datetime(2030, 3, 30, 12, tzinfo=UTC))
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        await settled(link.execute("SET TIME ZONE 'Europe/Berlin'"))
        await settled(verbs(shop.app, link.connection).enqueue("ship", conn=link.connection, delay="1d"))
        await settled(
            verbs(shop.app, link.connection).enqueue_many([shop.app.job("ship", delay="1d")], conn=link.connection)
        )
    due = [row["run_at"] for row in shop.rows("SELECT run_at FROM holdfast.ready")]
    assert due == [datetime(2030, 3, 31, 12, tzinfo=UTC)] * 2
