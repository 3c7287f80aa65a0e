"""Problems that take minutes or hours to appear: dead rows, leaks, growing tables, and commits slowed by wake-ups."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from uuid import UUID, uuid4

from holdfast.domain.lifecycle import PLAIN_SUCCESS
from holdfast.store.contract import ClaimRequest, Finish, KindClaim
from holdfast.store.opening import opened
from holdfast_lab.faults.app import WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import DONE, What
from holdfast_lab.faults.sql_files import fault_statement

_TURNS_A_SECOND = 10
_BEFORE_SECONDS = 20.0
_DRAINED_SECONDS = 30.0
_NOISE_SECONDS = 0.005
"""Below this, a p99 says more about the machine than about Holdfast: Python lets another thread run for that long."""
_CLAIMS_A_SECOND = 20
_TOLD, _UNTOLD = "20ms", "4ms"
"""The first is the default. When jobs come too fast to be rung for, a worker looks after a fifth of that time."""
_USUAL = 20
_ENOUGH_MINUTES = 30
"""In less time, a slope of memory is a guess, and tables have not been vacuumed yet."""


@dataclass(frozen=True, slots=True)
class _Served:
    """`late`: seconds from each accepted enqueue to the job's start, in order of enqueue."""

    rate: float
    late: Sequence[float]


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


async def _serve(lab: Lab, rate: int, seconds: float, on_over: Callable[[], object] = lambda: None) -> _Served:
    """Enqueue evenly and measure how well workers keep up. `on_over` runs before the figures are evaluated."""
    began = asyncio.get_running_loop().time()
    ids: list[UUID] = []
    for turn in range(int(seconds * _TURNS_A_SECOND)):
        ids += await lab.enqueue_many(WORK, rate // _TURNS_A_SECOND)
        await asyncio.sleep(max(0.0, began + (turn + 1) / _TURNS_A_SECOND - asyncio.get_running_loop().time()))
    until = time.monotonic()
    took = asyncio.get_running_loop().time() - began
    on_over()
    # The recorder uses the same monotonic clock, because a machine has only one.
    at: dict[UUID, dict[What, float]] = {id: {} for id in ids}
    for note in lab.notes():
        if note.job in at:
            at[note.job].setdefault(note.what, note.at)
    done = sum(found.get(What.END, until + 1) <= until for found in at.values())
    late = [found[What.START] - found[What.ACCEPTED] for found in at.values() if What.START in found]
    return _Served(done / took, late)


@case(
    "R20",
    "a snapshot is held open for minutes while jobs arrive at a steady rate",
    large={"minutes": 10, "rate": 500},
    lease=10.0,
)
async def a_pinned_snapshot(lab: Lab) -> None:
    """Rows that are deleted in the meantime cannot be vacuumed away, and every claim must get past them."""
    rate, seconds = lab.count("rate"), lab.size["minutes"] * 60
    # Reading all final jobs takes seconds by the end, and would dominate the measurement.
    lab.is_sampled = False
    async with lab.workers(2):
        before, claims_before = await _serve_and_claim(lab, rate, min(_BEFORE_SECONDS, seconds))
        connection = await lab.connect()
        try:
            async with connection.transaction(isolation="repeatable_read"):
                await connection.execute(fault_statement("pin_snapshot", lab.schema))
                during, claims = await _serve_and_claim(lab, rate, seconds)
        finally:
            connection.terminate()
        lab.faulted()
        await lab.drained(_DRAINED_SECONDS)
    lab.note("jobs", len(before.late) + len(during.late))
    lab.check("rate while it is held", during.rate / before.rate, "of before", at_least=0.9)
    _check_p99(lab, "a claim", claims_before, claims)
    _check_p99(lab, "the start", before.late, during.late)


def _check_p99(lab: Lab, what: str, before: Sequence[float], during: Sequence[float]) -> None:
    """Compare the last part of the time, as long as the part before, when the most dead rows are in the way."""
    if not before or len(during) < len(before):
        raise Broken(f"{what}: measured {len(before)} times before and {len(during)} times while it was held")
    usual, last = _p99(before), _p99(during[-len(before) :])
    lab.note(f"p99 of {what}, before", usual * 1000, "ms")
    lab.check(f"p99 of {what}, in the end", last / max(usual, _NOISE_SECONDS), "of before", at_most=3.0)


async def _serve_and_claim(lab: Lab, rate: int, seconds: float) -> tuple[_Served, Sequence[float]]:
    """Also measure how many seconds each claim of an extra claimer takes, one after another."""
    over = threading.Event()
    # In a separate thread, because the producers would keep this one from reading the time promptly.
    claiming = lab.beside(asyncio.to_thread(lambda: asyncio.run(_claims(lab, over))))
    try:
        served = await _serve(lab, rate, seconds, over.set)
    finally:
        over.set()
    return served, await claiming


async def _claims(lab: Lab, over: threading.Event) -> Sequence[float]:
    """Claim single jobs in a loop. Look once a second, as a worker does alongside its claims.

    Timed from the first claim that gets a job: before a look has shown it a lane, a claimer asks the server nothing.
    """
    took: list[float] = []
    has_claimed = False
    request = ClaimRequest(uuid4(), 1, ("default",), {WORK: KindClaim(timedelta(seconds=lab.lease), 1)})
    async with opened(lab.url, lab.schema) as store:
        while not over.is_set():
            if not has_claimed or len(took) % _CLAIMS_A_SECOND == 0:
                await store.store.look(["default"], [WORK])
            asked = time.monotonic()
            claimed = await store.store.claim(request)
            if has_claimed:
                took.append(time.monotonic() - asked)
            has_claimed = has_claimed or bool(claimed)
            for job in claimed:
                lab.record.note(What.START, job.lease.id, job.lease.fence, attempt=job.attempt)
                lab.record.note(What.EFFECT, job.lease.id, job.lease.fence)
                lab.record.note(What.END, job.lease.id, job.lease.fence, how=DONE)
            await store.store.finish([Finish(job.lease, PLAIN_SUCCESS) for job in claimed])
            await asyncio.sleep(1 / _CLAIMS_A_SECOND)
    lab.record.close()
    return took


@case(
    "R21",
    "16 committers on a busy queue, 200 waiters: with wake-ups and without",
    large={"rounds": 6, "seconds": 10, "waiters": 200},
    lease=10.0,
)
async def wake_ups(lab: Lab) -> None:
    """Measured in turns, because no two minutes of a machine are alike.

    A worker that is notified of jobs looks for them as often as they come. One that is not would look less often, which
    saves time that is not a cost of wake-ups. So it is set to look as often.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    connections: dict[bool, int] = {}
    for turn in range(lab.count("rounds")):
        for is_listening in (turn % 2 == 0, turn % 2 != 0):
            async with lab.workers(1, listen=is_listening, idle_backoff_min=_TOLD if is_listening else _UNTOLD):
                if turn == 0:
                    await asyncio.sleep(1.0)
                    connections[is_listening] = (await lab.fetch("count_clients", lab.place.application))[0]["count"]
                rates[is_listening].append(await _commits(lab, lab.size["seconds"]))
                lab.faulted()
                await lab.drained(lab.size["seconds"] + _DRAINED_SECONDS)
    lab.note("commits with wake-ups", median(rates[True]), "per s")
    lab.note("commits without", median(rates[False]), "per s")
    # Compare within a turn, because the machine's other load may double from one turn to the next.
    cost = 1 - median(told / untold for told, untold in zip(rates[True], rates[False], strict=True))
    lab.check("wake-ups cost", 100 * cost, "% of the commits", at_most=10.0)
    lab.check("additional connections of a worker that listens", connections[True] - connections[False], at_most=1)


async def _commits(lab: Lab, seconds: float) -> float:
    """Return the commits per second, while waiters wait for jobs that are due in an hour."""
    awaited = await lab.enqueue_many(WORK, lab.count("waiters"), delay=timedelta(hours=1))
    before = (await lab.fetch("count_clients", lab.place.application))[0]["count"]
    waiting = [lab.beside(lab.producer.wait(id, "10m")) for id in awaited]
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    made: list[UUID] = []

    async def commit() -> None:
        connection = await lab.connect()
        try:
            while loop.time() < end:
                job = lab.producer.job(WORK, {})
                await lab.producer.enqueue(job, conn=connection)
                made.append(job.id)
        finally:
            connection.terminate()

    await asyncio.gather(*(commit() for _ in range(16)))
    after = (await lab.fetch("count_clients", lab.place.application))[0]["count"]
    # One to listen; producers and the worker may open others of their pools when busy.
    lab.check("additional connections of all waiters", after - before, at_most=8)
    lab.record.note_each(What.CANCEL, awaited)
    await lab.producer.cancel(awaited)
    await asyncio.gather(*waiting)
    lab.adopt(WORK, made)
    return len(made) / seconds


@case(
    "R36",
    "an hour of load: memory, descriptors and tables do not grow",
    large={"minutes": 60, "rate": 100},
    lease=10.0,
)
async def an_hour(lab: Lab) -> None:
    """What is there after the first fifth must still be the same at the end."""
    minutes = lab.size["minutes"]
    async with lab.workers(2) as crew:
        serving = lab.beside(_serve(lab, lab.count("rate"), minutes * 60))
        samples = []
        while not serving.done() and len(crew.alive) == len(crew.processes):
            samples.append(await _sample(lab, [each.pid for each in crew.processes]))
            await asyncio.wait([serving], timeout=max(1.0, minutes * 60 / 200))
        for each in crew.processes:
            if not each.is_alive:
                lab.violation(TARGET, f"a worker ended with {each.exit_code}: {each.output()[-300:]}")
                return
        served = await serving
        lab.faulted()
        await lab.drained(_DRAINED_SECONDS)
    settled = samples[len(samples) // 5 :]
    lab.check("rate", served.rate, "per s", at_least=0.9 * lab.size["rate"])
    slope = max(_slope([(each.at, each.memory[pid]) for each in settled]) for pid in settled[0].memory)
    is_enough = minutes >= _ENOUGH_MINUTES
    lab.check("memory grows by", slope, "MB an hour", at_most=1.0 if is_enough else None)
    for pid in settled[0].descriptors:
        counts = [each.descriptors[pid] for each in settled]
        # Connections are replaced now and then, and a sample may miss one, so compare medians.
        lab.check("descriptors grow by", median(counts[-_USUAL:]) - median(counts[:_USUAL]), at_most=0)
    for name, bytes in settled[0].tables.items():
        peak = max(each.tables[name] for each in settled[: max(1, len(settled) // 4)])
        last = median(each.tables[name] for each in settled[-10:])
        # Changes of a few pages do not matter here.
        lab.check(f"{name} grows to", last / max(peak, bytes, 256 * 1024), "times", at_most=1.5 if is_enough else None)


@dataclass(frozen=True, slots=True)
class _Sample:
    """`memory` in MB, `tables` in bytes."""

    at: float
    memory: Mapping[int, float]
    descriptors: Mapping[int, int]
    tables: Mapping[str, int]


async def _sample(lab: Lab, pids: Sequence[int]) -> _Sample:
    sizes = {row["name"]: row["bytes"] for row in await lab.fetch("read_sizes")}
    return _Sample(
        time.monotonic(), {pid: _memory(pid) for pid in pids}, {pid: _descriptors(pid) for pid in pids}, sizes
    )


def _memory(pid: int) -> float:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise Broken(f"process {pid} has ended, so its memory cannot be read")
    return int(found.group(1)) / 1024


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope per hour, by least squares."""
    if len(points) < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return 3600 * sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
