"""Publishing by hand and with an id of the publisher's own, and what a key that somebody else holds is to a caller."""

from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, KeyLocked, StoreUnavailable
from holdfast.store.contract import JobFilter
from tests.databases import connected, impatient
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import KINDS, READ_COMMITTED, settled
from tests.producer.orm_kinds import ONE_OF_EACH_LIBRARY

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def subscribe(shop: Shop) -> None:
    async with Holdfast(shop.url) as app:
        await app.subscriptions.save("receipt", "invoice.*")


def event_ids(shop: Shop) -> list[UUID]:
    return [UUID(row["id"]) for row in shop.rows("SELECT headers->'holdfast.event'->>'id' AS id FROM holdfast.job")]


async def test_the_statement_of_an_event_can_be_executed_by_hand(shop: Shop) -> None:
    await subscribe(shop)
    statement = shop.app.publish_statement("invoice.paid", {"number": 17}, key="invoice-17")
    async with connected(shop.url) as connection:
        published = [
            statement.read(await connection.fetch(statement.sql, *statement.parameters)) for _ in ("first", "again")
        ]
    assert [[job.is_new for job in each.jobs] for each in published] == [[True], [False]]
    assert event_ids(shop) == [published[0].event_id]


@pytest.mark.parametrize("kind", ONE_OF_EACH_LIBRARY)
async def test_an_event_has_the_id_that_its_publisher_gave_it(shop: Shop, kind: str) -> None:
    await subscribe(shop)
    id = uuid4()
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        published = await settled(shop.app.publish_in(link.connection, "invoice.paid", id=id))
    assert published.event_id == id
    assert event_ids(shop) == [id]


@pytest.mark.parametrize("where", ["memory", "postgres"])
async def test_so_it_has_in_a_transaction_of_its_own(shop: Shop, where: str) -> None:
    id = uuid4()
    async with Holdfast("memory:" if where == "memory" else shop.url) as app:
        await app.subscriptions.save("receipt", "invoice.*")
        assert (await app.publish("invoice.paid", id=id)).event_id == id
        (job,) = await app.jobs.list(JobFilter(), 10)
    assert job.correlation_id == str(id)


async def test_a_key_that_is_held_is_the_library_s_own_error_in_a_caller_s_transaction(shop: Shop) -> None:
    app = shop.app
    with psycopg.connect(shop.url) as holder, psycopg.connect(shop.url) as waiting:
        app.enqueue_in(holder, "ship", key="order-1")
        waiting.execute("SET lock_timeout = '50ms'")
        waiting.commit()
        for refused in (
            lambda: app.enqueue_in(waiting, "ship", key="order-1"),
            lambda: app.enqueue_many_in(waiting, [app.job("ship", key="order-1")]),
        ):
            with pytest.raises(psycopg.errors.LockNotAvailable) as error:
                refused()
            assert error.value.sqlstate == "55P03"
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                waiting.execute("SELECT 1")
            waiting.rollback()
        holder.rollback()
        assert app.enqueue_in(waiting, "ship", key="order-1").is_new


async def test_a_key_that_is_held_is_named_to_who_publishes_on_the_store_s_own_connection(shop: Shop) -> None:
    await subscribe(shop)
    with psycopg.connect(shop.url) as holder:
        shop.app.publish_in(holder, "invoice.paid", key="invoice-17")
        async with Holdfast(impatient(shop.url, 50)) as app:
            with pytest.raises(KeyLocked, match=r"^another transaction holds the key 'invoice-17' and has not ended"):
                await app.publish("invoice.paid", key="invoice-17")


async def test_who_gives_no_key_is_not_told_of_one(shop: Shop) -> None:
    await subscribe(shop)
    with psycopg.connect(shop.url) as holder:
        holder.execute("LOCK TABLE holdfast.ready")
        async with Holdfast(impatient(shop.url, 50)) as app:
            for refused in (app.publish("invoice.paid"), app.enqueue("ship")):
                with pytest.raises(StoreUnavailable, match=r"^a row or table is locked by another transaction"):
                    await refused
