"""How a handler's exception or return value decides the fate of its job, in a real worker on the memory store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest

from holdfast import Cancel, Holdfast, Job, JobState, NewJob, Permanent, Retryable, RunningJob, Snooze
from holdfast.domain.json_text import Json
from tests.worker.harness import codes, errors, fast, final_job, job_in_state, until, working

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
Handle = Callable[[RunningJob[Any]], Any]


def raising(thing: BaseException) -> Handle:
    async def handle(job: RunningJob[Any]) -> None:
        raise thing

    return handle


def raising_in_thread(thing: BaseException) -> Handle:
    def handle(job: RunningJob[Any]) -> None:
        raise thing

    return handle


def returning(thing: object) -> Handle:
    async def handle(job: RunningJob[Any]) -> object:
        return thing

    return handle


@asynccontextmanager
async def attempted(handle: Handle, app: Holdfast | None = None, **options: Any) -> AsyncIterator[Job]:  # noqa: ANN401
    """The job after one attempt, on a store with a frozen clock."""
    app = app or Holdfast("memory:")
    app.handler("do", **options)(handle)
    async with app, working(app) as worker:
        await app.clock.freeze(NOW)
        id = (await app.enqueue("do")).id
        await until(lambda: sum(worker.tally.values()) == 1, "the outcome is written")
        job = await app.jobs.get(id)
        assert job is not None
        yield job


@pytest.mark.parametrize("handler", [raising, raising_in_thread, returning])
@pytest.mark.parametrize(
    ("signal", "state", "run_at", "code"),
    [
        (Permanent("BAD_ADDRESS", "no such street"), JobState.FAILED, None, "BAD_ADDRESS"),
        (Cancel("not wanted"), JobState.CANCELED, None, "CANCELED"),
        (Retryable("busy", code="BUSY", after="1h"), JobState.READY, NOW + timedelta(hours=1), "BUSY"),
        (Retryable("busy", at=NOW + timedelta(days=2)), JobState.READY, NOW + timedelta(days=2), "ERROR"),
        (Retryable("busy", at=NOW - timedelta(days=2)), JobState.READY, NOW, "ERROR"),
    ],
    ids=["Permanent", "Cancel", "Retryable after", "Retryable at", "Retryable in the past"],
)
async def test_a_signal_decides_the_state_of_the_job(
    handler: Callable[[object], Handle], signal: Exception, state: JobState, run_at: datetime | None, code: str
) -> None:
    async with attempted(handler(signal)) as job:
        pass
    assert (job.state, job.run_at) == (state, run_at)
    (error,) = errors(job)
    assert error["code"] == code
    assert error["message"] == str(signal)


@pytest.mark.parametrize("handler", [raising, raising_in_thread, returning])
@pytest.mark.parametrize(
    ("signal", "run_at"),
    [(Snooze("1h"), NOW + timedelta(hours=1)), (Snooze(until=NOW + timedelta(days=2)), NOW + timedelta(days=2))],
    ids=["for", "until"],
)
async def test_a_snoozed_job_runs_later_and_the_attempt_does_not_count(
    handler: Callable[[object], Handle], signal: Snooze, run_at: datetime
) -> None:
    async with attempted(handler(signal), attempts=1) as job:
        pass
    assert (job.state, job.run_at, job.attempt, job.errors) == (JobState.READY, run_at, 0, ())


@pytest.mark.parametrize("handler", [raising, raising_in_thread, returning])
@pytest.mark.parametrize("name", ["after", "until"])
async def test_a_corrupted_snooze_is_a_failed_attempt(handler: Callable[[object], Handle], name: str) -> None:
    """No store could record it."""
    signal = Snooze("1h")
    vars(signal)[name] = -5
    async with attempted(handler(signal), attempts=1) as job:
        pass
    assert (job.state, [error["code"] for error in errors(job)]) == (JobState.DEAD, ["ERROR"])


@pytest.mark.parametrize("handler", [raising, raising_in_thread])
async def test_an_unknown_exception_is_retried_and_stored_with_all_details(
    handler: Callable[[object], Handle],
) -> None:
    async with attempted(handler(LookupError("no such thing"))) as job:
        pass
    assert job.state is JobState.READY
    assert job.run_at is not None
    assert NOW <= job.run_at <= NOW + timedelta(seconds=1)
    (error,) = errors(job)
    assert (error["code"], error["type"], error["message"]) == ("ERROR", "LookupError", "no such thing")
    assert (error["attempt"], error["at"]) == (1, "2031-05-01T12:00:00.000000Z")
    assert "in handle" in str(error["traceback"])


@pytest.mark.parametrize("handler", [raising, raising_in_thread])
async def test_a_stop_iteration_is_an_error_like_any_other(handler: Callable[[object], Handle]) -> None:
    """A future cannot hold a StopIteration, so the worker would wait forever."""
    async with attempted(handler(StopIteration("nothing there"))) as job:
        pass
    assert job.state is JobState.READY
    (error,) = errors(job)
    assert (error["code"], error["type"]) == ("ERROR", "RuntimeError")
    assert "StopIteration: nothing there" in str(error["traceback"])
    assert "in handle" in str(error["traceback"])


async def test_a_job_without_attempts_left_is_dead_and_keeps_every_error() -> None:
    app = Holdfast("memory:")

    @app.handler("do", attempts=3, backoff="steps 0s")
    async def do(job: RunningJob[Any]) -> None:
        raise ValueError(f"attempt {job.attempt}")

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("do")).id)
    assert (job.state, job.attempt) == (JobState.DEAD, 3)
    assert [error["message"] for error in errors(job)] == ["attempt 1", "attempt 2", "attempt 3"]


class Root(Exception):
    pass


class Middle(Root):
    pass


class Leaf(Middle):
    pass


class Other(Root):
    pass


@pytest.mark.parametrize(
    ("raised", "state", "code", "delay"),
    [
        (Leaf, JobState.FAILED, "MIDDLE", None),
        (Middle, JobState.FAILED, "MIDDLE", None),
        (Other, JobState.READY, "ROOT", timedelta(minutes=5)),
        (ConnectionResetError, JobState.READY, "NETWORK", None),
    ],
)
async def test_the_nearest_registered_base_class_decides(
    raised: type[Exception], state: JobState, code: str, delay: timedelta | None
) -> None:
    app = Holdfast("memory:")
    app.error(Root, code="ROOT", after="5m")
    app.error(Middle, code="MIDDLE", retryable=False)
    app.error(OSError, code="NETWORK")
    async with attempted(raising(raised("x")), app) as job:
        pass
    assert job.state is state
    assert codes(job) == [code]
    if delay is not None:
        assert job.run_at == NOW + delay


@pytest.mark.parametrize(
    "result",
    ["x" * 70_000, object(), float("nan"), {"a": "\x00"}, "\ud800", {(1, 2): 3}],
    ids=lambda value: repr(value)[:12],
)
async def test_a_result_that_cannot_be_stored_fails_the_job_without_a_retry(result: object) -> None:
    async with attempted(returning(result)) as job:
        pass
    assert job.state is JobState.FAILED
    assert codes(job) == ["INVALID_RESULT"]
    assert job.result is None


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class BrokenNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("not even this")


class NamedStrangely(Exception):
    pass


NamedStrangely.__qualname__ = "Named\x00\ud800" + "x" * 2_000_000


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("a\x00b"),
        ValueError("\ud800 alone"),
        ValueError("x" * 5_000_000),
        ValueError({"a": object()}),
        BrokenText(),
        BrokenNotes("with notes"),
        NamedStrangely("hello"),
        Permanent("CODE\x00" + "y" * 5_000),
        Permanent(404, "a number"),  # type: ignore[arg-type]
        ExceptionGroup("many", [ValueError(str(number)) for number in range(500)]),
    ],
    ids=["NUL", "surrogate", "giant", "object", "str", "notes", "type", "code", "number", "group"],
)
@pytest.mark.parametrize("handler", [raising, raising_in_thread])
async def test_every_raised_exception_can_be_stored(handler: Callable[[object], Handle], raised: Exception) -> None:
    async with attempted(handler(raised), attempts=1) as job:
        pass
    assert job.state in (JobState.DEAD, JobState.FAILED)
    (error,) = errors(job)
    assert len(str(job.errors[0])) < 100_000
    assert "\x00" not in str(error)


class Evil(BaseException):
    """Formatting this exception raises another one of the same type."""

    def __str__(self) -> str:
        raise Evil


class OwnText(str):
    __slots__ = ()

    def replace(self, *_: object) -> str:
        raise RuntimeError("not even this")


class OwnWords(Exception):
    def __str__(self) -> str:
        return OwnText("in my own words")


class ForgetfulSignal(Permanent):
    def __init__(self) -> None:
        Exception.__init__(self, "without calling Permanent.__init__")


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (Evil(), "(its message cannot be shown: Evil)"),
        (OwnWords(), "in my own words"),
        (Permanent(Evil(), "a code"), "(its code cannot be shown: Evil)"),  # type: ignore[arg-type]
        (ForgetfulSignal(), "has no attribute 'code'"),
    ],
    ids=["evil", "words", "code", "signal"],
)
@pytest.mark.parametrize("handler", [raising, raising_in_thread])
async def test_an_exception_that_cannot_be_formatted_ends_its_attempt(
    handler: Callable[[object], Handle], raised: BaseException, shown: str
) -> None:
    app = Holdfast("memory:")
    app.handler("do", attempts=1)(handler(raised))
    app.handler("next")(returning("still here"))
    async with app, working(app, fast(concurrency=1)) as worker:
        job = await final_job(app, (await app.enqueue("do")).id)
        next_job = await final_job(app, (await app.enqueue("next")).id)
        await until(lambda: worker.worker.is_empty, "the slot is free")
    assert shown in str(errors(job))
    assert next_job.result == "still here"


class BrokenResult(dict[str, int]):
    def items(self) -> NoReturn:
        raise RuntimeError("not even this")


async def test_a_result_that_raises_while_encoded_fails_the_job_without_a_retry() -> None:
    async with attempted(returning(BrokenResult(a=1))) as job:
        pass
    assert job.state is JobState.FAILED
    assert codes(job) == ["INVALID_RESULT"]


@pytest.mark.parametrize("headers", ["[1]", "5", '"text"', '{"a": "\\ud800"}'])
async def test_invalid_headers_fail_the_job_before_its_handler_runs(headers: str) -> None:
    app = Holdfast("memory:")
    app.handler("do")(returning("ran"))
    async with app, working(app):
        (enqueued,) = await app.enqueue_many([NewJob(kind="do", payload=Json("{}"), headers=Json(headers))])
        job = await final_job(app, enqueued.id)
    assert (job.state, codes(job)) == (JobState.FAILED, ["VALIDATION_ERROR"])


async def test_null_headers_count_as_no_headers() -> None:
    app = Holdfast("memory:")
    app.handler("do")(lambda job: [job.headers, job.event])
    async with app, working(app):
        (enqueued,) = await app.enqueue_many([NewJob(kind="do", payload=Json("{}"), headers=Json("null"))])
        job = await final_job(app, enqueued.id)
    assert job.result == [{}, None]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("handler", [raising, raising_in_thread])
async def test_an_exception_that_would_end_a_program_ends_only_its_attempt(
    handler: Callable[[object], Handle], raised: type[BaseException]
) -> None:
    app = Holdfast("memory:")
    app.handler("do", attempts=1)(handler(raised()))
    app.handler("next")(returning("still here"))
    async with app, working(app, fast(concurrency=1)):
        job = await final_job(app, (await app.enqueue("do")).id)
        next_job = await final_job(app, (await app.enqueue("next")).id)
    assert job.state is JobState.DEAD
    assert codes(job) == ["ERROR"]
    assert raised.__name__ in str(errors(job))
    assert next_job.result == "still here"


async def test_awaiting_a_canceled_task_fails_only_the_attempt() -> None:
    app = Holdfast("memory:")

    @app.handler("do", attempts=1)
    async def do(job: RunningJob[Any]) -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    async with app, working(app, fast(concurrency=1)):
        first, second = [(await app.enqueue("do")).id for _ in range(2)]
        jobs = [await final_job(app, id) for id in (first, second)]
    assert [job.state for job in jobs] == [JobState.DEAD, JobState.DEAD]
    assert [error["type"] for job in jobs for error in errors(job)] == ["CancelledError", "CancelledError"]


async def test_an_async_handler_is_canceled_at_its_timeout() -> None:
    app = Holdfast("memory:")
    canceled = asyncio.Event()

    @app.handler("do", attempts=1, timeout="100ms")
    async def do(job: RunningJob[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            canceled.set()

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("do")).id)
    assert canceled.is_set()
    assert job.state is JobState.DEAD
    assert codes(job) == ["TIMEOUT"]


async def test_a_handler_that_fails_while_being_canceled_has_still_timed_out() -> None:
    app = Holdfast("memory:")

    @app.handler("do", attempts=1, timeout="100ms")
    async def do(job: RunningJob[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("cleaning up failed too")

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("do")).id)
    assert codes(job) == ["TIMEOUT"]


async def test_a_handler_that_swallows_its_cancellation_keeps_its_slot_and_its_job_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.worker.GRACE_SECONDS", 0.2)
    app = Holdfast("memory:")
    let_go = asyncio.Event()

    @app.handler("stubborn", attempts=1, timeout="50ms")
    async def stubborn(job: RunningJob[Any]) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    app.handler("next")(returning("still here"))
    async with app, working(app, fast(concurrency=3)) as worker:
        id = (await app.enqueue("stubborn")).id
        await until(lambda: "told to stop but is still running" in caplog.text, "it is reported")
        next_job = await final_job(app, (await app.enqueue("next")).id)
        await job_in_state(app, id, JobState.RUNNING)
        assert len(worker.worker._slots.running) == 1
        let_go.set()
        job = await final_job(app, id)
        await until(lambda: not worker.worker._slots.running, "the slot is free")
    assert (job.state, next_job.state) == (JobState.DEAD, JobState.SUCCEEDED)
    assert (codes(job), job.result) == (["TIMEOUT"], None)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_progress_is_written_while_the_handler_runs(kind: str) -> None:
    app = Holdfast("memory:")
    go_on = asyncio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        job.progress({"done": 1})
        job.progress({"done": 2})
        await go_on.wait()

    def slow_thread(job: RunningJob[Any]) -> None:
        asyncio.run_coroutine_threadsafe(slow(job), loop).result()

    loop = asyncio.get_running_loop()
    app.handler("slow")(slow if kind == "async" else slow_thread)
    async with app, working(app):
        id = (await app.enqueue("slow")).id

        async def progressed() -> bool:
            return bool((await job_in_state(app, id, JobState.RUNNING)).progress == {"done": 2})

        await until(progressed, "the newest progress is written")
        go_on.set()
        assert (await final_job(app, id)).progress == {"done": 2}


async def test_progress_that_is_not_json_is_the_handlers_mistake() -> None:
    async def handle(job: RunningJob[Any]) -> None:
        job.progress(object())

    async with attempted(handle, attempts=1) as job:
        pass
    (error,) = errors(job)
    assert error["type"] == "InvalidInput"
    assert "progress" in str(error["message"])
