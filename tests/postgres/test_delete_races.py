"""Deleting jobs while others change them: each job stays complete or disappears completely."""

import asyncio
from random import Random
from uuid import uuid4

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import IfExists, NewJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Deleting, Finish
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresStore
from tests.databases import Database, OneConnectionStore, connected, impatient, opened_store
from tests.postgres.past import is_sound
from tests.store_contract.steps import BROKEN, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

ENDS = (Transition(Move.SUCCEED), Transition(Move.FAIL, error=BROKEN), Transition(Move.EXHAUST, error=BROKEN))


def keyed(key: str) -> NewJob:
    return job(key=key, if_exists=IfExists.KEEP_LIVE)


async def end_all(store: PostgresStore, random: Random) -> None:
    leased = await store.claim(wants(holder=uuid4()))
    await store.finish([Finish(each.lease, random.choice(ENDS)) for each in leased])


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_delete_does_not_wait_for_a_key_that_is_being_taken_over(database: Database, ending: str) -> None:
    async with opened_store(impatient(database.url, 200)) as store, connected(database.url) as producer:
        (first,) = await store.enqueue([keyed("report")])
        await end_all(store, Random(1))
        transaction = producer.transaction()
        await transaction.start()
        (second,) = await OneConnectionStore(producer).enqueue([keyed("report")])
        assert second.is_new
        assert await store.delete([first.id]) == [Deleting.LOCKED]
        await (transaction.commit() if ending == "commit" else transaction.rollback())
        assert await store.delete([first.id]) == [Deleting.DELETED]
        found = await PostgresReader(store).find("work", "report")
        assert (found and found.id) == (second.id if ending == "commit" else None)
        await is_sound(producer)


async def test_concurrent_deletes_retries_cancels_and_enqueues_leave_every_job_complete(database: Database) -> None:
    random, keys = Random(3), [f"key-{number}" for number in range(12)]
    deleted = 0
    async with opened_store(database.url, pool_size=8) as store, connected(database.url) as connection:
        ids = [each.id for each in await store.enqueue([keyed(key) for key in keys])]

        async def produce() -> None:
            chosen = random.sample(keys, 3)
            answers: list[Enqueued] = await store.enqueue([keyed(key) for key in chosen])
            ids.extend(each.id for each in answers if each.is_new)

        async def delete() -> None:
            nonlocal deleted
            deleted += (await store.delete(random.sample(ids, 5))).count(Deleting.DELETED)

        async def interfere() -> None:
            await (store.retry if random.random() < 0.5 else store.cancel)(random.sample(ids, 3))

        for _ in range(60):
            steps = (produce(), end_all(store, random), delete(), delete(), interfere(), end_all(store, random))
            await asyncio.gather(*steps)
        assert deleted > 20
        await is_sound(connection)
        there = {row["id"] for row in await store.fetch("list", None, None, None, None, 10_000)}
        rows = await connection.fetch("SELECT job_id FROM holdfast.key")
        assert {row["job_id"] for row in rows} <= there
        for table in ("attempt_error", "progress"):
            orphans = await connection.fetch(f"SELECT job_id FROM holdfast.{table}")
            assert {row["job_id"] for row in orphans} <= there
        assert {row["id"] for row in await connection.fetch("SELECT id FROM holdfast.job")} <= there
