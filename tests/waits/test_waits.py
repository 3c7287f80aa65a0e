"""What a wait returns, on every store: the final job, or the job as it is at the timeout."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, InvalidInput, Job, JobState, Permanent, RunningJob, StoreUnavailable, UnknownJob
from holdfast.store.contract import Canceling, Finish, Retrying
from tests.store_contract.steps import BROKEN, ENDINGS, FINAL_ENDINGS, job, wants
from tests.waits.steps import ended
from tests.worker.harness import until, working


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


async def test_a_timeout_of_zero_looks_once(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    assert (await app.wait(new.id, "0s")).state is JobState.READY
    await app.cancel([new.id])
    assert (await app.wait(new.id, "0s")).state is JobState.CANCELED


async def test_an_unknown_job_is_not_waited_for(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    unknown = uuid4()
    for timeout in ("0s", "1h"):
        with pytest.raises(UnknownJob, match=f"^no job has the id {unknown}; it is not committed yet, or was removed$"):
            await app.wait(unknown, timeout)
    with pytest.raises(UnknownJob, match=str(unknown)):
        await app.wait_many([new.id, unknown], "1h")


async def test_wait_many_returns_when_the_last_job_is_final_in_the_order_asked(app: Holdfast) -> None:
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


async def test_several_waits_can_share_a_job_and_canceling_one_does_not_disturb_the_others(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    leaving, staying, short = (asyncio.create_task(app.wait(new.id, timeout)) for timeout in ("2h", "1h", "50ms"))
    assert (await short).state is JobState.READY
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await app.cancel([new.id])
    assert (await ended(staying)).state is JobState.CANCELED


async def test_the_job_carries_its_result_and_last_error(app: Holdfast) -> None:
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
    assert (good.state, good.result, good.last_error) == (JobState.SUCCEEDED, {"printed": 3}, None)
    assert bad.last_error is not None
    assert (bad.state, bad.result) == (JobState.FAILED, None)
    assert (bad.last_error.code, bad.last_error.summary) == ("EMPTY", "Permanent: nothing to print")
    assert long.last_error is not None
    assert (long.state, long.attempt, long.result, long.last_error.code) == (JobState.FAILED, 1, None, "INVALID_RESULT")
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
        ("25h", "timeout: longer than 1d; call wait again after that time"),
    ],
)
async def test_an_invalid_timeout_is_refused(app: Holdfast, timeout: str, line: str) -> None:
    with pytest.raises(InvalidInput, match=line):
        await app.wait(uuid4(), timeout)


async def test_an_id_can_be_text_in_every_method(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    text = str(new.id)
    assert (await app.wait(text, "0s")).id == new.id
    assert list(await app.wait_many([text, new.id], "0s")) == [new.id]
    assert (await app.jobs.get(text)) == (await app.jobs.get(new.id))
    assert await app.cancel([text]) == [Canceling.CANCELED]
    assert await app.retry([text]) == [Retrying.READY]


async def test_text_that_is_not_a_uuid_is_refused(app: Holdfast) -> None:
    line = r"^job id: 'seven' is not a UUID; pass the id that enqueue returned$"
    for wrong in (app.wait("seven"), app.jobs.get("seven"), app.cancel(["seven"]), app.retry(["seven"])):
        with pytest.raises(InvalidInput, match=line):
            await wrong


async def test_one_id_in_place_of_a_list_is_refused_with_a_hint(app: Holdfast) -> None:
    id = uuid4()
    wrong: list[Any] = [id, str(id), None]
    for each in wrong:
        for call in (app.cancel, app.retry, app.wait_many):
            with pytest.raises(InvalidInput, match=r"^ids: give a list, even for one job: \[id\]$"):
                await call(each)


async def test_closing_the_app_ends_its_waits(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])
    waiting = asyncio.create_task(app.wait(new.id, "1h"))
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StoreUnavailable, match="the app was closed during the wait"):
        await waiting
    with pytest.raises(InvalidInput, match="the app is not open"):
        await app.wait(new.id)


async def test_waits_work_again_after_the_app_is_reopened(app: Holdfast) -> None:
    for _ in range(2):
        await app.enqueue_many([new := job()])
        waiting = asyncio.create_task(app.wait(new.id, "1h"))
        await asyncio.sleep(0)
        await app.cancel([new.id])
        assert (await ended(waiting)).state is JobState.CANCELED
        await app.close()
        await app.open()


async def test_a_wait_on_another_event_loop_is_refused(app: Holdfast) -> None:
    await app.enqueue_many([new := job()])

    def elsewhere() -> Job:
        return asyncio.run(app.wait(new.id, "0s"))

    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"^the app is not open on this event loop"):
            await asyncio.to_thread(elsewhere)
        # In the second round the app has already waited once.
        assert (await app.wait(new.id, "0s")).state is JobState.READY


async def test_any_iterable_of_ids_can_be_waited_for(app: Holdfast) -> None:
    jobs = [job(), job()]
    await app.enqueue_many(jobs)
    found = await ended(app.wait_many((each.id for each in jobs), "0s"))
    assert list(found) == [each.id for each in jobs]
    assert list(await ended(app.wait_many({jobs[0].id: 1}, "0s"))) == [jobs[0].id]
    assert await app.wait_many(iter(()), "1h") == {}


async def test_anything_but_a_list_of_ids_is_refused(app: Holdfast) -> None:
    for wrong in (None, 7, uuid4(), str(uuid4()), b"id"):
        with pytest.raises(InvalidInput, match=r"^(ids|job id): "):
            await ended(app.wait_many(wrong, "1h"))  # type: ignore[arg-type]


async def test_the_log_does_not_name_the_job_whose_handler_was_the_first_to_wait(
    app: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.handler("parent", attempts=1)
    async def parent(job: RunningJob[object]) -> None:
        await app.wait(job.id, "20s")

    async def broken(self: object, ids: object) -> list[UUID]:
        raise LookupError("a bug")

    waiters = type(app.opened.waiters)
    for name in ("not_live", "read"):
        monkeypatch.setattr(waiters, name, broken)
    async with working(app):
        await app.enqueue("parent")
        await until(lambda: "waits failed" in caplog.messages, "the bug is logged")
    (record,) = [record for record in caplog.records if record.getMessage() == "waits failed"]
    assert "job_id" not in vars(record)
