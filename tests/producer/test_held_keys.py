"""Publishing with an ID from the publisher, and the errors for a key that another transaction holds."""

from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, StoreUnavailable
from holdfast.errors import KeyLocked
from holdfast.store.contract import JobFilter
from tests.databases import impatient
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import KINDS, READ_COMMITTED, settled, verbs
from tests.producer.orm_kinds import ONE_OF_EACH_LIBRARY

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def subscribe(shop: Shop) -> None:
    async with Holdfast(shop.url) as app:
        await app.subscriptions.save("receipt", "invoice.*")


def event_ids(shop: Shop) -> list[UUID]:
    return [UUID(row["id"]) for row in shop.rows("SELECT headers->'holdfast.event'->>'id' AS id FROM holdfast.job")]


@pytest.mark.parametrize("kind", ONE_OF_EACH_LIBRARY)
async def test_an_event_has_the_id_from_its_publisher(shop: Shop, kind: str) -> None:
    await subscribe(shop)
    id = uuid4()
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        published = await settled(verbs(shop.app, link.connection).publish("invoice.paid", conn=link.connection, id=id))
    assert published.event_id == id
    assert event_ids(shop) == [id]


@pytest.mark.parametrize("where", ["memory", "postgres"])
async def test_an_event_published_through_the_app_has_the_id_from_its_publisher(shop: Shop, where: str) -> None:
    id = uuid4()
    async with Holdfast("memory:" if where == "memory" else shop.url) as app:
        await app.subscriptions.save("receipt", "invoice.*")
        assert (await app.publish("invoice.paid", id=id)).event_id == id
        (job,) = await app.jobs.list(JobFilter(), 10)
    assert job.correlation_id == str(id)


async def test_in_the_callers_transaction_a_held_key_is_an_error_of_the_library(shop: Shop) -> None:
    app = shop.app
    with psycopg.connect(shop.url) as holder, psycopg.connect(shop.url) as waiting:
        app.sync.enqueue("ship", conn=holder, key="order-1")
        waiting.execute("SET lock_timeout = '50ms'")
        waiting.commit()
        for refused in (
            lambda: app.sync.enqueue("ship", conn=waiting, key="order-1"),
            lambda: app.sync.enqueue_many([app.job("ship", key="order-1")], conn=waiting),
        ):
            with pytest.raises(psycopg.errors.LockNotAvailable) as error:
                refused()
            assert error.value.sqlstate == "55P03"
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                waiting.execute("SELECT 1")
            waiting.rollback()
        holder.rollback()
        assert app.sync.enqueue("ship", conn=waiting, key="order-1").is_new


async def test_on_the_stores_connection_the_error_names_the_held_key(shop: Shop) -> None:
    await subscribe(shop)
    with psycopg.connect(shop.url) as holder:
        shop.app.sync.publish("invoice.paid", conn=holder, key="invoice-17")
        async with Holdfast(impatient(shop.url, 50)) as app:
            with pytest.raises(KeyLocked, match=r"^another transaction holds the key 'invoice-17' and has not ended"):
                await app.publish("invoice.paid", key="invoice-17")


async def test_without_a_key_the_error_mentions_none(shop: Shop) -> None:
    await subscribe(shop)
    with psycopg.connect(shop.url) as holder:
        holder.execute("LOCK TABLE holdfast.ready")
        async with Holdfast(impatient(shop.url, 50)) as app:
            for refused in (app.publish("invoice.paid"), app.enqueue("ship")):
                with pytest.raises(StoreUnavailable, match=r"^a row or table is locked by another transaction"):
                    await refused
