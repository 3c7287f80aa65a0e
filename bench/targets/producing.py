"""Enqueuing with Holdfast in separate processes: the counterparts of holdfast_lab/bench/bare.py."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from bench.targets.measuring import PAYLOAD
from holdfast import Holdfast
from holdfast.domain.job import JobState, NewJob
from holdfast_lab.bench.bare import WARM_UP_CALLS, WARM_UP_SECONDS, Gaps, Spent


@dataclass(frozen=True, slots=True)
class EnqueueMany:
    """Make the jobs before timing starts, like the records of a bare COPY, unless `is_making_timed`."""

    url: str
    schema: str
    jobs: int
    batch: int
    kind: str
    is_making_timed: bool = False

    async def run(self) -> Spent:
        app = Holdfast(self.url, schema=self.schema)
        sizes = [min(self.batch, self.jobs - first) for first in range(0, self.jobs, self.batch)]
        async with app:
            batches: Iterable[list[NewJob]] = ([app.job(self.kind, PAYLOAD) for _ in range(size)] for size in sizes)
            if not self.is_making_timed:
                batches = list(batches)
            started = time.perf_counter()
            for batch in batches:
                await app.enqueue_many(batch)
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class EnqueueEach:
    """Enqueue one job after another, each committed before the next."""

    url: str
    schema: str
    jobs: int
    kind: str

    async def run(self) -> Spent:
        app = Holdfast(self.url, schema=self.schema)
        async with app:
            # Warm up, like the bare loop.
            await app.enqueue(self.kind, PAYLOAD)
            started = time.perf_counter()
            for _ in range(self.jobs):
                await app.enqueue(self.kind, PAYLOAD)
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class EnqueueInGaps:
    """Enqueue one job after each gap, for a worker that sleeps in between. Returns when each call returned."""

    url: str
    schema: str
    jobs: int
    gaps: Gaps
    kind: str

    async def run(self) -> dict[UUID, float]:
        app = Holdfast(self.url, schema=self.schema)
        returned: dict[UUID, float] = {}
        async with app:
            for _ in range(WARM_UP_CALLS):
                await app.enqueue(self.kind, PAYLOAD)
                while (await app.jobs.count())[JobState.READY]:  # noqa: ASYNC110 - another process ends it
                    await asyncio.sleep(WARM_UP_SECONDS)
            started = time.perf_counter()
            for at in self.gaps.times(self.jobs):
                await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
                enqueued = await app.enqueue(self.kind, PAYLOAD)
                returned[enqueued.id] = time.time()
        return returned
