"""Enqueuing compared with inserting the same rows by hand, and the WAL that a job writes from insert to finish."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.targets.apps import NOTHING
from bench.targets.drains import drain
from bench.targets.figures import Figure, Line, Run, as_details, at_least, at_most, costs, ratios, run_figures
from bench.targets.measuring import BATCH, EMPTY, FEW_PAIRS, Bench, Side
from bench.targets.producing import EnqueueEach, EnqueueMany
from bench.targets.server import SCHEMA, Stage
from bench.targets.workers import Crew, at_work, drained
from holdfast_lab.bench.apart import Task, run_apart
from holdfast_lab.bench.bare import Copy, CopyPacked, InsertEach, Spent

_TaskOn = Callable[[Stage], Task[Spent]]

OTHER_BATCHES = (100, 10_000)
MOST_WAL_BYTES = 1_200


async def bulk(bench: Bench) -> Line:
    """Compare like with like: both sides prepare before timing starts, jobs on one side and records on the other."""
    await bench.server.prepare(EMPTY)
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for batch in (BATCH, *OTHER_BATCHES):
        is_judged = batch == BATCH
        most = None if is_judged else FEW_PAIRS
        pairs = await bench.in_pairs(f"batches of {batch:,}", _many(bench, batch), _records(bench, batch), most)
        name = f"bulk enqueue by {batch:,} against COPY of records"
        figures.append(ratios(name, pairs, at_least(0.8) if is_judged else None))
        figures += costs(pairs, f"by {batch:,}", f"COPY of records by {batch:,}")
        details[f"batch_{batch}"] = as_details(pairs)
    timed = await bench.in_pairs("with app.job", _many(bench, BATCH, is_making_timed=True), _records(bench, BATCH))
    packed = await bench.in_pairs("against packed bytes", _many(bench, BATCH), _packed(bench, BATCH))
    figures += [
        ratios(f"by {BATCH:,} with app.job timed too, against COPY of records", timed, None),
        run_figures(f"by {BATCH:,} with app.job timed too", [pair.measured for pair in timed])[0],
        ratios(f"by {BATCH:,} against COPY of bytes packed beforehand", packed, None),
        run_figures(f"COPY of bytes packed beforehand, by {BATCH:,}", [pair.limit for pair in packed])[0],
    ]
    return Line(figures, details | {"with_app_job": as_details(timed), "packed": as_details(packed)})


def _many(bench: Bench, batch: int, *, is_making_timed: bool = False) -> Side:
    return _side(
        bench,
        lambda stage: EnqueueMany(stage.url, SCHEMA, bench.sizes.bulk, batch, NOTHING, is_making_timed=is_making_timed),
    )


def _records(bench: Bench, batch: int) -> Side:
    return _side(bench, lambda stage: Copy(stage.url, SCHEMA, bench.sizes.bulk, batch, NOTHING))


def _packed(bench: Bench, batch: int) -> Side:
    return _side(bench, lambda stage: CopyPacked(stage.url, SCHEMA, bench.sizes.bulk, batch, NOTHING))


async def single(bench: Bench) -> Line:
    await bench.server.prepare(EMPTY)
    jobs = bench.sizes.single
    inserted = _side(bench, lambda stage: InsertEach(stage.url, SCHEMA, jobs, NOTHING))
    enqueued = _side(bench, lambda stage: EnqueueEach(stage.url, SCHEMA, jobs, NOTHING))
    pairs = await bench.in_pairs("single enqueue", enqueued, inserted)
    woken = await bench.in_pairs("single enqueue beside an idle worker", _beside_a_worker(bench), inserted)
    return Line(
        [
            ratios("single enqueue against rows inserted by hand", pairs, at_least(0.8)),
            *costs(pairs, "enqueued, no worker asleep", "inserted by hand"),
            replace(ratios("single enqueue against rows inserted by hand", woken, None), note="a worker is woken"),
            Figure("enqueued, a worker is woken", [pair.measured.rate for pair in woken], None, "jobs/s", 0),
        ],
        as_details(pairs) | {"beside_a_worker": as_details(woken)},
    )


def _beside_a_worker(bench: Bench) -> Side:
    """Enqueue while a worker on the same cores is woken and runs the jobs."""

    async def on(stage: Stage) -> Run:
        async with stage.metered() as meter, at_work(stage, Crew()):
            await stage.until_value(f"SELECT EXISTS (SELECT FROM {SCHEMA}.sleeper)")
            spent = await run_apart(EnqueueEach(stage.url, SCHEMA, bench.sizes.single, NOTHING))
            await stage.until_value(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.ready)")
        return meter.run(spent.jobs, spent.seconds)

    async def side() -> Run:
        return await bench.on_copy(EMPTY, on)

    return side


def _side(bench: Bench, task: _TaskOn) -> Side:
    async def on(stage: Stage) -> Run:
        return await metered(stage, task(stage))

    async def side() -> Run:
        return await bench.on_copy(EMPTY, on)

    return side


async def metered(stage: Stage, task: Task[Spent]) -> Run:
    async with stage.metered() as meter:
        spent = await run_apart(task)
    return meter.run(spent.jobs, spent.seconds)


async def wal(bench: Bench) -> Line:
    """Right after a checkpoint, empty tables log few pages in full, but a backlog logs most of its pages in full."""
    await bench.server.prepare(EMPTY)
    await bench.prepare_backlog()
    jobs, single = bench.sizes.wal, bench.sizes.single

    async def by_batches(stage: Stage) -> tuple[Run, Run]:
        enqueued = await metered(stage, EnqueueMany(stage.url, SCHEMA, jobs, BATCH, NOTHING))
        return enqueued, await drained(stage, jobs)

    async def one_by_one(stage: Stage) -> Run:
        return await metered(stage, EnqueueEach(stage.url, SCHEMA, single, NOTHING))

    rounds = min(FEW_PAIRS, bench.pairs)
    runs = await bench.repeated("WAL", rounds, lambda: bench.on_copy(EMPTY, by_batches))
    singles = await bench.repeated("WAL of single enqueue", rounds, lambda: bench.on_copy(EMPTY, one_by_one))
    backlogs = await bench.repeated("WAL of a drain after a checkpoint", rounds, drain(bench, Crew()))
    enqueued = [one.wal_per_job for one, _ in runs]
    worked = [other.wal_per_job for _, other in runs]
    with_images = [run.wal_per_job for run in backlogs]
    whole = [sum(each) for each in zip(enqueued, worked, strict=True)]
    after_checkpoint = [sum(each) for each in zip(enqueued, with_images, strict=True)]
    touched = [one.buffers_per_job + other.buffers_per_job for one, other in runs]
    name = "WAL per job from insert to finish, payload of 100 bytes"
    return Line(
        [
            Figure(f"{name}, without page images", whole, at_most(MOST_WAL_BYTES), "bytes", 0),
            Figure("of it enqueue, by 1,000", enqueued, None, "bytes", 0),
            Figure("of it claim and finish", worked, None, "bytes", 0),
            Figure(f"{name}, with a backlog after a checkpoint", after_checkpoint, None, "bytes", 0),
            Figure("of it claim and finish, with page images", with_images, None, "bytes", 0),
            Figure("enqueue, one at a time", [run.wal_per_job for run in singles], None, "bytes", 0),
            Figure("buffers from insert to finish", touched, None, "per job", 1),
        ],
        {
            "runs": [{"enqueued": one.as_dict(), "worked_off": other.as_dict()} for one, other in runs],
            "after_a_checkpoint": [run.as_dict() for run in backlogs],
        },
    )
