"""The measurements: rounds under load, cost per verb, a pinned snapshot, empty lanes, the price of a function call."""

import asyncio
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg

from bench.layout.candidates import PINNED_SETTINGS, VERBS, Candidate
from bench.layout.load import (
    BATCH,
    INSERT_BATCH,
    LEASE,
    PRIORITIES,
    Lanes,
    call,
    drain,
    enqueue,
    new_jobs,
    outcomes,
    prepare,
)
from bench.layout.retention import Kept, retain

Figures = dict[str, float]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@asynccontextmanager
async def connections(url: str, amount: int, **settings: str) -> AsyncIterator[list[asyncpg.Connection]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(amount):
            connection = await asyncpg.connect(url, server_settings=settings)
            stack.push_async_callback(connection.close)
            opened.append(connection)
        yield opened


async def blocks_hit(*active: asyncpg.Connection) -> int:
    """Shared buffers hit in this database so far, with what these connections have not reported yet."""
    for connection in active:
        if connection.get_server_version().major >= 15:
            await connection.fetch("SELECT pg_stat_force_next_flush()")
        else:
            await asyncio.sleep(1)
        await connection.fetch("SELECT 1")
    return int(
        await active[0].fetchval("SELECT blks_hit FROM pg_stat_database WHERE datname = current_database()") or 0
    )


async def written(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def processor_seconds(*active: asyncpg.Connection) -> float:
    """What the server's processes of these connections have used; not a number when they are not on this machine."""
    seconds = 0.0
    for connection in active:
        statistics_file = Path(f"/proc/{connection.get_server_pid()}/stat")
        try:
            name, _, rest = statistics_file.read_text().partition(") ")
        except OSError:
            return math.nan
        if "postgres" not in name:
            return math.nan
        user, system = rest.split()[11:13]
        seconds += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


async def loaded_round(url: str, candidate: Candidate, jobs: int) -> Figures:
    """Enqueue and drain on top of deferred, dead and finished rows, retention beside both."""
    async with connections(url, 3) as (claiming, finishing, keeping):
        await prepare(claiming, candidate)
        await claiming.execute("CHECKPOINT")
        wal, kept = await written(claiming), Kept()
        retention = asyncio.create_task(retain(keeping, candidate, range(-8, -4), kept))
        used = processor_seconds(claiming)
        enqueueing = await enqueue(claiming, jobs)
        used_enqueueing = processor_seconds(claiming) - used
        kept.stopping = True
        await retention
        wal_enqueue = await written(claiming) - wal

        await claiming.execute("VACUUM ANALYZE")
        hit, wal, kept = await blocks_hit(claiming, finishing), await written(claiming), Kept()
        retention = asyncio.create_task(retain(keeping, candidate, range(-4, 0), kept))
        used = processor_seconds(claiming, finishing)
        drained = await drain(claiming, finishing, Lanes(candidate), jobs)
        used_draining = processor_seconds(claiming, finishing) - used
        kept.stopping = True
        await retention
        wal_drain = await written(claiming) - wal
        hit = await blocks_hit(claiming, finishing, keeping) - hit
        size = await claiming.fetchval(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relkind = 'r'"
            " AND relnamespace = 'holdfast'::regnamespace"
        )
    return {
        "enqueue_rate": jobs / enqueueing,
        "drain_rate": jobs / drained.seconds,
        "enqueue_wal": wal_enqueue / jobs,
        "drain_wal": wal_drain / jobs,
        "drain_buffers": hit / jobs,
        "enqueue_cpu": used_enqueueing / jobs * 1e6,
        "drain_cpu": used_draining / jobs * 1e6,
        "claim_p50": percentile(drained.claims, 0.5) * 1000,
        "claim_p99": percentile(drained.claims, 0.99) * 1000,
        "size_mib": float(size) / 2**20,
        "partitions_dropped": kept.partitions_dropped,
        "rows_deleted": kept.rows_deleted,
        "lock_timeouts": kept.lock_timeouts,
    }


async def explained(connection: asyncpg.Connection, query: str, *arguments: object) -> Figures:
    """Runs the query and returns what this one statement cost: milliseconds, buffers, WAL."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING OFF, FORMAT JSON) {query}", *arguments)
    report = json.loads(text)[0]
    plan = report["Plan"]
    return {
        "ms": float(report["Execution Time"]),
        "buffers": float(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]),
        "wal": float(plan["WAL Bytes"]),
        "images": float(plan["WAL FPI"]),
    }


def per_job(samples: list[Figures], jobs: int) -> Figures:
    """Means over the samples without full-page images, which depend on when the last checkpoint was."""
    clean = [sample for sample in samples if not sample["images"]] or samples
    return {
        "ms": statistics.median(sample["ms"] for sample in clean),
        "buffers": statistics.fmean(sample["buffers"] for sample in clean) / jobs,
        "wal": statistics.fmean(sample["wal"] for sample in clean) / jobs,
        "with_images": float(sum(1 for sample in samples if sample["images"])),
    }


async def verb_costs(url: str, candidate: Candidate) -> dict[str, Figures]:
    """Each verb alone, by batches: the cost that the statement itself reports, so other load does not disturb it."""
    samples: dict[str, list[Figures]] = {verb: [] for verb in VERBS}
    async with connections(url, 1) as (connection,):
        await prepare(connection, candidate)
        await connection.execute("CREATE TEMP TABLE claimed (id uuid, fence bigint, attempt smallint)")
        holder, lanes = uuid4(), Lanes(candidate)
        chance = random.Random(7)

        async def claim() -> list[asyncpg.Record]:
            await connection.execute("TRUNCATE claimed")
            query = call("claim").replace("*", "id, fence, attempt", 1)
            samples["claim"].append(
                await explained(connection, f"INSERT INTO claimed {query}", *lanes.arguments(holder, everything=True))
            )
            return list(await connection.fetch("SELECT id, fence, attempt FROM claimed ORDER BY fence"))

        ids: list[UUID] = []
        for _ in range(24):
            arguments = new_jobs(INSERT_BATCH)
            ids.extend(arguments[0])  # type: ignore[arg-type]
            samples["enqueue"].append(await explained(connection, call("enqueue"), *arguments))
        for _ in range(16):
            rows = await claim()
            held = [row["id"] for row in rows], [row["fence"] for row in rows], holder
            samples["finish"].append(await explained(connection, call("finish"), *held, *outcomes(rows, chance)))
        for _ in range(4):
            rows = await claim()
            held = [row["id"] for row in rows], [row["fence"] for row in rows], holder
            for _ in range(3):
                samples["renew"].append(await explained(connection, call("renew"), *held, LEASE))
            samples["release"].append(await explained(connection, call("release"), *held))
            await claim()
            await connection.execute("UPDATE holdfast.clock SET moved = moved + interval '2 minutes'")
            samples["rescue"].append(await explained(connection, call("rescue"), BATCH))
        dead = await connection.fetch("SELECT id FROM sample.job WHERE purpose = 'dead' ORDER BY id LIMIT 2000")
        for start in range(0, 2000, BATCH):
            waiting = ids[-2000 + start : len(ids) - 2000 + start + BATCH]
            samples["cancel"].append(await explained(connection, call("cancel"), waiting))
            chosen = [row["id"] for row in dead[start : start + BATCH]]
            samples["retry"].append(await explained(connection, call("retry"), chosen))
        for identity in ids[::1000]:
            samples["show"].append(await explained(connection, call("show"), identity))
    sizes = {"enqueue": INSERT_BATCH, "show": 1}
    return {verb: per_job(costs, sizes.get(verb, BATCH)) for verb, costs in samples.items()}


@asynccontextmanager
async def pinned(url: str, by: str) -> AsyncIterator[None]:
    """Somebody else's idle transaction: a reader with a snapshot, or a writer with a transaction id."""
    async with connections(url, 1) as (other,):
        if by == "reader":
            await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await other.fetchval("SELECT count(*) FROM sample.unrelated")
        elif by == "writer":
            await other.execute("BEGIN")
            await other.execute("INSERT INTO sample.unrelated VALUES ('a transaction that stays open')")
        yield


async def pinned_rounds(
    url: str, candidate: Candidate, by: str, jobs: int, rounds: int, *, floors: bool, limit: float
) -> Figures:
    """Steady rounds of enqueue and drain; stops early when `limit` seconds have passed."""
    async with connections(url, 2) as (claiming, finishing):
        await prepare(claiming, candidate)
        lanes = Lanes(candidate, with_floors=floors)
        results: list[tuple[float, float, float]] = []
        async with pinned(url, by):
            began = time.perf_counter()
            while len(results) < rounds and time.perf_counter() - began < limit:
                await enqueue(claiming, jobs)
                hit = await blocks_hit(claiming, finishing)
                drained = await drain(claiming, finishing, lanes, jobs)
                hit = await blocks_hit(claiming, finishing) - hit
                results.append((jobs / drained.seconds, percentile(drained.claims, 0.99) * 1000, hit / jobs))
            claim = await claiming.prepare(call("claim"))
            look = time.perf_counter()
            await claim.fetch(*lanes.arguments(uuid4(), everything=True))
            look = time.perf_counter() - look
            await claiming.execute("UPDATE holdfast.clock SET moved = interval '10 minutes'")
            rescue = await explained(claiming, call("rescue"), BATCH)
    return {
        "rounds": float(len(results)),
        "first_rate": results[0][0],
        "last_rate": results[-1][0],
        "first_p99": results[0][1],
        "last_p99": results[-1][1],
        "first_buffers": results[0][2],
        "last_buffers": results[-1][2],
        "full_looks": float(len(lanes.full_looks)),
        "full_look_ms": look * 1000,
        "rescue_ms": rescue["ms"],
    }


async def lane_costs(url: str, candidate: Candidate) -> list[Figures]:
    """A claim over 10 priorities and many kinds, all lanes empty but one, or all of them empty."""
    figures: list[Figures] = []
    async with connections(url, 1) as (connection,):
        await prepare(connection, candidate)
        claim = await connection.prepare(call("claim"))
        for amount in (1, 20, 100):
            kinds = [f"kind_{number}" for number in range(amount)]
            for where, priority in (("most urgent", 0), ("least urgent", 9), ("nowhere", None)):
                lanes, times, costs = Lanes(candidate, kinds=kinds), [], []
                for number in range(24):
                    if priority is not None:
                        await connection.fetch(call("enqueue"), *new_jobs(BATCH, kinds=kinds[:1], priority=priority))
                    arguments = lanes.arguments(uuid4(), everything=True)
                    if number < 4:
                        costs.append(await explained(connection, call("claim"), *arguments))
                        continue
                    began = time.perf_counter()
                    rows = await claim.fetch(*arguments)
                    times.append(time.perf_counter() - began)
                    if len(rows) != (BATCH if priority is not None else 0):
                        raise RuntimeError(f"{len(rows)} jobs instead of a batch")
                figures.append(
                    {
                        "kinds": float(amount),
                        "lanes": float(amount * len(PRIORITIES)),
                        "jobs_at": -1.0 if priority is None else float(priority),
                        "claim_ms": statistics.median(times) * 1000,
                        "buffers": statistics.median(cost["buffers"] for cost in costs),
                    }
                )
                say(f"lanes: {amount} kinds, jobs {where}: {figures[-1]['claim_ms']:.1f} ms")
    return figures


async def full_lane_costs(url: str, candidate: Candidate) -> list[Figures]:
    """A claim when every kind has more jobs waiting than a batch takes."""
    figures: list[Figures] = []
    for amount in (1, 4, 20, 100):
        kinds = [f"kind_{number}" for number in range(amount)]
        async with connections(url, 1) as (connection,):
            await prepare(connection, candidate, preload=False)
            for _ in range(max(20, amount)):
                await connection.fetch(call("enqueue"), *new_jobs(INSERT_BATCH, kinds=kinds))
            await connection.execute("VACUUM ANALYZE")
            lanes = Lanes(candidate, kinds=kinds)
            costs = [
                await explained(connection, call("claim"), *lanes.arguments(uuid4(), everything=True))
                for _ in range(12)
            ]
        figures.append({"kinds": float(amount), **per_job(costs, BATCH)})
        say(f"full lanes of {candidate.name}: {figures[-1]}")
    return figures


async def unhandled_costs(url: str, candidate: Candidate, waiting: int = 50_000) -> Figures:
    """A claim when many older jobs of a kind that this worker does not handle are due in the same priority."""
    async with connections(url, 1) as (connection,):
        await prepare(connection, candidate, preload=False)
        for _ in range(0, waiting, INSERT_BATCH):
            await connection.fetch(call("enqueue"), *new_jobs(INSERT_BATCH, kinds=["unhandled"]))
        await enqueue(connection, 12 * BATCH)
        await connection.execute("VACUUM ANALYZE")
        lanes = Lanes(candidate)
        costs = [
            await explained(connection, call("claim"), *lanes.arguments(uuid4(), everything=True)) for _ in range(12)
        ]
    return {"waiting": float(waiting), **per_job(costs, BATCH)}


async def call_overhead(url: str, candidate: Candidate, batches: int = 60) -> dict[str, Figures]:
    """The same statements through functions and inline, batch by batch in turn, on one connection with the settings."""
    sections = candidate.sections()
    ways = {"function": (call("claim"), call("finish")), "inline": (sections["claim"], sections["finish"])}
    claims: dict[str, list[float]] = {way: [] for way in ways}
    finishes: dict[str, list[float]] = {way: [] for way in ways}
    async with connections(url, 1, **PINNED_SETTINGS) as (connection,):
        await prepare(connection, candidate)
        await enqueue(connection, 2 * batches * BATCH)
        await connection.execute("VACUUM ANALYZE")
        prepared = {
            way: (await connection.prepare(claim), await connection.prepare(finish))
            for way, (claim, finish) in ways.items()
        }
        chance, holder, lanes = random.Random(7), uuid4(), Lanes(candidate)
        for _ in range(batches):
            for way, (claim, finish) in prepared.items():
                began = time.perf_counter()
                rows = await claim.fetch(*lanes.arguments(holder, everything=True))
                claims[way].append(time.perf_counter() - began)
                held = [row["id"] for row in rows], [row["fence"] for row in rows], holder
                ended = outcomes(rows, chance)
                began = time.perf_counter()
                await finish.fetch(*held, *ended)
                finishes[way].append(time.perf_counter() - began)
    return {
        way: {
            "claim_p50": statistics.median(claims[way]) * 1000,
            "finish_p50": statistics.median(finishes[way]) * 1000,
        }
        for way in ways
    }
