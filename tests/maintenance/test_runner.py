"""The maintenance runner: when it is due, and that one chore does not block another."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator
from datetime import date, timedelta

import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.signals import Signals
from holdfast.maintenance.chores import Retention
from holdfast.maintenance.runner import AGAIN_SECONDS, SPREAD_SECONDS, Maintenance
from holdfast.store.maintenance import Batch

DAY = timedelta(days=1)
KEEP = Retention(jobs=7 * DAY, dead_letters=14 * DAY, runs=30 * DAY)


class Scripted:
    """A store that records its calls and fails where the test wants it to."""

    def __init__(self, *, fails: str = "", error: Exception | None = None) -> None:
        self.asked: list[tuple[str, timedelta | None]] = []
        self.ago: dict[str, timedelta] = {}
        self.marked: list[str] = []
        self.looks = 0
        self.is_gone = False
        self._fails = fails
        self._error = error

    async def since_done(self) -> dict[str, timedelta]:
        self.looks += 1
        if self.is_gone:
            raise StoreUnavailable("the server is gone")
        return self.ago

    async def mark_done(self, step: str, trouble: str | None = None) -> None:
        self.marked.append(step)

    async def mark_failed(self, step: str, error: str) -> None: ...

    async def troubles(self) -> dict[str, str]:
        return {}

    async def _step(self, name: str, retention: timedelta | None, *batches: Batch) -> AsyncGenerator[Batch, None]:
        self.asked.append((name, retention))
        if name == self._fails and self._error is not None:
            raise self._error
        for batch in batches:
            yield batch

    async def overdue_days(self, retention: timedelta) -> list[date]:
        return []

    def add_partitions(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        return self._step("add_partitions", retention, Batch({"partitions_added": 2}))

    def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        one, two = Batch({"jobs_pruned": 3}), Batch({"jobs_pruned": 4}, skipped="a day is in use")
        return self._step("prune_jobs", retention, one, two)

    def prune_dead_letters(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        return self._step("prune_dead_letters", retention, Batch({"dead_letters_pruned": 0}))

    def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        return self._step("prune_runs", retention)

    def compact_counts(self) -> AsyncGenerator[Batch, None]:
        return self._step("compact_counts", None, Batch({"entries_merged": 5}))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's monotonic clock, which the test can move."""
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


async def test_all_chores_are_done_in_order_and_reported() -> None:
    maintenance = Scripted()
    report = await Maintenance(maintenance, KEEP).run(Budget(), to_end=True)
    assert maintenance.asked == [
        ("add_partitions", KEEP.jobs),
        ("prune_jobs", KEEP.jobs),
        ("prune_dead_letters", KEEP.dead_letters),
        ("prune_runs", KEEP.runs),
        ("compact_counts", None),
    ]
    assert (report.runner, report.is_fine) == ("maintenance", True)
    assert report.counts == {"partitions_added": 2, "jobs_pruned": 7, "entries_merged": 5}
    assert report.skipped == "prune jobs: a day is in use"
    assert report.processed == 14


async def test_dead_letters_are_kept_unless_a_retention_is_set() -> None:
    maintenance = Scripted()
    await Maintenance(maintenance, Retention(7 * DAY, None, 30 * DAY)).run(Budget(), to_end=True)
    assert "prune_dead_letters" not in [name for name, _ in maintenance.asked]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreUnavailable("the server is gone"), "prune jobs: the server is gone"),
        (ZeroDivisionError("a bug"), "prune jobs: ZeroDivisionError: a bug"),
    ],
)
async def test_a_failed_step_is_reported_and_the_other_steps_are_done(
    clock: list[float], error: Exception, said: str
) -> None:
    maintenance = Scripted(fails="prune_jobs", error=error)
    runner = Maintenance(maintenance, KEEP)
    report = await runner.run(Budget(), to_end=True)
    assert len(maintenance.asked) == 5
    assert (report.is_fine, report.error) == (False, said)
    assert report.counts == {"partitions_added": 2, "entries_merged": 5}
    assert runner.due_in() == AGAIN_SECONDS


async def test_an_outage_of_the_store_ends_the_pass_and_is_reported_once(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    class Dying(Scripted):
        def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
            self.is_gone = True
            return super().prune_jobs(retention)

    maintenance = Dying(fails="prune_jobs", error=StoreUnavailable("the server is gone"))
    runner = Maintenance(maintenance, KEEP)
    caplog.set_level(logging.DEBUG)
    report = await runner.run(Budget(), to_end=True)
    assert [name for name, _ in maintenance.asked] == ["add_partitions", "prune_jobs"]
    assert (report.error, report.is_outage) == ("prune jobs: the server is gone", True)
    assert caplog.messages == [], "who asked for the pass tells it"
    clock[0] += AGAIN_SECONDS
    again = await runner.run(Budget(), to_end=True)
    assert (again.error, again.is_outage) == ("the server is gone", True)
    assert len(maintenance.asked) == 2


async def test_recent_work_of_another_process_is_not_repeated(clock: list[float]) -> None:
    maintenance = Scripted()
    names = ["partitions", "prune jobs", "prune dead letters", "prune runs", "compact counts"]
    maintenance.ago = dict.fromkeys(names, timedelta(minutes=9))
    runner = Maintenance(maintenance, KEEP)
    report = await runner.run(Budget(), to_end=True)
    assert (maintenance.asked, maintenance.looks) == ([], 1)
    assert (report.is_fine, report.processed, report.skipped, report.counts) == (True, 0, None, {})
    assert 60 <= (runner.due_in() or 0) <= 60 + SPREAD_SECONDS, "nobody waits longer because others were quicker"
    maintenance.ago = dict.fromkeys(names, timedelta(minutes=10))
    clock[0] += 60 + SPREAD_SECONDS
    await runner.run(Budget(), to_end=True)
    assert maintenance.marked == names[1:], "partitions are made for days to come, and looked after every hour"
    maintenance.ago = {"partitions": timedelta(hours=1)}
    clock[0] += 600 + SPREAD_SECONDS
    await runner.run(Budget(), to_end=True)
    assert maintenance.marked == names[1:] + names


async def test_a_step_that_failed_or_was_left_to_another_process_is_not_marked_as_done(clock: list[float]) -> None:
    class Meeting(Scripted):
        def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
            return self._step("prune_runs", retention, Batch(skipped="another process is doing it", is_busy=True))

    maintenance = Meeting(fails="compact_counts", error=ZeroDivisionError())
    await Maintenance(maintenance, KEEP).run(Budget(), to_end=True)
    assert maintenance.marked == ["partitions", "prune jobs", "prune dead letters"]


async def test_it_is_due_within_a_minute_and_then_every_ten_minutes(clock: list[float]) -> None:
    maintenance = Scripted()
    firsts = [Maintenance(maintenance, KEEP).due_in() or 0 for _ in range(50)]
    assert all(0 <= first <= SPREAD_SECONDS for first in firsts)
    assert len(set(firsts)) > 1
    runner = Maintenance(maintenance, KEEP)
    clock[0] += SPREAD_SECONDS
    assert runner.due_in() == 0
    await runner.run(Budget(), to_end=True)
    assert len(maintenance.asked) == 5
    assert 600 <= (runner.due_in() or 0) <= 600 + SPREAD_SECONDS
    runner.wake()
    assert runner.due_in() == 0


async def test_it_sends_no_query_before_it_is_due(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    maintenance = Scripted()
    runner = Maintenance(maintenance, KEEP)
    report = await runner.run(Budget(), to_end=False)
    assert (maintenance.asked, report.counts) == ([], {})
    await runner.run(Budget(), to_end=True)
    assert len(maintenance.asked) == 5
    await runner.run(Budget(), to_end=True)
    assert (len(maintenance.asked), maintenance.looks) == (5, 1)


class Slow(Scripted):
    """Each batch of pruning takes four seconds."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    async def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        for _ in range(5):
            self._clock[0] += 4
            yield Batch({"jobs_pruned": 1000})


async def test_a_long_step_leaves_the_others_their_share_of_the_time(clock: list[float]) -> None:
    maintenance = Slow(clock)
    report = await Maintenance(maintenance, KEEP).run(Budget(seconds=32, items=1), to_end=True)
    assert report.counts == {"partitions_added": 2, "jobs_pruned": 2000, "entries_merged": 5}
    assert report.skipped == "prune jobs: the time is up"
    assert maintenance.marked == ["partitions", "prune dead letters", "prune runs", "compact counts"]


async def test_it_has_enough_time_in_the_background(clock: list[float]) -> None:
    maintenance = Slow(clock)
    signals = Signals()
    runner, woken = Maintenance(maintenance, KEEP, signals), signals.changed
    runner.wake()
    await runner.run(Budget(seconds=1), to_end=False)
    await woken.wait()
    report = await runner.run(Budget(seconds=1), to_end=False)
    assert (report.counts["jobs_pruned"], report.skipped) == (5000, None)
    assert len(maintenance.marked) == 5


class Held(Scripted):
    """Prunes one batch, and a second one when the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = asyncio.Event()
        self.let_go = asyncio.Event()

    async def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        yield Batch({"jobs_pruned": 1})
        self.is_held.set()
        await self.let_go.wait()
        yield Batch({"jobs_pruned": 1})


async def started_in_background(maintenance: Held) -> tuple[Maintenance, asyncio.Event]:
    signals = Signals()
    runner, woken = Maintenance(maintenance, KEEP, signals), signals.changed
    runner.wake()
    assert (await runner.run(Budget(), to_end=False)).counts == {}
    await maintenance.is_held.wait()
    return runner, woken


async def test_ticks_do_not_wait_for_it_in_the_background() -> None:
    maintenance = Held()
    runner, woken = await started_in_background(maintenance)
    assert runner.due_in() is None
    assert (await runner.run(Budget(), to_end=False)).counts == {}
    maintenance.let_go.set()
    await woken.wait()
    assert runner.due_in() == 0
    report = await runner.run(Budget(), to_end=False)
    assert report.counts == {"partitions_added": 2, "jobs_pruned": 2, "entries_merged": 5}
    assert (runner.due_in() or 0) > SPREAD_SECONDS
    assert await runner.close(0) is None


async def test_a_stop_ends_it_after_the_current_batch() -> None:
    maintenance = Held()
    runner, _ = await started_in_background(maintenance)
    runner.stop()
    maintenance.let_go.set()
    report = await runner.close(60)
    assert report is not None
    assert report.counts["jobs_pruned"] == 2
    assert "compact counts: the time is up" in (report.skipped or "")
    assert (await runner.run(Budget(), to_end=False)).counts == {}


async def test_a_batch_that_does_not_end_is_finally_canceled() -> None:
    runner, _ = await started_in_background(Held())
    runner.stop()
    report = await runner.close(0)
    assert report is not None
    assert report.skipped == "it was stopped"
