"""`@app.runner(name, "every tick")`: runs at the start of a process, in every tick, and with each poll of a worker."""

import asyncio
from datetime import timedelta

import pytest

from holdfast import Holdfast, InvalidInput
from tests.worker.harness import fast, until, working


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:", poll="30s")


def counted(app: Holdfast, name: str = "sync") -> list[str]:
    runs: list[str] = []

    @app.runner(name, "every tick")
    async def sync() -> None:
        runs.append(name)

    return runs


async def test_each_tick_runs_it_however_little_time_has_passed(app: Holdfast) -> None:
    runs = counted(app)
    async with app:
        for number in range(1, 4):
            report = await app.tick()
            assert len(runs) == number
            assert report.is_fine
        (schedule,) = await app.schedules.list()
        assert (schedule.timetable, schedule.run_now) == ("every 30s", 0)


async def test_a_runner_with_an_interval_runs_once_in_a_tick(app: Holdfast) -> None:
    runs = counted(app)
    async with app:
        await app.tick()
        await app.clock.advance(timedelta(minutes=1))
        await app.tick()
        assert len(runs) == 2


async def test_a_tick_for_other_runners_does_not_run_it(app: Holdfast) -> None:
    runs = counted(app)
    async with app:
        await app.tick(runners=["maintenance"])
        assert runs == []
        await app.tick()
        assert len(runs) == 1


async def test_a_paused_runner_does_not_run(app: Holdfast) -> None:
    runs = counted(app)
    async with app:
        await app.tick()
        await app.schedules.pause("sync")
        await app.tick()
        assert len(runs) == 1


async def test_a_worker_runs_it_at_its_start_and_with_each_poll(app: Holdfast) -> None:
    runs = counted(app)
    async with app:
        await app.tick()
        async with working(app, fast(poll=timedelta(seconds=1))):
            await until(lambda: len(runs) >= 2, "it runs at the start")
            await until(lambda: len(runs) >= 4, "it runs with each poll")
            (schedule,) = await app.schedules.list()
            assert schedule.timetable == "every 1s"


async def test_two_concurrent_ticks_do_not_run_it_concurrently(app: Holdfast) -> None:
    running, most = 0, 0

    @app.runner("sync", "every tick")
    async def sync() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    async with app:
        await asyncio.gather(app.tick(), app.tick())
    assert most == 1


def test_a_job_schedule_cannot_use_every_tick(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="timetable"):
        app.schedule("every tick")
