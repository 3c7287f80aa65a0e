"""The measurements in sequence, each on an empty store and next to its limit from bare.py, in changing order.

The store times a drain: from the moment at which the backlog becomes due for workers that are up and asleep, to the end
of the last job. Everything runs in separate processes; this one only counts.
"""

import asyncio
import os
import platform
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from holdfast.domain.duration import to_text
from holdfast.domain.job import DEFAULT_QUEUE
from holdfast.store.postgres.driver import translated
from holdfast.worker.settings import WorkerSettings
from holdfast_lab.bench.apart import MeasurementFailed, run_all_apart, run_apart
from holdfast_lab.bench.bare import ClaimAndFinish, Copy, Gaps, InsertEach, OneTableQueue, Spent, notify_to_claim
from holdfast_lab.bench.figures import LatencyMeasure, Rate, RateMeasure, Report
from holdfast_lab.bench.place import Place, scratch_place
from holdfast_lab.bench.producing import EnqueueAfterGaps, EnqueueBatches, EnqueueEach
from holdfast_lab.bench.workers import StartWorker, started_workers

BATCH = 1_000
MOST_SINGLE = 2_000
IDLE_CALLS = 40
LOADED_CALLS = 200
POLLED_CALLS = 6
MOST_LOAD = 20_000
_IDLE_GAPS = Gaps(0.02, 0.08)
_LOADED_GAPS = Gaps(0.0, 0.02)
_POLLED_GAPS = Gaps(0.5, 1.5)
_TURN_SECONDS = 0.01
_SERVER_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "autovacuum")


@dataclass(frozen=True, slots=True)
class Step:
    """The measurement in progress, for display."""

    title: str
    number: int
    of: int


Say = Callable[[Step], None]
_Planned = tuple[str, Callable[[], Awaitable[None]]]
"""A title, and the function that measures."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much to measure."""

    jobs: int
    worker_counts: Sequence[int]
    rounds: int


async def run_bench(size: Size, store: str | None, start_worker: StartWorker, say: Say) -> Report:
    async with scratch_place(store) as place:
        bench = _Bench(place, size, start_worker)
        plan = bench.plan()
        for number, (title, measure) in enumerate(plan, start=1):
            say(Step(title, number, len(plan)))
            await measure()
        return await bench.report()


class _Bench:
    def __init__(self, place: Place, size: Size, start_worker: StartWorker) -> None:
        self._place = place
        self._size = size
        self._start_worker = start_worker
        self._rates: dict[str, list[Rate]] = defaultdict(list)
        self._waits: dict[str, list[list[float]]] = defaultdict(list)
        self._with_making: list[float] = []
        self._load_batch = 0

    def plan(self) -> list[_Planned]:
        steps: list[_Planned] = []
        for number in range(self._size.rounds):
            pairs: list[list[_Planned]] = [
                [("enqueue, one at a time", self._enqueue_each), ("bare insert", self._insert_each)],
                *(self._drain_pair(count) for count in self._size.worker_counts),
                [("bare queue of one table", self._one_table)],
                [("pick-up, idle", self._idle), ("bare pick-up, idle", self._bare_idle)],
                [("pick-up, half load", self._loaded), ("bare pick-up, half load", self._bare_loaded)],
            ]
            which = f"round {number + 1} of {self._size.rounds}: " if self._size.rounds > 1 else ""
            for pair in pairs:
                # Alternate which comes first, so that drift over time does not favor either one.
                steps += [(which + title, measure) for title, measure in (pair if number % 2 == 0 else pair[::-1])]
        return [*steps, ("pick-up, polling", self._polled)]

    def _drain_pair(self, workers: int) -> list[_Planned]:
        async def drain() -> None:
            await self._enqueue_and_drain(workers)

        async def bare() -> None:
            await self._copy_and_drain(workers)

        name = workers_text(workers)
        return [(f"bulk enqueue and drain, {name}", drain), (f"COPY of records, bare claim and finish, {name}", bare)]

    async def _enqueue_each(self) -> None:
        jobs = min(self._size.jobs, MOST_SINGLE)
        await self._timed("single", lambda: run_apart(EnqueueEach(*self._where, jobs)))

    async def _insert_each(self) -> None:
        jobs = min(self._size.jobs, MOST_SINGLE)
        await self._timed("bare insert", lambda: run_apart(InsertEach(*self._where, jobs)))

    async def _one_table(self) -> None:
        await self._timed("one table", lambda: run_apart(OneTableQueue(*self._where, self._size.jobs, BATCH)))

    async def _enqueue_and_drain(self, workers: int) -> None:
        await self._timed("bulk", self._enqueue_batches)
        # Workers take about a second to start, and not all the same. None may begin before all are ready.
        await self._place.fetch("hold_back")
        before, done = await self._place.counters(), await self._place.value("finished")
        async with started_workers(self._place, self._start_worker, workers) as started:
            await started.until_asleep()
            since = await self._place.value("let_go", [DEFAULT_QUEUE])
            await started.until_finished(done + self._size.jobs)
        finished = await self._finished_since(since)
        rate = Rate.between(before, await self._place.counters(), finished.jobs, finished.seconds)
        self._rates[f"drain {workers}"].append(rate)

    async def _enqueue_batches(self) -> Spent:
        enqueued = await run_apart(EnqueueBatches(*self._where, self._size.jobs, BATCH))
        self._with_making.append(enqueued.with_making_per_second)
        return enqueued

    async def _copy_and_drain(self, workers: int) -> None:
        both = []
        for is_overlapping in (True, False):
            copied = await self._measured(lambda: run_apart(Copy(*self._where, self._size.jobs, BATCH)))
            both.append((copied, await self._bare_drain(workers, is_overlapping)))
        # Choose in each round: which of the two is faster changes with the machine's other load.
        copied, drained = max(both, key=lambda rates: rates[1].per_second)
        self._rates["bare copy"].append(copied)
        self._rates[f"bare drain {workers}"].append(drained)

    async def _bare_drain(self, workers: int, is_overlapping: bool) -> Rate:
        before = await self._place.counters()
        loops = [ClaimAndFinish(*self._where, BATCH, is_overlapping=is_overlapping)] * workers
        running = asyncio.ensure_future(run_all_apart(loops))
        try:
            since = await self._let_go_of(running, workers)
            await running
        finally:
            running.cancel()
        finished = await self._finished_since(since)
        return Rate.between(before, await self._place.counters(), finished.jobs, finished.seconds)

    async def _let_go_of(self, running: "asyncio.Future[list[Spent]]", loops: int) -> object:
        """Hold all loops until every one is about to claim, so that none is measured while another is starting."""
        async with self._place.connection.transaction():
            await self._place.fetch("hold_claims")
            while await self._place.value("waiting_claims") < loops:
                if running.done():
                    raise MeasurementFailed("a bare loop ended before it started claiming") from running.exception()
                await asyncio.sleep(_TURN_SECONDS)
            return await self._place.value("real_time")

    async def _idle(self) -> None:
        calls = min(self._size.jobs, IDLE_CALLS)
        await self._picked_up("idle", EnqueueAfterGaps(*self._where, calls, _IDLE_GAPS), "--listen")

    async def _bare_idle(self) -> None:
        calls = min(self._size.jobs, IDLE_CALLS)
        await self._picked_up_bare("bare idle", calls, _IDLE_GAPS, 1)

    async def _loaded(self) -> None:
        calls = min(self._size.jobs, LOADED_CALLS)
        enqueuing = EnqueueAfterGaps(*self._where, calls, _LOADED_GAPS, self._batch_at_half_load)
        await self._picked_up("half load", enqueuing, "--listen")

    async def _bare_loaded(self) -> None:
        calls = min(self._size.jobs, LOADED_CALLS)
        await self._picked_up_bare("bare half load", calls, _LOADED_GAPS, self._batch_at_half_load)

    async def _polled(self) -> None:
        calls = min(max(1, self._size.jobs // 10), POLLED_CALLS)
        enqueuing = EnqueueAfterGaps(*self._where, calls, _POLLED_GAPS, warm_up_calls=1)
        await self._picked_up("polled", enqueuing, "--no-listen")

    @property
    def _batch_at_half_load(self) -> int:
        """A batch that makes half the load that this machine can enqueue and drain at once, judged by the first round.

        All rounds use the same load, which the report names.
        """
        if not self._load_batch:
            drain = median(rate.per_second for rate in self._rates[f"drain {self._size.worker_counts[0]}"])
            load = min(MOST_LOAD, 0.5 / (1 / median(self._with_making) + 1 / drain))
            self._load_batch = max(1, round(load * _LOADED_GAPS.mean))
        return self._load_batch

    async def _picked_up(self, name: str, enqueuing: EnqueueAfterGaps, option: str) -> None:
        await self._place.fetch("empty")
        async with started_workers(self._place, self._start_worker, 1, option) as started:
            returned = await run_apart(enqueuing)
            await started.until_finished(enqueuing.calls * enqueuing.batch + enqueuing.warm_up_calls)
        stamps = {row[0]: row[1] for row in await self._place.fetch("stamps")}
        if stamps.keys() != returned.keys():
            raise MeasurementFailed(f"{len(stamps):,} jobs reported their start instead of {len(returned):,}")
        self._waits[name].append([_milliseconds(stamps[id] - at) for id, at in returned.items()])

    async def _picked_up_bare(self, name: str, calls: int, gaps: Gaps, batch: int) -> None:
        await self._place.fetch("empty")
        waits = await notify_to_claim(*self._where, calls, gaps, batch=batch)
        self._waits[name].append([_milliseconds(wait) for wait in waits])

    async def _timed(self, name: str, work: Callable[[], Awaitable[Spent]]) -> None:
        self._rates[name].append(await self._measured(work))

    async def _measured(self, work: Callable[[], Awaitable[Spent]]) -> Rate:
        await self._place.fetch("empty")
        before = await self._place.counters()
        spent = await work()
        return Rate.between(before, await self._place.counters(), spent.jobs, spent.seconds)

    async def _finished_since(self, moment: object) -> Spent:
        ((jobs, seconds),) = await self._place.fetch("finished_since", moment)
        if jobs != self._size.jobs:
            raise MeasurementFailed(f"{jobs:,} jobs finished instead of {self._size.jobs:,}")
        return Spent(jobs, seconds)

    @property
    def _where(self) -> tuple[str, str]:
        return self._place.url, self._place.schema

    async def report(self) -> Report:
        rates, waits, counts = self._rates, self._waits, self._size.worker_counts
        batch = self._batch_at_half_load
        return Report(
            await self._environment(),
            await self._settings(),
            self._size.rounds,
            RateMeasure("bare insert", rates["single"], rates["bare insert"]),
            RateMeasure("COPY of records", rates["bulk"], rates["bare copy"]),
            median(self._with_making),
            {count: self._drain_measure(count) for count in counts},
            rates["one table"],
            LatencyMeasure("bare NOTIFY to claim", waits["idle"], waits["bare idle"]),
            LatencyMeasure("bare NOTIFY to claim", waits["half load"], waits["bare half load"]),
            batch / _LOADED_GAPS.mean,
            LatencyMeasure("", waits["polled"], []),
        )

    def _drain_measure(self, workers: int) -> RateMeasure:
        return RateMeasure(
            "bare claim and finish, in turn or overlapping, the faster in each round",
            self._rates[f"drain {workers}"],
            self._rates[f"bare drain {workers}"],
        )

    async def _environment(self) -> dict[str, str | int]:
        with translated():
            server: str = await self._place.connection.fetchval("SHOW server_version")
        return {
            "holdfast": version("holdfast"),
            "python": platform.python_version(),
            "postgresql": server,
            "cores": os.cpu_count() or 1,
            "store": "embedded, temporary" if self._place.is_embedded else "given",
        }

    async def _settings(self) -> dict[str, str | int]:
        worker = WorkerSettings()
        settings: dict[str, str | int] = {
            "batch": BATCH,
            "concurrency": worker.concurrency,
            "lease": to_text(worker.lease),
            "poll": to_text(worker.poll),
        }
        with translated():
            for name in _SERVER_SETTINGS:
                settings[name] = await self._place.connection.fetchval("SELECT current_setting($1)", name)
        return settings


def _milliseconds(wait: float) -> float:
    """Always above zero, although a handler can start before its enqueuer gets the reply."""
    return max(0.001, 1000 * wait)


def workers_text(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"
