"""The measurements, one after another.

A drain is timed by the store: from the first job's start to the last one's end, once nothing unfinished is left. The
workers are real `holdfast worker` processes with default settings.
"""

import asyncio
import math
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from subprocess import Popen
from uuid import UUID

from holdfast.bench.app import app
from holdfast.bench.place import Place, scratch_place
from holdfast.bench.report import Latency, Rate, Report
from holdfast.duration import to_text
from holdfast.errors import HoldfastError
from holdfast.job import JobState
from holdfast.json_text import decode
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.sql_files import quoted
from holdfast.worker.settings import WorkerSettings

StartWorker = Callable[[Sequence[str], Path], "Popen[bytes]"]
Say = Callable[[str], None]

BATCH = 1_000
MOST_SINGLE = 2_000
WOKEN_JOBS = 200
POLLED_JOBS = 40
_WOKEN_APART_SECONDS = (0.02, 0.1)
_POLLED_APART_SECONDS = (0.5, 1.5)
_TURN_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0
_SERVER_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


class _Stuck(HoldfastError):
    """A worker ended, or does nothing any more."""


async def run_bench(
    jobs: int, worker_counts: Sequence[int], store: str | None, start_worker: StartWorker, say: Say
) -> Report:
    say("preparing PostgreSQL")
    async with scratch_place(store) as place:
        app.settings = app.settings.model_copy(update={"store": place.url, "db_schema": place.schema})
        async with app:
            return await _Bench(place, start_worker, say).run(jobs, worker_counts)


class _Bench:
    def __init__(self, place: Place, start_worker: StartWorker, say: Say) -> None:
        self._place = place
        self._start_worker = start_worker
        self._say = say
        self._schema = quoted(place.schema)

    async def run(self, jobs: int, worker_counts: Sequence[int]) -> Report:
        single_jobs = min(jobs, MOST_SINGLE)
        self._say(f"enqueuing {single_jobs:,} jobs one at a time")
        single = await self._timed(single_jobs, self._enqueue_each)
        left, bulks, drains = single_jobs, [], {}
        for workers in worker_counts:
            # The first drain also works off what was enqueued one at a time, so that nothing has to be thrown away.
            self._say(f"enqueuing {jobs:,} jobs in batches of {BATCH:,}")
            bulks.append(await self._timed(jobs, self._enqueue_batches))
            drains[workers] = await self._drain(jobs + left, workers)
            left = 0
        woken = await self._latency(min(jobs, WOKEN_JOBS), _WOKEN_APART_SECONDS, "woken by NOTIFY", "--listen")
        polled = await self._latency(
            min(max(1, jobs // 10), POLLED_JOBS), _POLLED_APART_SECONDS, "polling alone", "--no-listen"
        )
        return Report(await self._environment(), await self._settings(), single, bulks[0], drains, [woken, polled])

    async def _enqueue_each(self, jobs: int) -> None:
        for number in range(jobs):
            await app.enqueue("bench.nothing", {"number": number})

    async def _enqueue_batches(self, jobs: int) -> None:
        for first in range(0, jobs, BATCH):
            numbers = range(first, min(first + BATCH, jobs))
            await app.enqueue_many([app.job("bench.nothing", {"number": number}) for number in numbers])

    async def _timed(self, jobs: int, work: Callable[[int], Awaitable[None]]) -> Rate:
        log_before = await self._log_position()
        started = time.perf_counter()
        await work(jobs)
        seconds = time.perf_counter() - started
        return Rate(jobs, seconds, await self._log_position() - log_before)

    async def _drain(self, jobs: int, workers: int) -> Rate:
        self._say(f"working off {jobs:,} jobs with {workers} worker process{'es' if workers > 1 else ''}")
        before, log_before = await app.clock.now(), await self._log_position()
        async with self._workers(workers) as processes:
            await self._until_nothing_is_left(processes)
        log_bytes = await self._log_position() - log_before
        finished, seconds = await self._finished_since(before)
        if finished != jobs:
            raise _Stuck(f"{finished:,} jobs were finished instead of {jobs:,}")
        return Rate(jobs, seconds, log_bytes)

    async def _latency(self, jobs: int, apart: tuple[float, float], how: str, option: str) -> Latency:
        self._say(f"measuring pick-up with {jobs:,} jobs and an idle worker, {how}")
        random = Random(jobs)  # noqa: S311 - the same gaps in every run
        returned: dict[str, float] = {}
        async with self._workers(1, option) as processes:
            await app.enqueue("bench.nothing")
            await self._until_nothing_is_left(processes)
            for _ in range(jobs):
                # Gaps of all lengths, or the jobs would meet the polls always at the same point.
                await asyncio.sleep(random.uniform(*apart))
                enqueued = await app.enqueue("bench.stamp")
                returned[str(enqueued.id)] = time.time()
            await self._until_nothing_is_left(processes)
        stamped = [job for id in returned if (job := await app.jobs.get(UUID(id))) and job.state is JobState.SUCCEEDED]
        if len(stamped) != jobs:
            raise _Stuck(f"{len(stamped):,} jobs succeeded instead of {jobs:,}")
        # A handler can be faster than the reply to its enqueuer.
        waits = sorted(max(0.0, decode(job.result or "0") - returned[str(job.id)]) * 1000 for job in stamped)
        p50, p95, p99 = (round(waits[math.ceil(share * jobs) - 1], 2) for share in (0.50, 0.95, 0.99))
        return Latency(how, jobs, p50, p95, p99)

    @asynccontextmanager
    async def _workers(self, count: int, *options: str) -> "AsyncIterator[list[Popen[bytes]]]":
        place = self._place
        where = ["--store", place.url, "--schema", place.schema]
        arguments = ["holdfast.bench.app:app", *where, "--log-level", "warning", *options]
        processes = [self._start_worker(arguments, place.folder / "workers.log") for _ in range(count)]
        try:
            yield processes
            for process in processes:
                process.terminate()
            await asyncio.gather(*(asyncio.to_thread(process.wait, _PATIENCE_SECONDS) for process in processes))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    await asyncio.to_thread(process.wait)

    async def _until_nothing_is_left(self, processes: "Sequence[Popen[bytes]]") -> None:
        newest, changed = -1, time.monotonic()
        while await self._value(
            f"SELECT EXISTS (SELECT FROM {self._schema}.ready) OR EXISTS (SELECT FROM {self._schema}.lease)"  # noqa: S608
        ):
            fence = await self._value(f"SELECT last_value FROM {self._schema}.fence")  # noqa: S608
            if fence != newest:
                newest, changed = fence, time.monotonic()
            if any(process.poll() is not None for process in processes):
                raise _Stuck(f"a worker ended by itself{self._last_words()}")
            if time.monotonic() - changed > _PATIENCE_SECONDS:
                raise _Stuck(f"nothing was claimed for {_PATIENCE_SECONDS:.0f} s{self._last_words()}")
            await asyncio.sleep(_TURN_SECONDS)

    async def _finished_since(self, moment: datetime) -> tuple[int, float]:
        with translated():
            row = await self._place.connection.fetchrow(
                f"SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8 "  # noqa: S608
                f"FROM {self._schema}.finished WHERE finished_at >= $1 AND state = 'succeeded'",
                moment,
            )
        return (row[0], row[1] or 0.0) if row else (0, 0.0)

    async def _log_position(self) -> int:
        return int(await self._value("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    async def _value(self, sql: str) -> int:
        with translated():
            value: int = await self._place.connection.fetchval(sql)
            return value

    def _last_words(self) -> str:
        log = self._place.folder / "workers.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"; its last line: {lines[-1]}" if lines else ""

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
