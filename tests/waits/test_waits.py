"""What a wait returns, on every store: the job when it is final, or as it is when the time is up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from holdfast import Holdfast, InvalidInput, Job, JobState, Permanent, RunningJob, StoreUnavailable, UnknownJob
from holdfast.store.contract import Canceling, Finish, Retrying
from tests.databases import Servers, no_task_left
from tests.store_contract.steps import BROKEN, ENDINGS, FINAL_ENDINGS, job, wants
from tests.worker.harness import PATIENCE, working

Answer = TypeVar("Answer")


@pytest.fixture(params=["memory", "embedded-18"])
async def app(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Holdfast]:
    if request.param == "memory":
        async with no_task_left(), Holdfast("memory:") as app:
            yield app
        return
    with servers.get(request.param).emptied_database() as database:
        async with no_task_left(), Holdfast(database.url) as app:
            yield app


async def ended(waiting: Awaitable[Answer]) -> Answer:
    """Long before the timeouts of these waits, which would return a final job as well."""
    async with asyncio.timeout(PATIENCE):
        return await waiting


@pytest.mark.parametrize("ending", FINAL_ENDINGS)
async def test_a_final_job_is_returned_whether_it_ended_before_the_wait_or_during_it(
    app: Holdfast, ending: str
) -> None:
    await app.enqueue_many([early := job(), late := job()])
    leases = {leased.id: leased.lease for leased in await app.opened.store.claim(wants())}
    await app.opened.store.finish([Finish(leases[early.id], ENDINGS[ending])])
    assert (await ended(app.wait(early.id, "1h"))).state is ENDINGS[ending].state
    waiting = asyncio.create_task(app.wait(late.id, "1h"))
    await asyncio.sleep(0)
    await app.opened.store.finish([Finish(leases[late.id], ENDINGS[ending])])
    found = await ended(waiting)
    assert found.state is ENDINGS[ending].state
    assert found == await app.jobs.get(late.id)


async def test_at_the_timeout_the_job_is_returned_as_it_is(app: Holdfast) -> None:
    await app.enqueue_many([ready := job(kind="other"), running := job()])
    await app.opened.store.claim(wants())
    assert (await app.wait(ready.id, "10ms")).state is JobState.READY
    assert (await app.wait(running.id, timedelta(milliseconds=10))).state is JobState.RUNNING


async def test_no_time_at_all_looks_once(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    assert (await app.wait(new.id, "0s")).state is JobState.READY
    await app.cancel([new.id])
    assert (await app.wait(new.id, "0s")).state is JobState.CANCELED


async def test_a_job_that_is_not_there_is_not_waited_for(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    unknown = uuid4()
    for timeout in ("0s", "1h"):
        with pytest.raises(UnknownJob, match=f"^no job has the id {unknown}, or it was removed by retention$"):
            await app.wait(unknown, timeout)
    with pytest.raises(UnknownJob, match=str(unknown)):
        await app.wait_many([new.id, unknown], "1h")


async def test_many_are_returned_when_the_last_of_them_is_final_in_the_order_of_the_question(app: Holdfast) -> None:
    jobs = [job() for _ in range(4)]
    await app.enqueue_many(jobs)
    ids = [each.id for each in reversed(jobs)]
    waiting = asyncio.create_task(app.wait_many([*ids, ids[0]], "1h"))
    for id in ids:
        assert not waiting.done()
        await app.cancel([id])
    found = await ended(waiting)
    assert list(found) == ids
    assert {each.state for each in found.values()} == {JobState.CANCELED}
    assert await app.wait_many([]) == {}


async def test_at_the_timeout_some_of_many_may_be_final_and_some_not(app: Holdfast) -> None:
    await app.enqueue_many([one := job(), two := job()])
    await app.cancel([one.id])
    found = await app.wait_many([one.id, two.id], "50ms")
    assert {id: each.state for id, each in found.items()} == {one.id: "canceled", two.id: "ready"}


async def test_several_may_wait_for_one_job_and_one_that_goes_away_disturbs_nobody(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    leaving, staying, short = (asyncio.create_task(app.wait(new.id, timeout)) for timeout in ("2h", "1h", "50ms"))
    assert (await short).state is JobState.READY
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await app.cancel([new.id])
    assert (await ended(staying)).state is JobState.CANCELED


async def test_a_handler_s_result_and_error_come_with_the_job(app: Holdfast) -> None:
    @app.handler("work")
    async def work(job: RunningJob[dict[str, int]]) -> dict[str, int]:
        if not job.payload["pages"]:
            raise Permanent("EMPTY", "nothing to print")
        return {"printed": job.payload["pages"]}

    @app.handler("boast")
    async def boast(job: RunningJob[dict[str, int]]) -> str:
        return "x" * 100_000

    async with working(app):
        ids = [
            (await app.enqueue("work", {"pages": 3})).id,
            (await app.enqueue("work", {"pages": 0})).id,
            (await app.enqueue("boast", {})).id,
        ]
        good, bad, long = (await ended(app.wait_many(ids, "1h"))).values()
    assert (good.state, good.value, good.last_error) == (JobState.SUCCEEDED, {"printed": 3}, None)
    assert bad.last_error is not None
    assert (bad.state, bad.value) == (JobState.FAILED, None)
    assert (bad.last_error.code, bad.last_error.summary) == ("EMPTY", "Permanent: nothing to print")
    assert long.last_error is not None
    assert (long.state, long.attempt, long.value, long.last_error.code) == (JobState.FAILED, 1, None, "INVALID_RESULT")
    assert "over the limit of 65,536; store the content elsewhere" in long.last_error.message


async def test_the_last_error_is_the_newest(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    for ending in (ENDINGS["retry"], ENDINGS["cancel"]):
        await app.clock.advance(timedelta(minutes=1))
        (leased,) = await app.opened.store.claim(wants())
        await app.opened.store.finish([Finish(leased.lease, ending)])
    found = await app.wait(new.id)
    assert [error["code"] for error in map(dict, found.as_dict()["errors"])] == [BROKEN.code, "CANCELED"]  # type: ignore[call-overload]
    assert found.last_error == ENDINGS["cancel"].error


@pytest.mark.parametrize(
    ("timeout", "line"),
    [
        ("-1s", "timeout: '-1s' is negative"),
        ("5", "timeout: '5' is not a duration"),
        (5, "timeout: 5 is not a duration"),
        ("25h", "timeout: longer than 1d; wait again when that is over"),
    ],
)
async def test_a_timeout_that_makes_no_sense_is_refused(app: Holdfast, timeout: str, line: str) -> None:
    with pytest.raises(InvalidInput, match=line):
        await app.wait(uuid4(), timeout)


async def test_an_id_may_be_text_wherever_a_job_is_named(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    text = str(new.id)
    assert (await app.wait(text, "0s")).id == new.id
    assert list(await app.wait_many([text, new.id], "0s")) == [new.id]
    assert (await app.jobs.get(text)) == (await app.jobs.get(new.id))
    assert await app.cancel([text]) == [Canceling.CANCELED]
    assert await app.retry([text]) == [Retrying.READY]


async def test_an_id_that_is_only_text_is_refused(app: Holdfast) -> None:
    line = r"^job id: 'seven' is not a UUID; pass the id that enqueue returned$"
    for wrong in (app.wait("seven"), app.jobs.get("seven"), app.cancel(["seven"]), app.retry(["seven"])):
        with pytest.raises(InvalidInput, match=line):
            await wrong


async def test_one_id_where_a_list_belongs_is_refused_in_a_line_that_says_so(app: Holdfast) -> None:
    id = uuid4()
    wrong: list[Any] = [id, str(id), None]
    for each in wrong:
        for call in (app.cancel, app.retry, app.wait_many):
            with pytest.raises(InvalidInput, match=r"^ids: give a list, also for one job: \[id\]$"):
                await call(each)


async def test_an_app_that_is_closed_ends_its_waits(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    waiting = asyncio.create_task(app.wait(new.id, "1h"))
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StoreUnavailable, match="the app was closed during the wait"):
        await waiting
    with pytest.raises(InvalidInput, match="the app is not open"):
        await app.wait(new.id)


async def test_an_app_that_is_opened_again_can_be_waited_on_again(app: Holdfast) -> None:
    for _ in range(2):
        await app.enqueue_many([new := job()])
        waiting = asyncio.create_task(app.wait(new.id, "1h"))
        await asyncio.sleep(0)
        await app.cancel([new.id])
        assert (await ended(waiting)).state is JobState.CANCELED
        await app.close()
        await app.open()


async def test_a_wait_on_another_event_loop_than_the_app_s_is_refused(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])

    def elsewhere() -> Job:
        return asyncio.run(app.wait(new.id, "0s"))

    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"^wait on the event loop that opened the app"):
            await asyncio.to_thread(elsewhere)
        # Whether or not somebody waits already.
        assert (await app.wait(new.id, "0s")).state is JobState.READY


async def test_any_iterable_of_ids_can_be_waited_for(app: Holdfast) -> None:
    jobs = [job(), job()]
    await app.enqueue_many(jobs)
    found = await ended(app.wait_many((each.id for each in jobs), "0s"))
    assert list(found) == [each.id for each in jobs]
    assert list(await ended(app.wait_many({jobs[0].id: 1}, "0s"))) == [jobs[0].id]
    assert await app.wait_many(iter(()), "1h") == {}


async def test_what_is_no_list_of_ids_is_refused(app: Holdfast) -> None:
    for wrong in (None, 7, uuid4(), str(uuid4()), b"id"):
        with pytest.raises(InvalidInput, match=r"^(ids|job id): "):
            await ended(app.wait_many(wrong, "1h"))  # type: ignore[arg-type]
