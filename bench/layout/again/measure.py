"""The measurements. Layouts take turns batch by batch, so that whatever else the machine does hits all alike."""

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg

from bench.layout.again.layouts import SCHEMA
from bench.layout.again.load import LEASE, Place, processor_microseconds
from holdfast.domain.job import DEFAULT_QUEUE, LeasedJob
from holdfast.domain.lifecycle import KEPT_ERRORS
from holdfast_lab.bench.sql_files import bench_statement

ERROR = '{"code": "UPSTREAM_TIMEOUT", "message": "the other side did not answer within ten seconds"}'

Samples = dict[str, list[float]]
Result = TypeVar("Result")


async def explained(connection: asyncpg.Connection, query: str, *arguments: object) -> Counter[str]:
    """Runs the query and returns what it cost by its own account."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING OFF, FORMAT JSON) {query}", *arguments)
    plan = json.loads(text)[0]["Plan"]
    # A statement that ends in a SELECT does not count what its CTEs changed.
    parts = (
        [plan] if plan["WAL Bytes"] else [part for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"]
    )
    return Counter(
        buffers=sum(part["Shared Hit Blocks"] + part["Shared Read Blocks"] for part in parts),
        wal=sum(part["WAL Bytes"] for part in parts),
        images=sum(part["WAL FPI"] for part in parts),
    )


async def _timed(connection: asyncpg.Connection, work: Awaitable[Result]) -> tuple[Result, float]:
    """What the work returned, and the microseconds that the server's process used for it."""
    before = processor_microseconds(connection)
    result = await work
    return result, processor_microseconds(connection) - before


async def processor_time(places: Sequence[Place], batch: int, batches: int) -> dict[str, Samples]:
    """Microseconds of the server's processor per job, for each verb."""
    samples: dict[str, Samples] = {place.layout.name: {"enqueue": [], "claim": [], "finish": []} for place in places}
    for number in range(batches):
        for place in turned(places, number):
            kept = samples[place.layout.name]
            _, used = await _timed(place.finishing, place.enqueue(batch))
            kept["enqueue"].append(used / batch)
            rows, used = await _timed(place.claiming, place.claim(batch))
            if len(rows) != batch:
                raise RuntimeError(f"{place.layout.name}: {len(rows)} jobs instead of {batch}")
            kept["claim"].append(used / batch)
            _, used = await _timed(place.finishing, place.finish(rows))
            kept["finish"].append(used / batch)
    return samples


@dataclass(slots=True)
class Explaining:
    """Runs a store's statements under EXPLAIN and notes what they cost, a claim that asks twice with both."""

    costs: dict[str, Counter[str]] = field(default_factory=dict)

    async def __call__(
        self, connection: asyncpg.Connection, verb: str, query: str, *arguments: object
    ) -> list[asyncpg.Record]:
        columns = (await connection.prepare(query)).get_attributes()
        answer = f"answer_{verb}"
        # An INSERT of changes inside its WITH is refused; who enqueues asks for no answer.
        is_answered = not verb.startswith("enqueue")
        if is_answered:
            named = ", ".join(f'"{column.name}" {column.type.name}' for column in columns)
            await connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {answer} ({named}); TRUNCATE {answer}")
            query = f"INSERT INTO {answer} {query}"
        cost = await explained(connection, query, *arguments)
        self.costs.setdefault(verb.partition("_")[0], Counter()).update(cost)
        return list(await connection.fetch(f"SELECT * FROM {answer}")) if is_answered else []


async def counters(connection: asyncpg.Connection) -> Counter[str]:
    """Of the whole server the WAL, of the database the buffers: all there is to tell what a COPY costs."""
    await connection.execute(bench_statement("flush_counters", SCHEMA))
    ((wal, buffers),) = await connection.fetch(bench_statement("counters", SCHEMA))
    return Counter({"wal": wal, "buffers": buffers})


async def log_and_buffers(place: Place, batch: int, batches: int) -> dict[str, dict[str, float]]:
    """WAL bytes and buffers per job of each verb, without samples that are known to have written full-page images."""
    costs: dict[str, list[Counter[str]]] = {"enqueue": [], "claim": [], "finish": []}
    # With a memory of its own: a claim that is explained takes longer, and is no measure of what a full look costs.
    async with place.another() as observed:
        for _ in range(batches):
            explaining = Explaining()
            before = await counters(observed.finishing)
            with observed.store.observed_by(explaining):
                await observed.enqueue(batch)
                if "enqueue" not in explaining.costs:
                    explaining.costs["enqueue"] = await counters(observed.finishing) - before
                await observed.finish(await observed.claim(batch))
            for verb, cost in explaining.costs.items():
                costs[verb].append(cost)
    return {
        verb: {
            what: statistics.median(one[what] for one in ([s for s in each if not s["images"]] or each)) / batch
            for what in ("wal", "buffers")
        }
        for verb, each in costs.items()
    }


async def rare_verbs(place: Place, batch: int) -> dict[str, dict[str, float]]:
    """WAL bytes and buffers per job of the other verbs of what ships."""
    finishing = place.finishing
    costs: dict[str, dict[str, float]] = {}

    def keep(verb: str, cost: Mapping[str, float], jobs: int = batch) -> None:
        costs[verb] = {what: cost[what] / jobs for what in ("wal", "buffers")}

    async def cost(verb: str, *arguments: object) -> Mapping[str, float]:
        return await explained(finishing, place.layout.statement(verb, len(arguments)), *arguments)

    async def claimed() -> tuple[list[UUID], list[int], list[UUID]]:
        await place.enqueue(batch)
        leases = [job.lease for job in await place.claim(batch)]
        return [each.id for each in leases], [each.fence for each in leases], [each.holder for each in leases]

    nothing = [None] * batch
    # Twice each: the first time pays for the plan and for full-page images.
    for _ in range(2):
        held = await claimed()
        keep("renew", await cost("renew", *held, [LEASE] * batch, nothing))
        keep("show, running", await cost("show", held[0][:1]), jobs=1)
        again = ["retry"] * batch, ["ready"] * batch, [timedelta(days=1)] * batch, nothing, [ERROR] * batch, nothing
        keep("finish, retried", await cost("finish", *held, *again, KEPT_ERRORS))
        keep("cancel, ready", await cost("cancel", held[0]))
        dead = ["exhaust"] * batch, ["dead"] * batch, nothing, nothing, [ERROR] * batch, nothing
        keep("finish, dead", await cost("finish", *await claimed(), *dead, KEPT_ERRORS))
        await claimed()
        await finishing.execute("UPDATE holdfast.clock SET moved = moved + interval '2 minutes'")
        # Through the store, which forgets its floors then.
        explaining = Explaining()
        with place.store.observed_by(explaining):
            await place.store.rescue(batch)
        keep("rescue", explaining.costs["rescue"])
        await place.finish(await place.claim(batch))
    return costs


@dataclass(slots=True)
class Left:
    """What several workers have to do together."""

    jobs: int


async def drain(place: Place, left: Left, batch: int) -> list[float]:
    """Claims the next batch while it finishes the one before; returns the milliseconds of the claims."""
    claims: list[float] = []

    async def claim() -> list[LeasedJob]:
        began = time.perf_counter()
        rows = await place.claim(batch)
        claims.append((time.perf_counter() - began) * 1000)
        return rows

    writing: asyncio.Task[int] | None = None
    coming = asyncio.create_task(claim())
    while left.jobs > 0:
        rows = await coming
        if writing is not None:
            written = await writing
            left.jobs -= written
            writing = None
        coming = asyncio.create_task(claim())
        if rows:
            writing = asyncio.create_task(place.finish(rows))
    await coming
    return claims


async def drain_rate(place: Place, jobs: int, batch: int, workers: int = 1) -> tuple[float, list[float]]:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(place.another()) for _ in range(workers - 1)]
        left, began = Left(jobs), time.perf_counter()
        claims = await asyncio.gather(*(drain(each, left, batch) for each in (place, *others)))
        return jobs / (time.perf_counter() - began), [one for each in claims for one in each]


async def drain_rates(
    places: Sequence[Place], jobs: int, batch: int, rounds: int, workers: int = 1
) -> dict[str, list[float]]:
    """Jobs per second, the tables vacuumed before each round."""
    rates: dict[str, list[float]] = {place.layout.name: [] for place in places}
    for number in range(rounds):
        for place in turned(places, number):
            await place.enqueue(jobs)
            await place.claiming.execute("VACUUM ANALYZE")
            rate, _ = await drain_rate(place, jobs, batch, workers)
            rates[place.layout.name].append(rate)
    return rates


async def pinned_rates(
    places: Sequence[Place], jobs: int, batch: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Rounds of enqueue and drain while another connection holds a snapshot; it pins every database of the server."""
    results: dict[str, list[dict[str, float]]] = {place.layout.name: [] for place in places}
    async with AsyncExitStack() as stack:
        for place in places:
            reader = await asyncpg.connect(place.url)
            stack.push_async_callback(reader.close)
            await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM holdfast.ready")
        for number in range(rounds):
            for place in turned(places, number):
                await place.enqueue(jobs)
                used = sum(map(processor_microseconds, (place.claiming, place.finishing)))
                rate, claims = await drain_rate(place, jobs, batch)
                used = sum(map(processor_microseconds, (place.claiming, place.finishing))) - used
                results[place.layout.name].append(
                    {"rate": rate, "processor": used / jobs, "claim_p50": statistics.median(claims)}
                )
    return results


async def unvacuumed(places: Sequence[Place], jobs: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Server microseconds of claims per job while dead rows pile up: all is enqueued first, then drained in rounds."""
    used: dict[str, list[float]] = {place.layout.name: [] for place in places}
    for place in places:
        await place.enqueue(jobs * rounds)
    for number in range(rounds):
        for place in turned(places, number):
            before = processor_microseconds(place.claiming)
            for _ in range(jobs // batch):
                await place.finish(await place.claim(batch))
            used[place.layout.name].append((processor_microseconds(place.claiming) - before) / jobs)
    return used


async def idle_costs(place: Place) -> dict[str, float]:
    """Microseconds of the server's processor for a claim that finds nothing, and for next_due after it."""
    samples: dict[str, list[float]] = {"claim": [], "next_due": []}
    for _ in range(60):
        rows, used = await _timed(place.claiming, place.claim(10))
        if rows:
            raise RuntimeError("there is something to do")
        samples["claim"].append(used)
        _, used = await _timed(place.claiming, place.store.next_due([DEFAULT_QUEUE], place.kinds))
        samples["next_due"].append(used)
    return {what: statistics.median(each) for what, each in samples.items()}


def turned(places: Sequence[Place], number: int) -> list[Place]:
    """Another one first in each round: whoever is first pays for what the others find done."""
    first = number % len(places)
    return [*places[first:], *places[:first]]
