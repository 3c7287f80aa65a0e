"""Waiting for a job by its key, on every store, even if the job does not exist yet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import Holdfast, InvalidInput, Job, JobState, Kind, UnknownJob
from holdfast.domain.job import IfExists
from holdfast.domain.keys import KeyName
from holdfast.store.contract import Finish
from holdfast.store.postgres.waiters import PostgresWaiters
from holdfast.waits.board import Board
from holdfast.waits.watch import Pacing, Waiter
from tests.databases import Database, Servers, no_task_left
from tests.store_contract.steps import ENDINGS, job, wants
from tests.waits.steps import all_of, waiting_in
from tests.worker.harness import PATIENCE, until


@pytest.fixture(params=["memory", "embedded-18"])
async def app(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Holdfast]:
    if request.param == "memory":
        async with no_task_left(), Holdfast("memory:") as app:
            yield app
        return
    with servers.get(request.param).emptied_database() as database:
        async with no_task_left(), Holdfast(database.url) as app:
            yield app


async def finish_all(app: Holdfast) -> list[UUID]:
    leased = await app.opened.store.claim(wants())
    await app.opened.store.finish([Finish(each.lease, ENDINGS["succeed"]) for each in leased])
    return [each.id for each in leased]


async def soon(waiting: "asyncio.Task[Job]") -> Job:
    async with asyncio.timeout(PATIENCE):
        return await waiting


def waiting(app: Holdfast, key: str = "report", *, tenant: str = "") -> "asyncio.Task[Job]":
    return asyncio.create_task(app.wait_for("work", key, "1h", tenant=tenant))


async def test_a_job_that_has_ended_is_returned_at_once(app: Holdfast) -> None:
    await app.enqueue_many([new := job(key="report", tenant="acme")])
    await finish_all(app)
    assert await soon(waiting(app, tenant="acme")) == await app.jobs.get(new.id)


async def test_a_kind_object_works_as_well_as_its_name(app: Holdfast) -> None:
    work = Kind("work")
    new = await app.enqueue(work, key="report")
    assert await app.jobs.find(work, "report") == await app.jobs.get(new.id)
    assert (await app.wait_for(work, "report", "0s")).id == new.id


async def test_a_job_enqueued_during_the_wait_is_waited_for(app: Holdfast) -> None:
    found = waiting(app)
    await asyncio.sleep(0.05)
    await app.enqueue_many([job(key="other"), job(key="report", tenant="acme"), new := job(key="report")])
    await finish_all(app)
    assert ((await soon(found)).id, (await found).state) == (new.id, JobState.SUCCEEDED)


async def test_at_the_timeout_the_job_is_returned_as_it_is(app: Holdfast) -> None:
    await app.enqueue_many([new := job(key="report")])
    for timeout in ("0s", "30ms"):
        found = await app.wait_for("work", "report", timeout)
        assert (found.id, found.state) == (new.id, JobState.READY)


async def test_at_the_timeout_a_key_without_a_job_raises_unknown_job(app: Holdfast) -> None:
    for timeout in ("0s", "30ms"):
        with pytest.raises(UnknownJob, match=r"^no job has the key 'report' of kind 'work'$"):
            await app.wait_for("work", "report", timeout)
    with pytest.raises(UnknownJob, match=r"^no job has the key 'report' of kind 'work' and tenant 'acme'$"):
        await app.wait_for("work", "report", "0s", tenant="acme")


async def test_a_wait_stays_with_the_first_job_it_finds_even_if_the_key_gets_a_new_one(app: Holdfast) -> None:
    await app.enqueue_many([first := job(key="report")])
    (leased,) = await app.opened.store.claim(wants())
    found = waiting(app)
    await asyncio.sleep(0.1)
    (second,) = await app.enqueue_many([job(key="report", if_exists=IfExists.REPLACE)])
    assert second.is_new
    await app.opened.store.finish([Finish(leased.lease, ENDINGS["succeed"])])
    assert (await soon(found)).id == first.id


async def test_an_invalid_key_or_timeout_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match=r"^key: is empty"):
        await app.wait_for("work", "")
    with pytest.raises(InvalidInput, match=r"^timeout: longer than"):
        await app.wait_for("work", "report", "2d")


async def test_a_canceled_wait_leaves_nothing_behind(app: Holdfast) -> None:
    found = waiting(app)
    await asyncio.sleep(0.01)
    found.cancel()
    await asyncio.wait([found])
    assert app._waits_of_store()._board.is_empty


async def test_hundreds_of_waits_for_keys_share_one_statement(
    emptied: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    find = PostgresWaiters.find

    async def count(self: PostgresWaiters, keys: Collection[KeyName]) -> Mapping[KeyName, UUID]:
        asked[len(keys)] += 1
        return await find(self, keys)

    monkeypatch.setattr(PostgresWaiters, "find", count)
    names = [KeyName("", "work", f"key-{number}") for number in range(300)]
    async with waiting_in(emptied.url, Pacing(soon=(), poll=0.05, sweep=0.01)) as scene:
        tasks = [asyncio.create_task(scene.waits.wait_for(name, timedelta(minutes=10))) for name in names]

        async def have_asked() -> bool:
            return asked[len(names)] >= 3

        await until(have_asked, "all keys were looked for three times")
        assert asked.total() <= asked[len(names)] + 1
        await scene.opened.store.enqueue([job(key=name.key) for name in names])
        await scene.finish(await scene.opened.store.claim(wants(limit=len(names))))
        assert [found.key for found in await all_of(tasks)] == [name.key for name in names]


def test_a_wait_ignores_the_answer_to_a_search_that_began_before_it() -> None:
    """The caller may have enqueued a new job in between."""
    loop = asyncio.new_event_loop()
    board, key = Board(Pacing()), KeyName("", "work", "report")
    early, late = (Waiter(set(), 10.0, loop.create_future(), key) for _ in range(2))
    board.add(early)
    assert board.to_seek(0.0) == {key}
    board.sent()
    board.add(late)
    old, new = UUID(int=1), UUID(int=2)
    board.sought([key], {key: old})
    assert (early.left, late.left) == ({old}, set())
    assert board.to_seek(0.0) == {key}
    board.sent()
    board.sought([key], {key: new})
    assert (early.left, late.left) == ({old}, {new})
    loop.close()
