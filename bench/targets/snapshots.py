"""A steady load while another connection holds a snapshot open, so that no deleted row can be cleaned up."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from bench.targets.apps import NOTHING
from bench.targets.figures import Figure, Line, at_least, at_most, share
from bench.targets.measuring import EMPTY, PAYLOAD, Bench, say
from bench.targets.server import SCHEMA, Stage
from bench.targets.workers import Crew, Stuck, at_work, finished
from holdfast import Holdfast
from holdfast_lab.bench.apart import run_apart

MOST_TIMES_SLOWER = 3.0
HELD = 0.98
"""Share of the rate to be held: the start and end of the time are not exact."""
_WINDOW_SECONDS = 10.0
LEAST_MINUTES, MOST_MINUTES = 0.4, 9.0
"""Twice ten seconds plus a margin, and the longest that holdfast_lab/bench/apart.py gives a process."""
_WARM_UP_SECONDS = 5.0
_LAST_PART = 0.25
_TURN_SECONDS = 0.01
_IDLERS = {
    "idle reader": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM unrelated"),
    "idle writer": ("BEGIN", "INSERT INTO unrelated DEFAULT VALUES"),
}


@dataclass(frozen=True, slots=True)
class EnqueueSteadily:
    """Enqueue at this rate for this long, in steps of about a hundredth of a second. Returns the number of jobs."""

    url: str
    schema: str
    rate: int
    seconds: float
    kind: str

    async def run(self) -> int:
        app = Holdfast(self.url, schema=self.schema)
        enqueued = 0
        async with app:
            started = time.perf_counter()
            while (passed := time.perf_counter() - started) < self.seconds:
                missing = int(self.rate * passed) - enqueued
                if missing > 0:
                    await app.enqueue_many([app.job(self.kind, PAYLOAD) for _ in range(missing)])
                    enqueued += missing
                await asyncio.sleep(_TURN_SECONDS)
        return enqueued


@dataclass(frozen=True, slots=True)
class Claims:
    """The sorted durations of claims in milliseconds, for each ten seconds since the snapshot was opened.

    Claims that found nothing are included, because they have walked over dead rows as well.
    """

    windows: list[list[float]]
    empty: int = 0
    """How many of the claims found nothing."""

    @classmethod
    def read(cls, file: Path, since: float, until: float) -> "Claims":
        windows: list[list[float]] = [[] for _ in range(max(2, int((until - since) // _WINDOW_SECONDS)))]
        empty = 0
        for line in file.read_text().splitlines():
            sent, seconds, jobs = (float(part) for part in line.split())
            number = int((sent - since) // _WINDOW_SECONDS)
            if 0 <= number < len(windows):
                windows[number].append(1000 * seconds)
                empty += jobs == 0
        return cls([sorted(window) for window in windows], empty)

    @property
    def first_p99(self) -> float:
        return _p99(self.windows[:1])

    @property
    def p99s(self) -> list[float]:
        """The p99 of each ten seconds. A window without claims is left out, but it lowers the rate."""
        return [_p99([window]) for window in self.windows if window]

    def later_p99(self, part: float) -> float:
        """The p99 of the last part of the time, where growing effects show most. It never includes the first window."""
        return _p99(self.windows[min(len(self.windows) - 1, max(1, round((1 - part) * len(self.windows)))) :])

    def figures(self, who: str) -> list[Figure]:
        first, all_later, last = self.first_p99, self.later_p99(1), self.later_p99(_LAST_PART)
        worst = max(_p99([window]) for window in self.windows[1:] if window)
        number = sum(map(len, self.windows))
        return [
            Figure(
                f"{who}: claim p99, all after the first 10 s against the first 10 s",
                [all_later / first],
                at_most(MOST_TIMES_SLOWER),
                "ratio",
                note=f"{self.empty:,} of {number:,} claims found nothing and count, too",
            ),
            Figure(f"{who}: claim p99, last quarter of the time against the first 10 s", [last / first], None, "ratio"),
            Figure(f"{who}: claim p99, worst 10 s against the first 10 s", [worst / first], None, "ratio"),
            Figure(f"{who}: claim p99, first 10 s", [first], None, "ms"),
            Figure(f"{who}: claim p99, all after the first 10 s", [all_later], None, "ms"),
            Figure(f"{who}: claim p99, last quarter", [last], None, "ms"),
            Figure(f"{who}: claim p99, worst 10 s", [worst], None, "ms"),
            Figure(f"{who}: claim p99, each 10 s", self.p99s, None, "ms"),
        ]


def _p99(windows: list[list[float]]) -> float:
    times = sorted(time for window in windows for time in window)
    if not times:
        raise Stuck("no claim was sent in a part of the time that must be judged")
    return share(times, 0.99)


async def snapshots(bench: Bench) -> Line:
    await bench.server.prepare(EMPTY)
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for who in _IDLERS:
        async with bench.server.copy(EMPTY) as stage:
            found, detail = await _under_a_snapshot(bench, stage, who)
        figures += found
        details[who] = detail
    return Line(figures, details)


async def _under_a_snapshot(bench: Bench, stage: Stage, who: str) -> tuple[list[Figure], dict[str, Any]]:
    rate, seconds = bench.sizes.steady_rate, 60 * bench.sizes.snapshot_minutes
    file = stage.server.folder / f"claims of the {who}".replace(" ", "-")
    say(f"{rate:,} jobs/s for {seconds:g} s, snapshot of an {who}")
    await stage.connection.execute("CREATE TABLE unrelated (number bigint GENERATED ALWAYS AS IDENTITY)")
    task = EnqueueSteadily(stage.url, SCHEMA, rate, seconds + 2 * _WARM_UP_SECONDS, NOTHING)
    async with at_work(stage, Crew(program=("bench.targets.timed_worker", str(file)))):
        enqueuing = asyncio.create_task(run_apart(task))
        try:
            await stage.until_value(f"SELECT EXISTS (SELECT FROM {SCHEMA}.finished)")
            await asyncio.sleep(_WARM_UP_SECONDS)
            async with _held(stage, who):
                since, before = time.time(), await finished(stage)
                await asyncio.sleep(seconds)
                until, after = time.time(), await finished(stage)
            enqueued = await enqueuing
        finally:
            enqueuing.cancel()
        await stage.until_value(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.ready)")
    claims = Claims.read(file, since, until)
    done = (after - before) / (until - since)
    say(f"{who}: {done:,.0f} jobs/s, claim p99 {claims.first_p99:.2f} ms at first, {claims.later_p99(1):.2f} ms later")
    waits = await _waits(stage, since)
    return [
        Figure(f"{who}: jobs done of {rate:,}/s", [done / rate], at_least(HELD), "ratio"),
        *claims.figures(who),
        Figure(f"{who}: enqueue to start p99, first 10 s", [waits[0][1]], None, "ms", 1),
        Figure(f"{who}: enqueue to start p99, last 10 s", [waits[-1][1]], None, "ms", 1),
    ], {
        "enqueued": enqueued,
        "claim_p99_ms": claims.p99s,
        "claims": [len(one) for one in claims.windows],
        "claims_that_found_nothing": claims.empty,
        "waits_ms": waits,
    }


async def _waits(stage: Stage, since: float) -> list[tuple[float, float]]:
    """p50 and p99 of the time from enqueue to start in milliseconds, for each ten seconds."""
    rows = await stage.connection.fetch(
        "SELECT percentile_cont(ARRAY[0.5, 0.99])"
        " WITHIN GROUP (ORDER BY 1000 * extract(epoch FROM started_at - created_at)) AS shares"
        f" FROM {SCHEMA}.finished JOIN {SCHEMA}.job USING (id) WHERE created_at >= to_timestamp($1)"
        " GROUP BY floor(extract(epoch FROM created_at - to_timestamp($1)) / $2) HAVING count(*) > 100"
        " ORDER BY min(created_at)",
        since,
        _WINDOW_SECONDS,
    )
    return [(row["shares"][0], row["shares"][1]) for row in rows]


@contextlib.asynccontextmanager
async def _held(stage: Stage, who: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(stage.url)
    try:
        for sql in _IDLERS[who]:
            await connection.execute(sql)
        yield
    finally:
        await connection.close()
