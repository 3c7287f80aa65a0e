"""Runs: what a runner did, visible while it runs."""

from datetime import timedelta

from holdfast.domain.json_text import encode
from holdfast.store.schedules import NewRun, Run
from tests.databases import StoreCase
from tests.store_contract.steps import SECOND, START, needs

pytestmark = needs("schedules")

RESULT = encode({"sent": 3, "who": "ü"})
ERROR = encode({"code": "ERROR", "message": "no"})


async def test_a_run_is_visible_while_it_runs_and_afterwards(case: StoreCase) -> None:
    id = await case.runs.start(NewRun("cycle", "replica-1", START))
    assert await case.runs.list(None, 10) == [Run(id, "cycle", "replica-1", START, START, None, None, None)]
    await case.clock.advance(5 * SECOND)
    assert await case.runs.finish(id, RESULT, None)
    done = Run(id, "cycle", "replica-1", START, START, START + 5 * SECOND, RESULT, None)
    assert await case.runs.list(None, 10) == [done]


async def test_a_finished_run_does_not_change(case: StoreCase) -> None:
    id = await case.runs.start(NewRun("cycle", "replica-1"))
    assert await case.runs.finish(id, None, ERROR)
    before = await case.runs.list(None, 10)
    assert not await case.runs.finish(id, RESULT, None)
    assert not await case.runs.finish(id + 1000, RESULT, None)
    assert await case.runs.abandon("cycle", encode({"code": "LATE"})) == 0
    assert await case.runs.list(None, 10) == before


async def test_recording_a_finished_run_adds_one_row(case: StoreCase) -> None:
    await case.runs.record(NewRun("queue", "replica-1"), timedelta(seconds=40), RESULT, ERROR)
    (run,) = await case.runs.list("queue", 10)
    assert run == Run(run.id, "queue", "replica-1", None, START - 40 * SECOND, START, RESULT, ERROR)


async def test_the_unfinished_runs_of_one_name_are_abandoned(case: StoreCase) -> None:
    first, second, other = [await case.runs.start(NewRun(name, "gone")) for name in ("cycle", "cycle", "other")]
    over = await case.runs.start(NewRun("cycle", "me"))
    await case.runs.finish(over, RESULT, None)
    await case.clock.advance(SECOND)
    assert await case.runs.abandon("cycle", ERROR) == 2
    runs = {run.id: run for run in await case.runs.list(None, 10)}
    assert [(runs[id].finished_at, runs[id].error) for id in (first, second)] == [(START + SECOND, ERROR)] * 2
    assert (runs[other].finished_at, runs[over].error) == (None, None)


async def test_the_newest_runs_come_first(case: StoreCase) -> None:
    ids = [await case.runs.start(NewRun("odd" if number % 2 else "even", "me")) for number in range(6)]
    assert [run.id for run in await case.runs.list(None, 10)] == ids[::-1]
    assert [run.id for run in await case.runs.list(None, 2)] == [ids[5], ids[4]]
    assert [run.id for run in await case.runs.list("even", 2)] == [ids[4], ids[2]]
    assert await case.runs.list("neither", 10) == []


async def test_runs_are_ordered_by_their_start(case: StoreCase) -> None:
    """A queue's run is recorded at the end of its minute."""
    await case.runs.start(NewRun("cycle", "me"))
    await case.clock.advance(SECOND)
    await case.runs.start(NewRun("late", "me"))
    await case.runs.record(NewRun("cycle", "me"), 60 * SECOND, None, None)
    runs = await case.runs.list(None, 10)
    assert [run.name for run in runs] == ["late", "cycle", "cycle"]
    assert [run.finished_at is None for run in runs] == [True, True, False]
    assert [run.finished_at is None for run in await case.runs.list("cycle", 1)] == [True]
