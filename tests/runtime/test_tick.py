"""One tick: runners run in order within their budgets, a failure affects only its runner, and the queue is drained."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, InvalidInput, JobState, RunningJob, StoreUnavailable
from holdfast.domain.budget import Budget
from holdfast.runtime.tick import TickLimits, TickReport, run_tick
from holdfast.settings import Settings
from tests.runtime.fakes import FakeRunner
from tests.worker.harness import Database, codes, final_job, until

pytestmark = pytest.mark.postgres


def with_settings(app: Holdfast, **settings: Any) -> Holdfast:  # noqa: ANN401
    app.settings = app.settings.changed(**settings)
    return app


@pytest.fixture
def app(database: Database) -> Holdfast:
    return with_settings(Holdfast(database.url), shutdown=timedelta(seconds=5))


def only(report: TickReport) -> Any:  # noqa: ANN401
    (part,) = (part for part in report.runners if part.runner == "queue")
    return part


async def test_runners_run_in_order_and_a_failure_stops_no_other() -> None:
    order: list[str] = []

    def named(name: str, error: Exception | None = None) -> FakeRunner:
        async def act(budget: Budget) -> None:
            order.append(name)
            if error is not None:
                raise error

        return FakeRunner(name, act)

    runners = [named("a"), named("b", StoreUnavailable("gone")), named("c", RuntimeError("a bug")), named("d")]
    report = await run_tick(runners, TickLimits(), Budget(), to_end=True)
    assert order == ["a", "b", "c", "d"]
    assert [(part.runner, part.error) for part in report.runners] == [
        ("a", None),
        ("b", "gone"),
        ("c", "RuntimeError: a bug"),
        ("d", None),
    ]
    assert (report.is_fine, report.is_complete) == (False, True)


async def test_a_runner_after_the_end_of_the_budget_is_skipped_with_the_reason() -> None:
    async def spend(budget: Budget) -> None:
        whole.end()

    whole = Budget(60)
    first, second = FakeRunner("first", spend), FakeRunner("second")
    report = await run_tick([first, second], TickLimits(), whole, to_end=True)
    assert [part.skipped for part in report.runners] == [None, "the tick's budget is spent"]
    assert (second.turns, report.is_fine, report.is_complete) == (0, True, False)


async def test_a_runner_gets_at_most_its_share_and_the_budget_of_the_tick() -> None:
    seen: list[tuple[int | None, bool]] = []

    async def look(budget: Budget) -> None:
        seen.append((budget.items_left, budget.seconds_left <= 10))

    limits = TickLimits(runner=timedelta(seconds=10), runner_items=7)
    await run_tick([FakeRunner("one", look)], limits, Budget(1000), to_end=True)
    await run_tick([FakeRunner("one", look)], TickLimits(), Budget(10), to_end=True)
    await run_tick([FakeRunner("one", look)], TickLimits(), Budget(), to_end=True)
    assert seen == [(7, True), (None, True), (None, False)]


async def test_items_of_runners_count_against_the_budget_of_the_tick() -> None:
    left: list[int | None] = []

    async def take(budget: Budget) -> None:
        left.append(budget.items_left)
        budget.take(2)

    runners = [FakeRunner(name, take) for name in ("a", "b", "c", "d")]
    report = await run_tick(runners, TickLimits(runner_items=4), Budget(items=5), to_end=True)
    assert left == [4, 3, 1]
    assert [part.skipped for part in report.runners] == [None, None, None, "the tick's budget is spent"]


async def test_a_tick_works_until_nothing_is_due_and_nothing_runs(app: Holdfast) -> None:
    @app.handler("parent")
    async def parent(job: RunningJob[Any]) -> None:
        await app.enqueue_many([app.job("child") for _ in range(3)])

    @app.handler("child")
    async def child(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0.02)

    @app.handler("broken", attempts=1)
    async def broken(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    async with app:
        await app.enqueue_many([app.job("parent") for _ in range(20)])
        await app.enqueue("broken")
        later = await app.enqueue("child", delay="1h")
        part = only(await app.tick())
        counts = await app.jobs.count()
        waiting = await app.jobs.get(later.id)
    assert (part.processed, part.failed, part.error) == (81, 1, None)
    assert part.counts == {"succeed": 80, "exhaust": 1}
    assert (counts[JobState.SUCCEEDED], counts[JobState.DEAD], counts[JobState.READY]) == (80, 1, 1)
    assert waiting is not None
    assert waiting.attempt == 0


async def test_a_tick_with_nothing_to_do_says_so(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    async with app:
        report = await app.tick()
    assert report.is_fine
    assert only(report).processed == 0


async def test_a_limit_of_items_leaves_the_rest_ready(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    with_settings(app, runner_items=4)
    async with app:
        ids = [each.id for each in await app.enqueue_many([app.job("do") for _ in range(10)])]
        assert only(await app.tick()).processed == 4
        left = [job for id in ids if (job := await app.jobs.get(id)) and job.state is JobState.READY]
        assert [job.attempt for job in left] == [0] * 6
        assert [only(await app.tick()).processed for _ in range(3)] == [4, 2, 0]


async def test_jobs_that_do_not_end_in_time_are_stopped_or_released(app: Holdfast) -> None:
    @app.handler("slow", limit=2)
    async def slow(job: RunningJob[Any]) -> None:
        await asyncio.sleep(600)

    with_settings(app, tick_max=timedelta(seconds=1))
    async with app:
        ids = [each.id for each in await app.enqueue_many([app.job("slow") for _ in range(5)])]
        report = await app.tick()
        jobs = [job for id in ids if (job := await app.jobs.get(id)) is not None]
    assert report.is_fine
    assert sorted((job.attempt, codes(job)) for job in jobs) == [(0, [])] * 3 + [(0, ["INTERRUPTED"])] * 2
    assert {job.state for job in jobs} == {JobState.READY}


async def test_a_stop_ends_a_tick_early_and_in_order(app: Holdfast) -> None:
    both_started = asyncio.Barrier(3)

    @app.handler("slow")
    async def slow(job: RunningJob[Any]) -> None:
        await both_started.wait()
        await asyncio.sleep(0.3)

    async with app:
        ids = [each.id for each in await app.enqueue_many([app.job("slow") for _ in range(100)])]
        process = app.worker(app.worker_settings(concurrency=2))
        ticking = asyncio.create_task(process.tick())
        await both_started.wait()
        process.stop()
        report = await asyncio.wait_for(ticking, 30)
        jobs = [job for id in ids if (job := await app.jobs.get(id)) is not None]
    assert report.is_fine
    done = [job for job in jobs if job.state is JobState.SUCCEEDED]
    assert only(report).processed == len(done) == 2
    assert {(job.state, job.attempt) for job in jobs if job not in done} == {(JobState.READY, 0)}


async def test_shards_together_run_all_jobs(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    async with app:
        await app.enqueue_many([app.job("do") for _ in range(60)])
        done = []
        for index in range(3):
            with_settings(app, shard_index=index, shard_count=3)
            done.append(only(await app.tick()).processed)
        counts = await app.jobs.count()
    assert counts[JobState.SUCCEEDED] == sum(done) == 60
    assert min(done) > 5


async def test_a_tick_first_rescues_jobs_and_also_runs_suspects(app: Holdfast, database: Database) -> None:
    app.handler("do")(_nothing)
    async with app:
        plain, suspect = (await app.enqueue("do")).id, (await app.enqueue("do")).id
        for id, losses in ((plain, 0), (suspect, 1)):
            _lose(database, id, losses)
        part = only(await app.tick())
        assert part.processed == 2
        assert [(await final_job(app, id)).losses for id in (plain, suspect)] == [1, 2]


def _lose(database: Database, id: UUID, losses: int) -> None:
    """Give the job an expired lease, after it lost `losses` leases before."""
    database.query("UPDATE holdfast.ready SET losses = %s, suspicion = %s WHERE id = %s", losses, losses, id)
    database.query(
        "WITH gone AS (DELETE FROM holdfast.ready WHERE id = %s RETURNING *)"
        " INSERT INTO holdfast.lease"
        " (id, claim, fence, until, claimed_at, run_at, priority, attempt, losses, suspicion, queue, kind)"
        " SELECT id, gen_random_uuid(), 1, holdfast.now() - interval '1s', holdfast.now(),"
        " run_at, priority, 1, losses, suspicion, queue, kind FROM gone",
        id,
    )


async def test_unknown_runners_are_refused(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    async with app:
        with pytest.raises(InvalidInput, match=r"'quue' is not known; this app has .*queue"):
            await app.tick(runners=["quue"])


async def test_a_process_that_has_ended_cannot_run_again(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    async with app:
        process = app.worker()
        assert (await process.tick()).is_fine
        id = (await app.enqueue("do", {})).id
        with pytest.raises(InvalidInput, match=r"create another with app.worker\(\)"):
            await process.tick()
        with pytest.raises(InvalidInput, match=r"create another with app.worker\(\)"):
            await process.run()
        job = await app.jobs.get(id)
        assert job is not None
        assert job.state is JobState.READY
        assert (await app.worker().tick()).is_fine


async def _nothing(job: RunningJob[Any]) -> None: ...


async def test_a_background_worker_also_obeys_its_limit_of_items(app: Holdfast) -> None:
    app.handler("do")(_nothing)
    with_settings(app, runner_items=3)
    async with app:
        await app.enqueue_many([app.job("do") for _ in range(30)])
        process = app.worker()
        running = asyncio.create_task(process.run())
        await until(lambda: process.tally["succeed"] == 30, "all are done, three at a time")
        process.stop()
        assert await asyncio.wait_for(running, 30) == 0


def test_settings_contain_the_budgets() -> None:
    settings = Settings.load()
    assert (settings.tick_max, settings.runner_max) == (timedelta(minutes=8), timedelta(minutes=1))
    assert settings.runner_items is None
    assert settings.changed(tick_max="5s").runner_max == timedelta(seconds=2.5)
