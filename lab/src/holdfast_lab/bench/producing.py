"""Enqueues with Holdfast, as an application does: tasks for apart.py."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.store.postgres.driver import open_connection
from holdfast_lab.bench.app import NOTHING, STAMP, app, payload
from holdfast_lab.bench.bare import WARM_UP_CALLS, WARM_UP_SECONDS, Gaps, Spent
from holdfast_lab.bench.sql_files import bench_statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class EnqueueEach:
    """Enqueue jobs one at a time, each with a commit. An extra job warms up, as in the bare loop."""

    url: str
    schema: str
    jobs: int

    async def run(self) -> Spent:
        first, *payloads = [payload(number) for number in range(self.jobs + 1)]
        async with _opened(self.url, self.schema):
            await app.enqueue(NOTHING, first)
            started = time.perf_counter()
            for each in payloads:
                await app.enqueue(NOTHING, each)
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Enqueued(Spent):
    """`making`: the seconds that app.job took for all jobs, before timing started."""

    making: float

    @property
    def with_making_per_second(self) -> float:
        return self.jobs / (self.making + self.seconds)


@dataclass(frozen=True, slots=True)
class EnqueueBatches:
    """Enqueue jobs that were made beforehand, like the rows for COPY in the limit."""

    url: str
    schema: str
    jobs: int
    batch: int

    async def run(self) -> Enqueued:
        payloads = [payload(number) for number in range(self.jobs)]
        async with _opened(self.url, self.schema):
            started = time.perf_counter()
            jobs = [app.job(NOTHING, each) for each in payloads]
            making = time.perf_counter() - started
            batches = [jobs[first : first + self.batch] for first in range(0, self.jobs, self.batch)]
            started = time.perf_counter()
            for batch in batches:
                await app.enqueue_many(batch)
            return Enqueued(self.jobs, time.perf_counter() - started, making)


@dataclass(frozen=True, slots=True)
class EnqueueAfterGaps:
    """Enqueues `batch` jobs after each gap. One of them, in a random place, reports when its handler started.

    Returns when the call returned, for each of those.
    """

    url: str
    schema: str
    calls: int
    gaps: Gaps
    batch: int = 1
    warm_up_calls: int = WARM_UP_CALLS

    async def run(self) -> dict[UUID, float]:
        returned: dict[UUID, float] = {}
        random = Random(self.calls)  # noqa: S311 - not a secret
        async with _opened(self.url, self.schema):
            await self._warm_up()
            started = time.perf_counter()
            for at in self.gaps.times(self.calls):
                told = random.randrange(self.batch)
                jobs = [app.job(STAMP if n == told else NOTHING, payload(n)) for n in range(self.batch)]
                await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
                await app.enqueue_many(jobs)
                returned[jobs[told].id] = time.time()
        return returned

    async def _warm_up(self) -> None:
        connection = await open_connection(self.url)
        try:
            for number in range(self.warm_up_calls):
                await app.enqueue(NOTHING, payload(number))
                while await connection.fetchval(bench_statement("is_waiting", self.schema)):  # noqa: ASYNC110
                    await asyncio.sleep(WARM_UP_SECONDS)
        finally:
            await connection.close()


@asynccontextmanager
async def _opened(url: str, schema: str) -> "AsyncIterator[None]":
    app.settings = app.settings.model_copy(update={"store": url, "db_schema": schema})
    async with app:
        yield
