"""The footprint of a worker process: its memory over a million jobs, and its load while idle."""

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.targets.apps import NOTHING
from bench.targets.figures import Figure, Line, at_most, below
from bench.targets.measuring import EMPTY, Bench, enqueue, say
from bench.targets.server import SCHEMA, Server
from bench.targets.workers import Crew, at_work, finished, now, seconds_taken, until_finished

MOST_MEGABYTES = 120.0
FLAT = 1.1
MOST_QUERIES = 1.0
MOST_CPU_PERCENT = 0.5
_SETTLE_SECONDS = 5.0
# Our own transactions between the two readings: the first reading itself, and the flush before the second. Counting
# statements does not need that flush.
_OWN_TRANSACTIONS = 2


async def memory(bench: Bench) -> Line:
    await bench.server.prepare(EMPTY)
    jobs = bench.sizes.memory
    async with bench.server.copy(EMPTY) as stage:
        await enqueue(stage, jobs, NOTHING)
        await stage.connection.execute("VACUUM (ANALYZE)")
        await bench.server.administrator.execute("CHECKPOINT")
        say(f"working off {jobs:,} jobs")
        since, before = await now(stage), await finished(stage)
        samples: list[tuple[int, float]] = []
        async with at_work(stage, Crew()) as (process,):

            def sample(done: int) -> None:
                samples.append((done, _megabytes(process.pid, "VmRSS")))

            await until_finished(stage, jobs, before, [process], sample)
            end, peak = _megabytes(process.pid, "VmRSS"), _megabytes(process.pid, "VmHWM")
        seconds = await seconds_taken(stage, since)
    first = [size for done, size in samples if 0 < done <= jobs / 4] or [samples[0][1]]
    last = [size for done, size in samples if done > jobs * 3 / 4] or [end]
    return Line(
        [
            Figure(f"worker's memory, {jobs:,} jobs drained: peak", [peak], below(MOST_MEGABYTES), "MB", 1),
            Figure(
                "last quarter against the first", [statistics.median(last) / statistics.median(first)], at_most(FLAT)
            ),
            Figure("first quarter", [statistics.median(first)], None, "MB", 1),
            Figure("last quarter", [statistics.median(last)], None, "MB", 1),
            Figure("at the end", [end], None, "MB", 1),
            Figure("rate", [jobs / seconds], None, "jobs/s", 0),
        ],
        {"samples": samples},
    )


async def idle(bench: Bench) -> Line:
    await bench.server.prepare(EMPTY)
    seconds = bench.sizes.idle_seconds
    async with (
        bench.server.copy(EMPTY) as stage,
        _without_autovacuum(bench.server),
        at_work(stage, Crew()) as (process,),
    ):
        await stage.until_value(f"SELECT EXISTS (SELECT FROM {SCHEMA}.sleeper)")
        # Within a minute of its start a worker runs maintenance, and then every ten minutes: that is not idling.
        await stage.until_value(f"SELECT EXISTS (SELECT FROM {SCHEMA}.maintenance)")
        await asyncio.sleep(_SETTLE_SECONDS)
        say(f"an idle worker for {seconds:g} s")
        counts_statements = await stage.counts_statements()
        count, own = (stage.statements, 1) if counts_statements else (stage.transactions, _OWN_TRANSACTIONS)
        before, cpu, started = await count(), _cpu_seconds(process.pid), time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - started
        used = _cpu_seconds(process.pid) - cpu
        queries = await count() - before - own
    counted = "statements" if counts_statements else "transactions: the server has no pg_stat_statements"
    return Line(
        [
            Figure("idle worker: queries", [queries / passed], at_most(MOST_QUERIES), "per second", note=counted),
            Figure("idle worker: processor", [100 * used / passed], below(MOST_CPU_PERCENT), "% of a core"),
        ],
        {"seconds": passed, "queries": queries, "counted": counted, "cpu_seconds": used},
    )


@contextlib.asynccontextmanager
async def _without_autovacuum(server: Server) -> AsyncIterator[None]:
    """Disable autovacuum, whose transactions would be counted with the worker's, unless the server is not ours."""
    if not server.is_ours:
        yield
        return
    await server.administrator.execute("ALTER SYSTEM SET autovacuum = off")
    await server.administrator.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        await server.administrator.execute("ALTER SYSTEM RESET autovacuum")
        await server.administrator.execute("SELECT pg_reload_conf()")


def _megabytes(process: int, field: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) * 1024 / 1_000_000


def _cpu_seconds(process: int) -> float:
    # Skip the name, which may contain spaces and parentheses; user and system time are fields 12 and 13 after it.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
