"""When the queue runner looks again, and how: it polls ever less often, and less still if it is told of new work."""

import math
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.runtime import queue_runner
from holdfast.runtime.budget import Budget
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.store.memory import MemoryStore
from holdfast.store.memory_schedules import MemoryRuns
from holdfast.worker.claimer import Look
from holdfast.worker.worker import Rescue, Worker

POLL = 1.0
NOTHING = Look(0, math.inf, is_idle=True)
ENOUGH = 10
"""Looks after which the wait grows no more."""


class Scripted:
    """Stands for a worker: each look brings what the test says."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.on_wake: Callable[[], None] = lambda: None
        self.on_settled: Callable[[], None] = lambda: None
        self.is_stuck = False
        self.look = NOTHING
        self.only_if_due: list[bool] = []
        self.glances: list[bool] = []

    def start(self) -> None: ...

    async def fill(self, limit: int | None = None, *, only_if_due: bool = False, glance_first: bool = False) -> Look:
        self.only_if_due.append(only_if_due)
        self.glances.append(glance_first)
        return self.look

    async def rescue(self) -> Rescue:
        return Rescue(0, math.inf)


class Case:
    def __init__(self, is_told: bool | None) -> None:
        self.now = 1000.0
        self.worker = Scripted()
        runs = QueueRuns(MemoryRuns(MemoryStore()), "queue", "replica")
        self.runner = QueueRunner(cast(Worker, self.worker), Pacing(idle_max=timedelta(seconds=POLL)), runs)
        self.runner.on_idle = lambda: is_told

    async def look(self, found: Look = NOTHING) -> float:
        """The wait after a look at the time when it is due."""
        self.now += self.runner.due_in()
        self.worker.look = found
        await self.runner.run(Budget(), to_end=False)
        return self.runner.due_in()

    async def fall_asleep(self) -> float:
        waits = [await self.look() for _ in range(ENOUGH)]
        self.worker.only_if_due.clear()
        return waits[-1]


@pytest.fixture(params=[True, None, False], ids=["told", "never told", "not told now"])
def is_told(request: pytest.FixtureRequest) -> bool | None:
    return cast("bool | None", request.param)


@pytest.fixture
def case(is_told: bool | None, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(is_told)
    monkeypatch.setattr(queue_runner, "time", SimpleNamespace(monotonic=lambda: case.now))
    return case


async def test_only_who_is_told_of_new_work_waits_longer_than_the_poll(case: Case, is_told: bool | None) -> None:
    longest = 3 * POLL if is_told else POLL
    first = await case.look()
    assert first == pytest.approx(0.004 if is_told is False else 0.02)
    assert await case.look() == pytest.approx(2 * first), "at first all look soon again"
    assert await case.fall_asleep() == pytest.approx(longest)


async def test_a_job_that_is_due_before_is_not_kept_waiting(case: Case) -> None:
    await case.fall_asleep()
    assert await case.look(Look(0, POLL / 100, is_idle=True)) == pytest.approx(POLL / 100)
    await case.look()
    assert case.worker.only_if_due[-1] is False, "something is due: it is claimed at once"


async def test_who_only_polls_asks_first_whether_anything_is_due(case: Case) -> None:
    await case.fall_asleep()
    await case.look()
    await case.look()
    assert case.worker.only_if_due == [True] * 2


async def test_who_is_woken_claims_at_once(case: Case) -> None:
    await case.fall_asleep()
    case.runner.wake()
    await case.look()
    assert case.worker.only_if_due == [False]


async def test_who_found_something_claims_at_once_the_next_time(case: Case) -> None:
    await case.fall_asleep()
    await case.look(Look(1, math.inf, is_idle=True))
    await case.look()
    assert case.worker.only_if_due[-1] is False


async def test_who_ran_out_of_work_just_now_claims_at_once(case: Case) -> None:
    for _ in range(3):
        await case.look()
    assert case.worker.only_if_due == [False] * 3


async def test_who_is_told_of_a_job_glances_once_and_looks_at_everything_right_after_it(case: Case) -> None:
    await case.fall_asleep()
    case.worker.glances.clear()
    case.runner.wake()
    assert await case.look(Look(1, 0)) == 0
    await case.look()
    assert case.worker.glances == [True, False]


async def test_a_slot_that_was_freed_is_no_reason_to_glance(case: Case) -> None:
    await case.fall_asleep()
    case.worker.on_wake()
    await case.look()
    assert case.worker.glances[-1] is False
