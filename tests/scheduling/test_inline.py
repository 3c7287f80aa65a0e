"""Inline runners: an occurrence runs on one replica at a time, is recorded, and is marked done at its end."""

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.cron import Missed
from holdfast.domain.errors import Permanent
from holdfast.domain.failures import Failures
from holdfast.domain.json_text import decode
from holdfast.domain.signals import Signals
from holdfast.scheduling.inline import STILL_RUNNING, InlineRunner
from holdfast.scheduling.schedules import Occurrence
from tests.databases import StoreCase
from tests.scheduling.inline_steps import Gated, at_its_first_occurrence, closing, quick
from tests.scheduling.schedule_steps import (
    MINUTE,
    START,
    declared,
    error_code,
    once,
    replica,
    replicas,
    runs_of,
    shown,
)
from tests.store_contract.schedule_steps import new_schedule
from tests.worker.harness import PATIENCE, until


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


async def _ended(runner: InlineRunner) -> bool:
    """Poll the runner as the background does, tick after tick."""
    return bool((await runner.run(Budget(), to_end=False)).processed)


async def test_an_occurrence_is_run_recorded_and_marked_at_its_end(case: StoreCase) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        tick = asyncio.create_task(once(runner))
        await gated.started.wait()
        (run,) = await runs_of(case)
        assert (run.replica, run.occurrence, run.started_at, run.finished_at) == (
            "replica-1", START + MINUTE, START + MINUTE, None,
        )  # fmt: skip
        assert gated.occurrences == [Occurrence("cycle", START + MINUTE, run.id, "replica-1")]
        assert (await shown(case, "cycle")).next_occurrence == START + MINUTE
        await case.clock.advance(timedelta(seconds=20))
        gated.gate.set()
        report = await tick
        assert (report.processed, report.failed, report.error, report.counts) == (1, 0, None, {"calls": 1})
        (run,) = await runs_of(case)
        assert run.finished_at == START + MINUTE + timedelta(seconds=20)
        assert (run.result, run.error) == ('{"calls":1}', None)
        schedule = await shown(case, "cycle")
        assert (schedule.last_occurrence, schedule.next_occurrence) == (START + MINUTE, START + 2 * MINUTE)
        assert (await once(runner)).processed == 0


async def test_a_failed_run_is_recorded_and_not_repeated_before_its_next_occurrence(
    case: StoreCase, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(occurrence: Occurrence) -> None:
        raise ConnectionError("no such host")

    failures = Failures()
    failures.register(ConnectionError, code="NETWORK")
    runner = replica(case).inline(breaks, failures=failures)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        report = await once(runner)
        assert (report.processed, report.failed, report.error) == (1, 1, "NETWORK: ConnectionError: no such host")
        assert (await once(runner)).processed == 0
        (run,) = await runs_of(case)
        assert run.error is not None
        error = decode(run.error)
        assert (error["code"], error["type"], error["message"]) == ("NETWORK", "ConnectionError", "no such host")
        assert "in breaks" in error["traceback"]
        # The message may contain data that does not belong in a log.
        assert "code=NETWORK error=ConnectionError" in caplog.text
        assert "no such host" not in caplog.text
        await case.clock.advance(MINUTE)
        assert (await once(runner)).processed == 1


async def test_after_failed_runs_it_waits_longer_and_longer_in_the_background_until_one_succeeds(
    case: StoreCase,
) -> None:
    """A tick is an explicit request, so it runs what is due."""
    is_broken = True

    async def breaks_at_first(occurrence: Occurrence) -> None:
        if is_broken:
            raise ConnectionError("no such host")

    runner = replica(case).inline(breaks_at_first, rest=lambda failures: 1000.0 * failures)

    async def rests_for_after_a_run() -> float:
        await case.clock.advance(MINUTE)
        assert (await once(runner)).processed == 1
        due_in = runner.due_in()
        assert due_in is not None
        return round(due_in, -3)

    async with closing(runner):
        await once(runner)
        assert [await rests_for_after_a_run() for _ in range(2)] == [1000, 2000]
        is_broken = False
        assert await rests_for_after_a_run() == 0
        is_broken = True
        assert await rests_for_after_a_run() == 1000


async def test_it_also_waits_if_the_next_occurrence_comes_due_before_the_failure_is_noticed(case: StoreCase) -> None:
    gated = Gated()

    async def breaks(occurrence: Occurrence) -> None:
        await gated.run(occurrence)
        raise ConnectionError("no such host")

    runner = replica(case).inline(breaks, rest=lambda _failures: 1000.0)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        await runner.run(Budget(), to_end=False)
        await gated.started.wait()
        gated.gate.set()

        async def is_recorded() -> bool:
            (run,) = await runs_of(case)
            return run.finished_at is not None

        await until(is_recorded, "the run has failed")
        await until(lambda: runner.due_in() == 0, "the report is there")
        await case.clock.advance(2 * MINUTE)
        runner.wake()
        assert await _ended(runner)
        due_in = runner.due_in()
        assert due_in is not None
        assert round(due_in, -3) == 1000


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Permanent("NO_MONEY"), "NO_MONEY"),
        (SystemExit(3), "ERROR"),
        (asyncio.CancelledError(), "ERROR"),
        (None, "INVALID_RESULT"),
    ],
    ids=["signal", "exit", "canceled", "not JSON"],
)
async def test_every_failure_of_a_function_becomes_the_error_of_its_run(
    case: StoreCase, raised: BaseException | None, code: str
) -> None:
    async def breaks(occurrence: Occurrence) -> object:
        if raised is None:
            return {"a": object()}
        raise raised

    runner = replica(case).inline(breaks)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        assert (await once(runner)).failed == 1
        assert [error_code(run) for run in await runs_of(case)] == [code]
        assert (await shown(case, "cycle")).next_occurrence == START + 2 * MINUTE


async def test_a_plain_function_runs_in_a_thread(case: StoreCase) -> None:
    def name(occurrence: Occurrence) -> dict[str, object]:
        return {"thread": threading.current_thread().name}

    def breaks(occurrence: Occurrence) -> None:
        raise ValueError("no")

    runner, broken = replica(case).inline(name), replica(case).inline(breaks, name="broken")
    async with closing(runner, broken):
        await at_its_first_occurrence(case, runner, broken)
        assert (await once(runner)).counts == {"thread": "holdfast-handler"}
        assert (await once(broken)).error == "ERROR: ValueError: no"


async def test_a_stop_iteration_from_a_plain_function_fails_its_run(case: StoreCase) -> None:
    def breaks(occurrence: Occurrence) -> object:
        return next(iter([]))

    runner = replica(case).inline(breaks)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        assert (await once(runner, Budget(PATIENCE))).error == "ERROR: RuntimeError: StopIteration()"
        assert [error_code(run) for run in await runs_of(case)] == ["ERROR"]


async def test_a_runner_that_became_a_job_schedule_does_not_call_its_function(
    case: StoreCase, caplog: pytest.LogCaptureFixture
) -> None:
    """This happens during a deploy in a process of the old version, whether its view of the schedule is old or new."""
    gated = Gated()
    gated.gate.set()
    runner = replica(case).inline(gated.run)
    late = replica(case).inline(gated.run, look_every=timedelta(hours=1))
    async with closing(runner, late):
        await at_its_first_occurrence(case, runner, late)
        late.wake()
        await late._board.look()
        assert late.due_in() == 0
        await case.schedules.declare([declared("cycle").as_new(START)])
        for each in (late, runner, runner):
            report = await once(each)
            assert (report.processed, report.error) == (0, None)
            assert report.skipped == "it is now a job schedule, so the function does not run"
        assert (await once(replica(case).job_schedules(declared("cycle")))).processed == 1
    assert gated.occurrences == []
    assert len([line for line in caplog.messages if "is now a job schedule" in line]) == 2


async def test_an_unreadable_timetable_is_logged_once(case: StoreCase, caplog: pytest.LogCaptureFixture) -> None:
    runner = replica(case).inline(quick, look_every=timedelta(milliseconds=1))
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        await case.schedules.declare(
            [new_schedule(name="cycle", timetable="when it rains", job=None, first_occurrence=START)]
        )
        for _ in range(3):
            await until(lambda: runner.due_in() == 0, "it is due again")
            report = await once(runner)
            assert report.error is not None
            assert report.error.startswith("schedule 'cycle': timetable: 'when it rains'")
        assert len([line for line in caplog.messages if "schedule cannot be read" in line]) == 1
        assert await runs_of(case) == []
        await case.schedules.declare([declared("cycle", job=None).as_new(START)])
        await until(lambda: _ended(runner), "it runs again")


async def test_one_of_many_replicas_runs_an_occurrence(case: StoreCase) -> None:
    ran: list[object] = []

    async def note(occurrence: Occurrence) -> None:
        ran.append(occurrence.at)

    async with replicas(case, 4) as views:
        runners = [view.inline(note) for view in views]
        async with closing(*runners):
            await asyncio.gather(*(once(runner) for runner in runners))
            for _ in range(5):
                await case.clock.advance(MINUTE)
                reports = await asyncio.gather(*(once(runner) for runner in runners))
                assert sum(report.processed for report in reports) == 1
                # Runners that came too early for the lock look again and find the occurrence done.
                await asyncio.gather(*(once(runner) for runner in runners))
    assert ran == [START + number * MINUTE for number in range(1, 6)]
    assert len(await runs_of(case)) == 5


async def test_a_replica_that_does_not_get_the_lock_says_so_and_tries_again(case: StoreCase) -> None:
    gated = Gated()
    async with replicas(case, 2) as (one, two):
        first, second = one.inline(gated.run), two.inline(quick, look_every=timedelta(milliseconds=50))
        async with closing(first, second):
            await at_its_first_occurrence(case, first)
            tick = asyncio.create_task(once(first))
            await gated.started.wait()
            report = await once(second)
            assert (report.processed, report.skipped, report.error) == (0, "another replica is running it", None)
            due_in = second.due_in()
            assert due_in is not None
            assert due_in <= 0.05
            gated.gate.set()
            assert (await tick).processed == 1
            await until(lambda: second.due_in() == 0, "it is due again")
            report = await once(second)
            assert (report.processed, report.skipped) == (0, None)
            await case.clock.advance(MINUTE)
            second.wake()
            assert (await once(second)).processed == 1


async def test_a_replica_without_the_lock_tries_again_soon_even_if_it_rarely_looks(case: StoreCase) -> None:
    """The replica with the lock may die before the next occurrence."""
    gated = Gated()
    async with replicas(case, 2) as (one, two):
        first, second = one.inline(gated.run), two.inline(quick, look_every=timedelta(hours=1))
        async with closing(first, second):
            await at_its_first_occurrence(case, first)
            tick = asyncio.create_task(once(first))
            await gated.started.wait()
            assert (await once(second)).skipped == "another replica is running it"
            due_in = second.due_in()
            assert due_in is not None
            assert due_in <= 1
            gated.gate.set()
            await tick
            await case.clock.advance(MINUTE)
            await until(lambda: second.due_in() == 0, "it is due again")
            assert (await once(second)).processed == 1


async def test_run_now_also_works_while_paused(case: StoreCase) -> None:
    runner = replica(case).inline(quick)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        await case.schedules.pause("cycle")
        assert (await once(runner)).processed == 0
        await case.schedules.run_now("cycle")
        assert (await once(runner)).counts == {"occurrence": "None"}
        schedule = await shown(case, "cycle")
        assert (schedule.next_occurrence, schedule.last_occurrence, schedule.run_now) == (START + MINUTE, None, 0)
        await case.schedules.resume(await shown(case, "cycle"), START + 2 * MINUTE)
        assert (await once(runner)).processed == 0
        await case.schedules.run_now("cycle")
        assert (await once(runner)).processed == 1
        await case.clock.advance(MINUTE)
        assert (await once(runner)).counts == {"occurrence": str(START + 2 * MINUTE)}


@pytest.mark.parametrize("asked", ["before it runs", "while it runs"])
async def test_a_request_gets_its_own_run_after_that_of_the_occurrence(case: StoreCase, asked: str) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run, look_every=timedelta(hours=1))
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        runner.wake()
        if asked == "before it runs":
            await case.schedules.run_now("cycle")
        tick = asyncio.create_task(once(runner))
        await gated.started.wait()
        if asked == "while it runs":
            await case.schedules.run_now("cycle")
        gated.gate.set()
        assert (await tick).processed == 2
        assert [occurrence.at for occurrence in gated.occurrences] == [START + MINUTE, None]
        assert [run.occurrence for run in await runs_of(case)] == [START + MINUTE, None]
        schedule = await shown(case, "cycle")
        assert (schedule.next_occurrence, schedule.last_occurrence, schedule.run_now) == (
            START + 2 * MINUTE,
            START + MINUTE,
            0,
        )


@pytest.mark.parametrize(
    ("missed", "occurrences", "next_occurrence"),
    [(Missed.SKIP, [], 6), (Missed.ONCE, [5], 6), (Missed.ALL, [1, 2, 3, 4, 5], 6)],
)
async def test_missed_occurrences_run_or_are_dropped_by_the_policy(
    case: StoreCase, missed: Missed, occurrences: list[int], next_occurrence: int
) -> None:
    ran: list[object] = []

    async def note(occurrence: Occurrence) -> dict[str, int]:
        ran.append(occurrence.at)
        return {"made": 3}

    runner = replica(case).inline(note, "*/10 * * * *", missed)
    async with closing(runner):
        await once(runner)
        await case.clock.advance(55 * MINUTE)
        report = await once(runner)
        assert report.processed == len(occurrences)
        assert report.counts.get("made", 0) == 3 * len(occurrences), "what all of them made"
        assert ran == [START + number * 10 * MINUTE for number in occurrences]
        assert (await shown(case, "cycle")).next_occurrence == START + next_occurrence * 10 * MINUTE
        assert {run.finished_at for run in await runs_of(case)} == {START + 55 * MINUTE}
        assert (await once(runner)).processed == 0


async def test_an_occurrence_that_began_but_did_not_finish_is_not_missed(case: StoreCase) -> None:
    """With the policy that skips late occurrences, killing a replica must not make its occurrence a skipped one."""
    gated = Gated()
    runner = replica(case).inline(gated.run, "*/10 * * * *", Missed.SKIP)
    async with closing(runner):
        await once(runner)
        await case.clock.advance(10 * MINUTE)
        # Long enough for the run to begin on a busy machine.
        await once(runner, Budget(1))
        await case.clock.advance(5 * MINUTE)
        gated.gate.set()
        assert (await once(runner)).processed == 1
        await case.clock.advance(10 * MINUTE)
        # No replica was running at this occurrence.
        assert (await once(runner)).counts == {"dropped": 1}
    assert [occurrence.at for occurrence in gated.occurrences] == [START + 10 * MINUTE] * 2


@pytest.mark.parametrize("missed", [Missed.ONCE, Missed.ALL])
async def test_occurrences_that_come_due_during_a_run_are_run_or_skipped_by_the_policy(
    case: StoreCase, caplog: pytest.LogCaptureFixture, missed: Missed
) -> None:
    caplog.set_level("INFO")
    gated = Gated()
    runner = replica(case).inline(gated.run, missed=missed)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        tick = asyncio.create_task(once(runner))
        await gated.started.wait()
        await case.clock.advance(3 * MINUTE + timedelta(seconds=1))
        gated.gate.set()
        report = await tick
    said = "occurrences came due while it ran and are skipped"
    lines = [line.levelname for line in caplog.records if said in line.getMessage()]
    ran = [occurrence.at for occurrence in gated.occurrences]
    if missed is Missed.ALL:
        assert ran == [START + number * MINUTE for number in range(1, 5)]
        assert not lines
    else:
        assert ran == [START + MINUTE]
        assert lines == ["INFO"]
        assert report.counts["overlapped"] == 3
    assert (await shown(case, "cycle")).next_occurrence == START + 5 * MINUTE


async def test_in_the_background_it_continues_across_ticks(case: StoreCase, caplog: pytest.LogCaptureFixture) -> None:
    gated = Gated()
    signals = Signals()
    runner, woken = replica(case).inline(gated.run, signals=signals), signals.changed
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        assert runner.due_in() == 0
        report = await runner.run(Budget(), to_end=False)
        assert (report.processed, report.skipped) == (0, None)
        await gated.started.wait()
        report = await runner.run(Budget(), to_end=False)
        assert (report.processed, report.skipped) == (0, "still running from its last occurrence")
        assert not woken.is_set()
        gated.gate.set()
        await woken.wait()
        assert runner.due_in() == 0
        report = await runner.run(Budget(), to_end=False)
        assert (report.processed, report.counts) == (1, {"calls": 1})
        assert len(await runs_of(case)) == 1


async def test_a_run_that_has_just_ended_is_reported(case: StoreCase) -> None:
    runner = replica(case).inline(quick)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        runner.wake()
        await runner.run(Budget(), to_end=False)
        # Poll as often as possible, including between the end of the task and its callback.
        while (report := await runner.run(Budget(), to_end=False)).skipped == STILL_RUNNING:  # noqa: ASYNC110 - polls as often as possible
            await asyncio.sleep(0)
        assert report.processed == 1


async def test_each_occurrence_missed_while_busy_is_logged_once(
    case: StoreCase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run, look_every=timedelta(hours=1))
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        runner.wake()
        await runner.run(Budget(), to_end=False)
        await gated.started.wait()
        real = time.monotonic
        for minutes in range(1, 4):
            due_in = runner.due_in()
            assert due_in is not None
            assert 0 < due_in <= 60
            monkeypatch.setattr(time, "monotonic", lambda later=60.0 * minutes: real() + later)
            assert runner.due_in() == 0
            for _ in range(3):
                await runner.run(Budget(), to_end=False)
        monkeypatch.setattr(time, "monotonic", real)
        gated.gate.set()
        await until(lambda: _ended(runner), "it has ended")
    lines = [line for line in caplog.messages if line.startswith("still running from its last occurrence")]
    assert [line.partition("occurrence=")[2] for line in lines] == [
        (START + number * MINUTE).isoformat() for number in range(2, 5)
    ]
