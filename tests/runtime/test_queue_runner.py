"""When the queue runner looks again, and how: it polls less and less often, and even less if it is notified."""

import math
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast import wake
from holdfast.domain.budget import Budget
from holdfast.domain.limits import RING_AHEAD
from holdfast.runtime import queue_runner
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.store.memory.schedules import MemoryRuns
from holdfast.store.memory.store import MemoryStore
from holdfast.types import WorkerSettings
from holdfast.wake import LONGEST_SLEEP
from holdfast.worker.turn import Turn
from holdfast.worker.worker import Rescue, Worker

POLL = 1.0
NOTHING = Turn(0, math.inf, is_idle=True)
ENOUGH = 10
"""The number of looks after which the wait no longer grows."""


class Scripted:
    """Stands in for a worker: each look finds what the test says."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.may_claim = False
        self.is_stuck = False
        self.look = NOTHING
        self.looks_first: list[bool] = []
        self.rescues = 0

    def start(self) -> None: ...

    def has_begun(self) -> None: ...

    async def fill(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        self.looks_first.append(looks_first)
        self.may_claim = False
        return self.look

    async def rescue(self) -> Rescue:
        self.rescues += 1
        return Rescue(0, math.inf)


class Told:
    """Stands in for a listener."""

    def __init__(self, is_told: bool) -> None:
        self.told = wake.Told(0.0) if is_told else None

    def looks(self) -> None: ...

    def asleep(self, *, is_short: bool = False) -> wake.Told | None:
        return self.told

    def awake(self, *, is_full: bool) -> None: ...


class Case:
    def __init__(self, is_told: bool | None, busy_delay: float = 0.0, poll: float = POLL) -> None:
        self.now = 1000.0
        self.worker = Scripted()
        self.runs = runs = QueueRuns(MemoryRuns(MemoryStore()), "queue", "replica")
        settings = WorkerSettings(poll=timedelta(seconds=poll))
        pacing = Pacing(
            idle_max=settings.poll, told_max=settings.longest_wait, busy_delay=timedelta(seconds=busy_delay)
        )
        sleeper = None if is_told is None else Told(is_told)
        self.runner = QueueRunner(cast(Worker, self.worker), pacing, runs, sleeper=sleeper)

    async def look(self, found: Turn = NOTHING) -> float:
        """Look when a look is due, and return the wait until the next one."""
        self.now += self.runner.due_in()
        self.worker.look = found
        await self.runner.run(Budget(), to_end=False)
        return self.runner.due_in()

    async def fall_asleep(self) -> float:
        waits = [await self.look() for _ in range(ENOUGH)]
        self.worker.looks_first.clear()
        return waits[-1]


@pytest.fixture(params=[True, None, False], ids=["told", "never told", "not told now"])
def is_told(request: pytest.FixtureRequest) -> bool | None:
    return cast("bool | None", request.param)


@pytest.fixture
def case(is_told: bool | None, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(is_told)
    monkeypatch.setattr(queue_runner, "time", SimpleNamespace(monotonic=lambda: case.now))
    return case


async def test_only_a_notified_worker_waits_longer_than_the_poll(case: Case, is_told: bool | None) -> None:
    longest = 3 * POLL if is_told else POLL
    first = await case.look()
    assert first == pytest.approx(0.004 if is_told is False else 0.02)
    assert await case.look() == pytest.approx(2 * first), "at first all look soon again"
    assert await case.fall_asleep() == pytest.approx(longest)


@pytest.mark.parametrize("poll", [30.0, 3600.0])
async def test_a_notified_worker_looks_before_jobs_are_due_that_did_not_ring(
    poll: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is due in more than a minute does not ring, and it may arrive just after a look."""
    case = Case(is_told=True, poll=poll)
    monkeypatch.setattr(queue_runner, "time", SimpleNamespace(monotonic=lambda: case.now))
    waits = [await case.look() for _ in range(3 * ENOUGH)]
    assert max(waits) + 5.0 < RING_AHEAD.total_seconds()
    assert case.worker.looks_first[-1], "it asks first whether anything is due"


async def test_a_job_due_before_the_next_look_does_not_wait_for_it(case: Case) -> None:
    await case.fall_asleep()
    assert await case.look(Turn(0, POLL / 100, is_idle=True)) == pytest.approx(POLL / 100)
    await case.look()
    assert case.worker.looks_first[-1] is False, "something is due: it is claimed at once"


async def test_a_polling_worker_first_asks_whether_anything_is_due(case: Case) -> None:
    await case.fall_asleep()
    await case.look()
    await case.look()
    assert case.worker.looks_first == [True] * 2


async def test_a_woken_worker_claims_at_once(case: Case) -> None:
    await case.fall_asleep()
    case.runner.wake()
    await case.look()
    assert case.worker.looks_first == [False]


async def test_a_worker_that_found_jobs_claims_at_once_the_next_time(case: Case) -> None:
    await case.fall_asleep()
    await case.look(Turn(1, math.inf, is_idle=True))
    await case.look()
    assert case.worker.looks_first[-1] is False


async def test_a_worker_that_just_ran_out_of_work_claims_at_once(case: Case) -> None:
    for _ in range(3):
        await case.look()
    assert case.worker.looks_first == [False] * 3


@pytest.fixture
def busy(is_told: bool | None, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Waits for five seconds after it found jobs."""
    case = Case(is_told, busy_delay=5.0)
    monkeypatch.setattr(queue_runner, "time", SimpleNamespace(monotonic=lambda: case.now))
    return case


async def test_after_work_the_next_look_comes_after_the_busy_delay(busy: Case, is_told: bool | None) -> None:
    """The busy delay may be shorter or longer than the first wait without work."""
    assert await busy.look(Turn(3, math.inf, is_idle=True)) == 5.0
    if is_told is not False:
        assert await busy.look() == pytest.approx(0.02), "then as after the first look that found nothing"
        assert await busy.look() == pytest.approx(0.04)


async def test_while_jobs_remain_there_is_no_busy_delay(busy: Case) -> None:
    assert await busy.look(Turn(3, 0.0)) == 0
    assert await busy.look(Turn(3, math.inf)) == math.inf, "all slots are taken"
    busy.worker.may_claim = True
    assert busy.runner.due_in() == 0, "one is free"


async def test_a_notification_of_new_work_ends_the_busy_delay(busy: Case) -> None:
    await busy.look(Turn(3, math.inf, is_idle=True))
    busy.runner.wake()
    assert busy.runner.due_in() == 0


async def test_after_a_claim_the_next_look_is_soon_even_if_notified_for_a_long_time(case: Case) -> None:
    """A claim does not show what is due later, so waiting for a whole poll would delay scheduled jobs."""
    sleeper = Told(is_told=True)
    sleeper.told = wake.Told(3600.0)
    runner = QueueRunner(cast(Worker, case.worker), Pacing(idle_max=timedelta(hours=1)), case.runs, sleeper=sleeper)
    case.runner = runner
    assert await case.look(Turn(1, math.inf, is_idle=True)) == pytest.approx(0.02)
    assert await case.look() == pytest.approx(LONGEST_SLEEP)


async def test_a_turn_for_the_rescue_alone_does_not_look_for_work(case: Case) -> None:
    await case.fall_asleep()
    case.runner._rescue_at = case.now + POLL / 10
    case.now += case.runner.due_in()
    await case.runner.run(Budget(), to_end=False)
    assert (case.worker.rescues, case.worker.looks_first) == (2, [])
    assert case.runner.due_in() > 0
