"""The background repeats the tick: runners that are due get a turn, wake-ups end waits, and failures stay separate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.errors import ConnectionLost, StoreUnavailable
from holdfast.domain.runner import RunnerReport
from holdfast.domain.signals import Signals
from holdfast.runtime.background import Background
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.tick import TickLimits, TickReport
from tests.runtime.fakes import FakeRunner
from tests.worker.harness import until

FOR_EVER = 3600.0


@asynccontextmanager
async def running(
    *runners: FakeRunner, pacing: Pacing | None = None, on_tick: Callable[[TickReport], object] | None = None
) -> AsyncIterator[Signals]:
    signals = Signals()
    background = Background(runners, TickLimits(), pacing or Pacing(), 7.0, signals)
    task = asyncio.create_task(background.run(on_tick))
    try:
        yield signals
    finally:
        background.stop()
        await asyncio.wait_for(task, 10)


async def test_the_first_tick_comes_at_once_and_then_only_due_runners_have_a_turn() -> None:
    async def rest(budget: Budget) -> None:
        one.due = FOR_EVER

    one, other = FakeRunner("one", rest), FakeRunner("other")
    other.due = None
    async with running(one, other) as signals:
        await until(lambda: one.turns == 1, "the first tick")
        other.due = 0.0
        signals.changed.set()
        await until(lambda: other.turns > 0, "the other one's turn")
    assert one.turns == 1


async def test_a_wake_up_ends_any_wait() -> None:
    async def rest(budget: Budget) -> None:
        runner.due = FOR_EVER

    runner = FakeRunner("queue", rest)
    async with running(runner) as signals:
        await until(lambda: runner.turns == 1, "the first turn")
        signals.wake("somebody else")
        signals.wake("queue")
        await until(lambda: runner.turns == 2, "a turn after a wake-up for it")


async def test_a_wake_up_during_a_tick_is_not_lost() -> None:
    async def act(budget: Budget) -> None:
        runner.due = FOR_EVER
        if runner.turns == 1:
            signals.wake("queue")

    runner = FakeRunner("queue", act)
    async with running(runner) as signals:
        await until(lambda: runner.turns == 2, "the turn that the wake-up asked for")


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), RuntimeError("a bug"), asyncio.CancelledError()])
async def test_only_a_failing_runner_waits(error: BaseException) -> None:
    async def fail(budget: Budget) -> None:
        raise error

    async def rest_a_little(budget: Budget) -> None:
        healthy.due = 0.0 if healthy.turns < 50 else FOR_EVER

    failing, healthy = FakeRunner("failing", fail), FakeRunner("healthy", rest_a_little)
    patient = Pacing(error_min=timedelta(hours=1), error_max=timedelta(hours=1))
    async with running(failing, healthy, pacing=patient) as signals:
        await until(lambda: healthy.turns == 50, "fifty turns of the healthy one")
        assert failing.turns == 1
        signals.wake("failing")
        await until(lambda: failing.turns == 2, "a wake-up ends the wait after an error too")


async def test_after_a_single_lost_connection_the_next_turn_comes_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def lose_one(budget: Budget) -> None:
        if runner.turns % 2 and runner.turns < 8:
            raise ConnectionLost("cut")
        runner.due = 0.0 if runner.turns < 8 else FOR_EVER

    runner = FakeRunner("queue", lose_one)
    patient = Pacing(error_min=timedelta(hours=1), error_max=timedelta(hours=1))
    async with running(runner, pacing=patient):
        await until(lambda: runner.turns == 8, "four times a turn was lost, and the next one was not")
    assert caplog.text.count("works again") == 4


async def test_repeatedly_lost_connections_count_as_an_outage() -> None:
    async def fail(budget: Budget) -> None:
        raise ConnectionLost("cut")

    async def rest_a_little(budget: Budget) -> None:
        healthy.due = 0.0 if healthy.turns < 50 else FOR_EVER

    failing, healthy = FakeRunner("failing", fail), FakeRunner("healthy", rest_a_little)
    patient = Pacing(error_min=timedelta(hours=1), error_max=timedelta(hours=1))
    async with running(failing, healthy, pacing=patient):
        await until(lambda: healthy.turns == 50, "fifty turns of the healthy one")
        assert failing.turns == 2


async def test_an_outage_and_its_end_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_thrice(budget: Budget) -> None:
        if runner.turns <= 3:
            raise StoreUnavailable("gone")
        runner.due = FOR_EVER

    runner = FakeRunner("queue", fail_thrice)
    quick = Pacing(error_min=timedelta(milliseconds=1), error_max=timedelta(milliseconds=1), error_jitter=timedelta(0))
    async with running(runner, pacing=quick):
        await until(lambda: runner.turns == 4, "three failures and a success")
        await until(lambda: "works again" in caplog.text, "its end is told")
    assert caplog.text.count("runner failed, trying again") == 1
    assert caplog.text.count("works again") == 1


async def test_stopping_waits_for_the_tick_and_closes_every_runner() -> None:
    async def linger(budget: Budget) -> None:
        await let_go.wait()

    let_go = asyncio.Event()
    slow, other = FakeRunner("slow", linger), FakeRunner("other")
    background = Background([slow, other], TickLimits(), Pacing(), shutdown=7.0)
    task = asyncio.create_task(background.run())
    await slow.turned.wait()
    background.stop()
    assert slow.stopped
    assert other.stopped
    assert background.is_stopping
    await asyncio.sleep(0)
    assert [runner.closed_with for runner in (slow, other)] == [None, None]
    let_go.set()
    await asyncio.wait_for(task, 10)
    # The time that the last tick took is subtracted from the time for closing.
    assert all(runner.closed_with is not None and 0 < runner.closed_with <= 7.0 for runner in (slow, other))


async def test_a_canceled_background_still_closes_its_runners() -> None:
    runner = FakeRunner("queue")
    background = Background([runner], TickLimits(), Pacing(), shutdown=7.0)
    task = asyncio.create_task(background.run())
    await runner.turned.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runner.closed_with == 0.0


async def test_wake_ups_do_not_turn_an_outage_into_a_storm(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(budget: Budget) -> None:
        raise RuntimeError("a bug")

    failing = FakeRunner("failing", fail)
    patient = Pacing(error_min=timedelta(hours=1), error_max=timedelta(hours=1))
    async with running(failing, pacing=patient) as signals:
        await until(lambda: failing.turns == 1, "the first failure")
        for _ in range(1000):
            signals.wake("failing")
            await asyncio.sleep(0)
        await until(lambda: failing.turns > 1, "it is tried again")
        assert failing.turns < 50
    assert caplog.text.count("Traceback") == 1


async def test_on_tick_gets_the_report_of_each_tick_that_did_something() -> None:
    async def act(budget: Budget) -> None:
        busy.due = FOR_EVER
        if busy.turns == 2:
            raise StoreUnavailable("gone")

    class Idle(FakeRunner):
        async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
            await super().run(budget, to_end=to_end)
            self.due = FOR_EVER
            return RunnerReport(self.name, skipped="nothing to do")

    class Late(FakeRunner):
        async def close(self, seconds: float) -> RunnerReport | None:
            return RunnerReport(self.name, processed=2)

    busy, idle, late = FakeRunner("busy", act), Idle("idle"), Late("late")
    late.due = None
    reports: list[TickReport] = []
    async with running(busy, idle, late, on_tick=reports.append) as signals:
        await until(lambda: busy.turns == 1, "the first tick")
        signals.wake("idle")
        await until(lambda: idle.turns == 2, "a tick that does nothing")
        signals.wake("busy")
        await until(lambda: busy.turns == 2, "a tick that fails")
    told = [[(part.runner, part.processed, part.error) for part in report.runners] for report in reports]
    assert told == [
        [("busy", 1, None), ("idle", 0, None)],
        [("busy", 0, "gone")],
        [("late", 2, None)],
    ]


async def test_an_error_in_on_tick_stops_no_runner_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def rest_after_three(budget: Budget) -> None:
        runner.due = 0.0 if runner.turns < 3 else FOR_EVER

    def fail(report: TickReport) -> None:
        calls.append(report)
        raise LookupError("no such gauge")

    calls: list[TickReport] = []
    runner = FakeRunner("queue", rest_after_three)
    async with running(runner, on_tick=fail):
        await until(lambda: len(calls) == 3, "three calls")
    assert caplog.text.count("on_tick failed") == 1
    assert caplog.text.count("LookupError: no such gauge") == 1
