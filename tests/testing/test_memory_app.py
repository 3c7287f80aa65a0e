"""An app in memory: the user's app object with its handlers, but none of its settings."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import asyncpg
import pytest

from holdfast import Cancel, Holdfast, InvalidInput, JobState, Permanent, RunningJob, Snooze
from holdfast.testing import EndlessDrain, HandlerFailed, HandlerNotStarted, attempt, in_memory
from tests.testing.billing import Invoice, app, use_state


async def test_the_app_is_open_in_the_block_and_unchanged_afterwards() -> None:
    settings = app.settings
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.send", Invoice(17))
        assert [job.kind for job in await jobs.enqueued()] == ["invoice.send"]
    assert app.settings is settings
    with pytest.raises(InvalidInput, match="not open"):
        await app.enqueue("invoice.send", Invoice(17))
    async with in_memory(app) as jobs:
        await jobs.assert_nothing_enqueued()


async def test_an_app_that_is_open_already_is_refused_and_left_alone() -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.send", Invoice(17))
        with pytest.raises(InvalidInput, match="already open"):
            async with in_memory(app):
                pytest.fail("the inner block must not be entered")
        await jobs.assert_enqueued("invoice.send", count=1)


async def test_code_under_test_may_open_and_close_the_app_itself() -> None:
    async with in_memory(app) as jobs:
        async with app:
            await app.enqueue("invoice.send", Invoice(17))
        await jobs.assert_enqueued("invoice.send", count=1)


async def test_an_error_in_the_block_closes_the_app() -> None:
    with pytest.raises(ZeroDivisionError):
        async with in_memory(app):
            raise ZeroDivisionError
    assert not app.is_open


async def test_drain_runs_due_jobs_and_the_jobs_they_enqueue_with_the_apps_handlers(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.send", Invoice(17))
        await app.enqueue("invoice.remind", Invoice(3), queue="elsewhere")
        report = await jobs.drain()
        assert sent == ["invoice 17", "reminder 3"]
        assert [job.kind for job in report.succeeded] == ["invoice.send", "invoice.remind"]
        assert report.succeeded[0].result == {"sent": 1}
        assert report.endings == {"succeed": 2}
        (waits,) = await jobs.enqueued(state="ready")
        assert (waits.kind, waits.key) == ("invoice.remind", "17")


async def test_drain_moves_the_clock_only_on_request(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        start = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
        await jobs.freeze(start)
        await app.enqueue("invoice.send", Invoice(17))
        await jobs.drain(until="1d")
        assert sent == ["invoice 17"]
        assert await jobs.now() == start + timedelta(days=1)
        report = await jobs.drain(move_time=True)
        assert sent == ["invoice 17", "reminder 17"]
        assert await jobs.now() == start + timedelta(days=2)
        assert [job.kind for job in report.jobs] == ["invoice.remind"]


async def test_retries_run_at_their_times_until_they_succeed_or_the_attempts_are_used_up(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await jobs.freeze()
        start = await jobs.now()
        await app.enqueue("invoice.flaky", {"failures": 1})
        await app.enqueue("invoice.flaky", {"failures": 5})
        report = await jobs.drain(move_time=True, raise_errors=False)
        assert sent == ["after 2 attempts"]
        assert (len(report.succeeded), len(report.dead)) == (1, 1)
        assert report.endings == {"succeed": 1, "retry": 3, "exhaust": 1}
        assert [error.attempt for error in report.errors] == [1, 1, 2, 3]
        assert isinstance(report.errors[0].exception, ConnectionError)
        assert await jobs.now() == start + timedelta(minutes=11)


async def test_a_failing_handler_fails_the_test_with_its_own_exception_as_the_cause(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.send", Invoice(-1))
        await app.enqueue("invoice.send", Invoice(17))
        with pytest.raises(HandlerFailed, match=r"invoice\.send, attempt 1: LookupError: no invoice -1") as failure:
            await jobs.drain()
        assert isinstance(failure.value.__cause__, LookupError)
        assert sent == ["invoice 17"], "the other job still ran"
        assert (len(failure.value.report.succeeded), len(failure.value.report.waiting)) == (1, 1)


async def test_snoozing_and_canceling_are_not_failures() -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.signal", {"signal": "snooze"})
        await app.enqueue("invoice.signal", {"signal": "cancel"})
        report = await jobs.drain()
        assert (len(report.waiting), len(report.canceled), report.errors) == (1, 1, ())
        await app.enqueue("invoice.signal", {"signal": "fail"})
        report = await jobs.drain(raise_errors=False)
        assert [error.code for error in report.errors] == ["NO_ADDRESS"]
        assert len(report.failed) == 1


async def test_a_job_that_never_ends_is_detected(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.again")
        with pytest.raises(EndlessDrain, match=r"4 attempts .* invoice\.again \(4 times\).* until="):
            await jobs.drain(move_time=True, most=4)


async def test_a_job_without_a_handler_is_reported_and_kept(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("somebody.elses")
        report = await jobs.drain()
        assert [job.kind for job in report.unhandled] == ["somebody.elses"]
        assert report.jobs == ()
        await jobs.assert_enqueued("somebody.elses")


async def test_schedules_make_their_jobs_while_the_clock_moves(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        await jobs.freeze(datetime(2026, 3, 2, 10, 30, tzinfo=UTC))
        report = await jobs.drain(until="3h", schedules=True)
        assert sent == ["hour closed"] * 3
        assert len(report.succeeded) == 3
        with pytest.raises(InvalidInput, match="until"):
            await jobs.drain(move_time=True, schedules=True)


async def test_handlers_with_process_isolation_run_in_real_processes() -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.print", Invoice(17))
        await app.enqueue("invoice.print", Invoice(-1))
        report = await jobs.drain(raise_errors=False)
        (printed,) = report.succeeded
        assert printed.result not in (None, os.getpid())
        (error,) = report.errors
        assert (error.message, error.exception) == ("LookupError: no invoice -1", None)


@contextlib.asynccontextmanager
async def open_fakes(app: Holdfast[Any]) -> AsyncIterator[str]:
    yield "fakes"


@pytest.mark.parametrize(
    "fake", [lambda app: contextlib.nullcontext("fakes"), open_fakes], ids=["lambda", "importable"]
)
async def test_handlers_with_process_isolation_find_the_fakes_of_a_replaced_lifespan(
    monkeypatch: pytest.MonkeyPatch, fake: object
) -> None:
    monkeypatch.setattr(app, "lifespan", fake)
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.state")
        await app.enqueue("invoice.send", Invoice(17))
        report = await jobs.drain(until="1h", schedules=True)
        assert [job.result for job in report.succeeded if job.kind == "invoice.state"] == [["fakes", os.getpid()]]
        assert await jobs.run("invoice.send", Invoice(18)) == {"sent": 1}
        assert await jobs.run("invoice.state") == ["fakes", os.getpid()]


async def test_draining_fails_if_the_process_of_a_handler_cannot_open_the_lifespan() -> None:
    shop = Holdfast("memory:", lifespan=open_fakes)
    shop.handler("invoice.state", isolation="process")(use_state)
    async with in_memory(shop) as jobs:
        await shop.enqueue("invoice.state")
        with pytest.raises(HandlerNotStarted, match=r"the process of .invoice\.state. finds no app with it"):
            await jobs.drain(raise_errors=False)


async def test_run_gives_the_result_of_one_handler_or_raises_its_exception(sent: list[str]) -> None:
    async with in_memory(app) as jobs:
        assert await jobs.run("invoice.send", Invoice(17, copies=2)) == {"sent": 2}
        assert await jobs.run("invoice.remind", {"number": 3}) is None
        assert await jobs.run("invoice.print", {"number": 3}) == os.getpid()
        assert sent == ["invoice 17", "reminder 3"]
        with pytest.raises(LookupError, match="no invoice -1"):
            await jobs.run("invoice.send", Invoice(-1))
        with pytest.raises(Snooze):
            await jobs.run("invoice.signal", {"signal": "snooze"})
        with pytest.raises(Cancel, match="not wanted"):
            await jobs.run("invoice.signal", {"signal": "cancel"})
        with pytest.raises(Permanent):
            await jobs.run("invoice.signal", {"signal": "fail"})
        with pytest.raises(InvalidInput, match=r"'invoice\.sned' has no handler"):
            await jobs.run("invoice.sned")
        with pytest.raises(InvalidInput, match="number"):
            await jobs.run("invoice.send", {"number": "many"})
        assert [job.kind for job in await jobs.enqueued()] == ["invoice.remind"], "only what the handler enqueued"
        assert (await jobs.drain()).jobs == ()


async def test_run_finds_its_job_among_any_number_of_others(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "_AT_ONCE", 2)
    async with in_memory(app) as jobs:
        for number in range(5):
            await app.enqueue("invoice.remind", Invoice(number))
        before = await jobs.enqueued()
        await jobs.run("invoice.remind", Invoice(17))
        assert sent == ["reminder 17"]
        assert await jobs.enqueued() == before, "the others are as they were"


async def test_run_passes_options_on_to_the_job() -> None:
    other = Holdfast("memory:")

    @other.handler("tell")
    def tell(job: RunningJob[dict[str, object]]) -> list[object]:
        return [job.tenant, job.attempt, job.headers]

    async with in_memory(other) as jobs:
        assert await jobs.run("tell", tenant="acme", headers={"a": 1}) == ["acme", 1, {"a": 1}]


class Blocking:
    """Stands in for a connection, because a unit test has no database."""

    def close(self) -> None: ...


class Async:
    async def execute(self, sql: str) -> None: ...


async def test_jobs_enqueued_in_a_transaction_exist_at_once() -> None:
    other = Holdfast()

    @other.on("paid", name="receipt")
    async def receipt(job: RunningJob[dict[str, object]]) -> None: ...

    async with in_memory(other) as jobs:
        assert other.sync.enqueue("one", conn=Blocking()).is_new
        assert (await other.enqueue("one", conn=Async())).is_new
        assert len(other.sync.enqueue_many([other.job("many"), other.job("many")], conn=Blocking())) == 2
        assert len(await other.enqueue_many([other.job("many")], conn=Async())) == 1
        assert [job.subscription for job in other.sync.publish("paid", conn=Blocking()).jobs] == ["receipt"]
        assert (await other.publish("paid", conn=Async())).jobs
        for kind, count in (("one", 2), ("many", 3), ("receipt", 2)):
            await jobs.assert_enqueued(kind, count=count)


async def test_a_blocking_call_refuses_an_async_connection_in_memory_too() -> None:
    other: Any = Holdfast()
    real: Any = MagicMock(spec=asyncpg.Connection)
    async with in_memory(other) as jobs:
        with pytest.raises(InvalidInput, match=r"is async; use await app\.enqueue$"):
            other.sync.enqueue("one", conn=real)
        await jobs.assert_nothing_enqueued()


async def test_calls_that_production_refuses_are_refused_in_memory_too() -> None:
    sync: Any = app.sync
    async with in_memory(app) as jobs:
        built = app.job("invoice.remind", Invoice(17))
        with pytest.raises(InvalidInput, match="already has its payload and options"):
            sync.enqueue(built, Invoice(18), conn=Blocking())
        with pytest.raises(InvalidInput, match="already has its payload and options"):
            sync.enqueue(built, conn=Blocking(), key="17")
        await jobs.assert_nothing_enqueued()


async def test_assertions_say_what_was_enqueued_instead() -> None:
    async with in_memory(app) as jobs:
        await jobs.assert_nothing_enqueued()
        await app.enqueue("invoice.send", Invoice(17), tenant="acme", priority=1, key="17")
        await app.enqueue("invoice.remind", Invoice(3), delay="2d", headers={"by": "hand"})
        await jobs.assert_enqueued("invoice.send", {"number": 17})
        await jobs.assert_enqueued("invoice.send", Invoice(17), tenant="acme", priority=1, key="17", count=1)
        await jobs.assert_enqueued("invoice.remind", delay="2d", queue="slow", headers={"by": "hand"})
        await jobs.assert_nothing_enqueued("invoice.print")
        expected = (
            "nothing like invoice.send with {\"number\":18} tenant='acme' was enqueued; this was:\n"
            "  invoice.send {\"number\":17,\"copies\":1} priority=1 tenant='acme' key='17'\n"
            '  invoice.remind {"number":3,"copies":1} queue=\'slow\' delay=\'2d\' headers={"by":"hand"}'
        )
        with pytest.raises(AssertionError) as failure:
            await jobs.assert_enqueued("invoice.send", {"number": 18}, tenant="acme")
        assert str(failure.value) == expected
        with pytest.raises(AssertionError, match=r"1 instead of 2 × invoice\.send"):
            await jobs.assert_enqueued("invoice.send", count=2)
        with pytest.raises(AssertionError, match="delay='1h'"):
            await jobs.assert_enqueued("invoice.remind", delay="1h")
        with pytest.raises(AssertionError, match="should have been"):
            await jobs.assert_nothing_enqueued()


@pytest.mark.parametrize(
    ("expected", "matches"),
    [
        ({"a": 1}, True),
        ({"a": 1.0}, True),
        ({"a": True}, False),
        ({"a": "1"}, False),
        ({"b": {"c": [1, {"d": None}]}}, True),
        ({"b": {"c": [1]}}, False),
        ({"b": {"x": 1}}, False),
        ({}, True),
    ],
)
async def test_a_payload_matches_by_its_parts(expected: dict[str, object], matches: bool) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("free", {"a": 1, "b": {"c": [1, {"d": None, "e": 2}]}})
        if matches:
            await jobs.assert_enqueued("free", expected)
        else:
            with pytest.raises(AssertionError):
                await jobs.assert_enqueued("free", expected)


async def test_tests_of_different_apps_may_run_at_the_same_time() -> None:
    other = Holdfast("memory:")

    async def enqueue(one: Holdfast, kind: str) -> list[str]:
        async with in_memory(one) as jobs:
            await one.enqueue(kind)
            await asyncio.sleep(0)
            return [job.kind for job in await jobs.enqueued()]

    one, two = await asyncio.gather(enqueue(app, "one"), enqueue(other, "two"))
    assert (one, two) == (["one"], ["two"])


async def test_states_can_be_requested_by_name() -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("invoice.signal", {"signal": "cancel"})
        await jobs.drain()
        assert [job.state for job in await jobs.enqueued(state="canceled")] == [JobState.CANCELED]
        assert await jobs.enqueued(state=JobState.READY) == []
