"""Workers that are stopped, blocked or asked to end."""

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence, Set
from uuid import UUID

from holdfast.domain.claim import claims_of
from holdfast.domain.job import JobState
from holdfast.store.contract import Canceling
from holdfast_lab.faults.app import BLOCK, EFFECT, HOLD_GIL, SPIN, THREAD, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Broken, Crew
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import Attempt, What
from holdfast_lab.faults.sql_files import fault_statement

_DRAINED_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_TURN_SECONDS = 0.02
_NOISE_SECONDS = 0.5
_BACKLOG = 300
_GRACE_SECONDS = 1.5
_LASTING_SECONDS = 1.0
"""Length of a job that starts before SIGTERM and ends after it: half is long for a signal, all fits the grace."""
_BUSY_SECONDS = 20.0
_STOPPED_SECONDS = 5.0
_LEASES_OF_A_STOP = 0.9
"""The average length of a stop, with everything before and after it, in leases."""
_LEFT = (0.4, 0.5)
"""Share of a lease left after the longest possible stop: what a busy machine needs to renew it."""
_REFUSED = re.compile(r"outcome refused, lease was lost .*")
_TOLD = re.compile(r"stopping handler .*why=\"lease lost\".*")
_JOB = re.compile(r"\bjob_id=(\S+)")
_FENCE = re.compile(r"\bfence=(\d+)")
_WAITING = re.compile(r"worker is stopping .*\bwaiting=(\d+)")
_UNANSWERED = "lease keeper cannot reach the store"
_HOLDER = re.compile(r"worker started .*\bholder=(\S+)")


@case(
    "R2",
    "workers are stopped with SIGSTOP for longer than their lease, then continued",
    small={"stops": 5},
    large={"stops": 20},
    lease=2.0,
)
async def long_stops(lab: Lab) -> None:
    """Some handlers are done when their worker continues, others are still working: all their outcomes must be refused.

    The new holders are still working on the jobs at that time, so there is a lease that a stale write could destroy.
    """
    stops = lab.count("stops")
    soon = {"seconds": 0.8, "again": 0.8}
    late = {"seconds": 3 * lab.lease, "again": 0.8}
    async with lab.workers(2, concurrency=16) as crew:
        for number in range(stops):
            lasting = await lab.enqueue_many(WORK, 4, late)
            jobs = [
                *lasting,
                *await lab.enqueue_many(WORK, 4, soon),
                *await lab.enqueue_many(EFFECT, 4, soon),
                *await lab.enqueue_many(THREAD, 2, soon),
            ]
            await lab.until_started(jobs)
            # Pick a worker with a long job, because one with only short jobs might have finished them all by now.
            starts = lab.starts()
            busy = {starts[job][-1].pid for job in lasting if job in starts}
            victim = lab.random.choice([each for each in crew.alive if each.pid in busy])
            stopped = await _stop(lab, victim)
            await lab.until_started(stopped, times=2, seconds=5 * lab.lease)
            victim.go_on()
            lab.faulted()
            # Wait, so that no job loses its lease three times.
            await lab.producer.wait_many(stopped, f"{_DRAINED_SECONDS:g}s")
            lab.progress(f"{number + 1} of {stops} stopped")
        await lab.drained(3 * lab.lease + _DRAINED_SECONDS)
    _expect_refusals(lab, crew)


async def _stop(lab: Lab, worker: FaultyProcess) -> set[UUID]:
    """Stop the worker while it is at work on jobs, and return them.

    Not between `finish_in` and the commit, where it rightly keeps its job, nor before it noted a job that is done.
    """
    patience = time.monotonic() + _STOPPED_SECONDS
    while time.monotonic() < patience:
        worker.stop()
        # The notes it sent must arrive before they can be read.
        await asyncio.sleep(_LOOK_SECONDS)
        stopped = _at_work(lab, worker)
        states = await lab.states()
        is_done = any(states.get(job) == JobState.SUCCEEDED for job in stopped)
        if stopped and not is_done and not await lab.fetch("locked_leases", list(stopped)):
            return stopped
        worker.go_on()
        await asyncio.sleep(_LOOK_SECONDS)
    raise Broken(f"process {worker.pid} was never at work when it was stopped")


def _at_work(lab: Lab, worker: FaultyProcess) -> set[UUID]:
    """The jobs whose first attempt this worker has begun and not ended."""
    ended = {note.attempt for note in lab.notes() if note.what is What.END}
    return {
        job
        for job, starts in lab.starts().items()
        if len(starts) == 1 and starts[0].pid == worker.pid and starts[0].attempt not in ended
    }


def _expect_refusals(lab: Lab, crew: Crew) -> None:
    """Every overtaken attempt must have been reported by its worker, as refused or as stopped."""
    overtaken = {start.attempt for starts in lab.starts().values() for start in starts[:-1]}
    output = "\n".join(each.output() for each in crew.processes)
    refused = {_attempt(line) for line in _REFUSED.findall(output)}
    told = {_attempt(line) for line in _TOLD.findall(output)}
    lab.note("attempts overtaken", len(overtaken))
    lab.check("outcomes refused", len(refused & overtaken), at_least=1)
    lab.check("handlers notified of a lost lease", len(told & overtaken), at_least=1)
    for job, fence in overtaken - refused - told:
        lab.violation(TARGET, f"fence {fence} was overtaken, but its worker did not notice", job)


def _attempt(line: str) -> Attempt:
    """The attempt that a line of a worker's log is about."""
    job, fence = _JOB.search(line), _FENCE.search(line)
    return (UUID(job.group(1)) if job else None, int(fence.group(1)) if fence else 0)


@case(
    "R3",
    "workers are stopped with SIGSTOP for less than their lease; jobs last 10 leases",
    small={"stops": 20},
    large={"stops": 100},
    lease=2.0,
)
async def short_stops(lab: Lab) -> None:
    """The workers take turns, so that each has time to renew between two stops.

    What counts is how much of the lease is left when the worker continues. A lease is renewed when a third of it is
    over, so a stop at any moment may last less than two thirds: half of the stops last up to 0.45. Each of the
    others begins right after a renewal and lasts up to 0.6. A longer one may cost the lease, which is case R2.
    """
    stops = lab.count("stops")
    # Long enough to outlast the last stop.
    seconds_of_a_job = max(10.0, _LEASES_OF_A_STOP * stops) * lab.lease
    async with (
        lab.workers(1, queues="default,first") as first,
        lab.workers(1, queues="default,second") as second,
    ):
        jobs: list[UUID] = []
        # Both workers need some, or half of the stops would have no effect.
        for queue in ("first", "second"):
            for kind in (WORK, THREAD):
                jobs += await lab.enqueue_many(kind, 2, {"seconds": seconds_of_a_job}, queue=queue)
        await lab.until_started(jobs)
        longest = 0.0
        for number in range(stops):
            (victim,) = (first, second)[number % 2].processes
            jobs += await lab.enqueue_many(WORK, 4, {"seconds": 0.3})
            share, left = lab.random.uniform(0.1, 0.45), lab.random.uniform(*_LEFT)
            seconds = share * lab.lease
            if number // 2 % 2:
                seconds = await _just_renewed(lab, victim) - left * lab.lease
            stopped = time.monotonic()
            await victim.stop_for(seconds)
            longest = max(longest, time.monotonic() - stopped)
            lab.faulted()
            await asyncio.sleep(lab.random.uniform(0.05, 0.2) * lab.lease)
            lab.progress(f"{number + 1} of {stops} stopped")
        await lab.drained(seconds_of_a_job + _DRAINED_SECONDS)
    lab.check("longest stop", longest, "s", at_least=lab.lease / 2)
    lab.expect_one_start(jobs)


async def _just_renewed(lab: Lab, worker: FaultyProcess) -> float:
    """Wait until the oldest of its leases has just been renewed. Returns how many seconds are left of all of them."""
    holder = _holder(worker)
    connection = await lab.connect()
    try:
        before, patience = lab.lease, time.monotonic() + 2 * lab.lease
        while time.monotonic() < patience:
            asked = time.monotonic()
            left: float | None = await connection.fetchval(
                fault_statement("read_lease_left_of", lab.schema), *claims_of(holder)
            )
            if left is not None and left > before:
                return left - (time.monotonic() - asked)
            before = lab.lease if left is None else left
            await asyncio.sleep(_TURN_SECONDS)
    finally:
        connection.terminate()
    raise Broken(f"process {worker.pid} renewed nothing for two leases")


@case(
    "R4",
    "handlers block the event loop, the interpreter and their own process for 3 leases",
    small={"leases": 3},
    large={"leases": 20},
)
async def blocked_loops(lab: Lab) -> None:
    """Each kind runs in its own worker, together with others that wait for the loop. A fourth worker has claimed jobs
    together with one that blocks its loop: another worker must do them."""
    seconds = lab.size["leases"] * lab.lease
    jobs: list[UUID] = []
    workers: list[FaultyProcess] = []
    async with contextlib.AsyncExitStack() as exits:
        for kind in (BLOCK, SPIN, HOLD_GIL):
            crew = await exits.enter_async_context(lab.workers(1, queues=kind))
            workers += crew.processes
            jobs += await lab.enqueue_many(WORK, 4, {"seconds": 1}, queue=kind)
        await lab.until_started(jobs)
        for kind in (BLOCK, SPIN, HOLD_GIL):
            jobs += await lab.enqueue_many(kind, 1, {"seconds": seconds}, queue=kind)
            jobs += await lab.enqueue_many(WORK, 4, {"seconds": 0.1}, queue=kind)
        lab.faulted()
        over = asyncio.Event()
        looking = lab.beside(_widest_gap(lab, over))
        try:
            blocking = await lab.enqueue_many(BLOCK, 1, {"seconds": seconds}, queue="behind", priority=0)
            behind = await lab.enqueue_many(WORK, 4, queue="behind")
            workers += (await exits.enter_async_context(lab.workers(1, queues="behind"))).processes
            await lab.until_started(blocking)
            began = time.monotonic()
            await exits.enter_async_context(lab.workers(1, queues="behind"))
            await lab.until_started(behind)
            waited = time.monotonic() - began
            lab.check("until another worker took the jobs behind a blocked loop", waited, "s", at_most=2 * lab.lease)
            jobs += blocking + behind
            await lab.drained(seconds + _DRAINED_SECONDS)
        finally:
            over.set()
        lab.check("longest time without a renewal", await looking, "s", at_most=lab.lease / 2)
    # If the bound is missed, this shows whether an unresponsive server contributed, or only the handlers.
    lab.note("renewals without an answer", sum(each.output().count(_UNANSWERED) for each in workers))
    lab.expect_one_start(jobs)


async def _widest_gap(lab: Lab, over: asyncio.Event) -> float:
    """Return the longest time without a renewal of any lease, as the database sees it."""
    connection = await lab.connect()
    widest = 0.0
    try:
        while not over.is_set():
            gap = await connection.fetchval(fault_statement("renewal_gap", lab.schema), lab.lease)
            widest = max(widest, gap)
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        connection.terminate()
    return widest


@case(
    "R7",
    "workers are stopped with SIGTERM under load",
    small={"ends": 20, "side by side": 4},
    large={"ends": 100, "side by side": 4},
)
async def orderly_ends(lab: Lab) -> None:
    """SIGTERM excuses nothing: running jobs must end or be interrupted, and the rest must be released at once."""
    seats = lab.count("side by side")
    plans = [[lab.random.uniform(0.2, 1.0) for _ in range(lab.count("ends") // seats)] for _ in range(seats)]
    lasting: set[UUID] = set()
    async with lab.workers(seats, shutdown=f"{_GRACE_SECONDS:g}s") as crew:
        loading = lab.beside(_load(lab, lasting))
        try:
            slowest = await asyncio.gather(
                *(_end_each(lab, crew, worker, plan, lasting) for worker, plan in zip(crew.alive, plans, strict=True))
            )
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    given_back = [int(number) for each in crew.processes for number in _WAITING.findall(each.output())]
    lab.check("jobs released", sum(given_back), at_least=1)
    lab.check("exit after SIGTERM", max(slowest), "s", at_most=_GRACE_SECONDS + 2)


async def _load(lab: Lab, lasting: set[UUID]) -> None:
    """Keep enough jobs for every worker to claim ahead, but few enough to be drained in the end."""
    mixture = ((WORK, 100, 0.0), (WORK, 10, 0.2), (EFFECT, 10, 0.0), (WORK, 2, 2 * _GRACE_SECONDS))
    while True:
        if await lab.open_jobs() < _BACKLOG:
            for kind, number, seconds in mixture:
                await lab.enqueue_many(kind, number, {"seconds": seconds, "again": 0.1})
            lasting.update(await lab.enqueue_many(WORK, 12, {"seconds": _LASTING_SECONDS}))
        await asyncio.sleep(0.1)


async def _end_each(lab: Lab, crew: Crew, worker: FaultyProcess, plan: Sequence[float], lasting: Set[UUID]) -> float:
    """End a worker after each of these times and start another one. Returns how long the slowest took to end."""
    slowest = 0.0
    for seconds in plan:
        await asyncio.sleep(seconds)
        await _until_busy(lab, worker, lasting)
        slowest = max(slowest, await _orderly_end(lab, worker))
        (worker,) = await crew.start()
    return slowest


async def _until_busy(lab: Lab, worker: FaultyProcess, lasting: Set[UUID]) -> None:
    """Wait until it has just begun one of these jobs, so that it has an outcome to write after SIGTERM."""

    def has_just_begun_one() -> bool:
        jobs = lasting & _at_work(lab, worker)
        starts = lab.starts()
        return any(starts[job][0].at > time.monotonic() - _LASTING_SECONDS / 2 for job in jobs)

    await lab.until(has_just_begun_one, f"process {worker.pid} is under load", _BUSY_SECONDS)


async def _orderly_end(lab: Lab, worker: FaultyProcess) -> float:
    """End the worker and return how long that took. Jobs that it had not begun must be claimable within a second."""
    holder = _holder(worker)
    told = time.monotonic()
    worker.terminate()
    await asyncio.sleep(1.0)
    held = await lab.fetch("held_by", *claims_of(holder))
    begun = {start.attempt for starts in lab.starts().values() for start in starts}
    for row in held:
        if (row["id"], row["fence"]) not in begun:
            lab.violation(TARGET, f"job {row['id']}: not begun, but not released a second after SIGTERM", row["id"])
    if await worker.ended(_GRACE_SECONDS + 10) is None:
        lab.violation(TARGET, f"process {worker.pid} has not ended {_GRACE_SECONDS + 10:g} s after SIGTERM")
    elif worker.exit_code:
        lab.violation(TARGET, f"process {worker.pid} ended with code {worker.exit_code} after SIGTERM")
    return time.monotonic() - told


def _holder(worker: FaultyProcess) -> UUID:
    """The name by which the store knows this worker."""
    found = _HOLDER.search(worker.output())
    if found is None:
        raise Broken(f"process {worker.pid} does not say by which name it holds its leases")
    return UUID(found.group(1))


@case("R10", "running jobs are canceled while LISTEN does not work", small={"jobs": 20}, large={"jobs": 200})
async def cancels(lab: Lab) -> None:
    """Each job is canceled at a random time between two renewals. The wall drops every connection made to listen."""
    dropped = 0

    async def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dropped
        dropped += 1
        writer.transport.abort()

    wall = await asyncio.start_server(drop, "127.0.0.1", 0)
    port = wall.sockets[0].getsockname()[1]
    jobs = lab.count("jobs")
    wall_url = f"postgresql://127.0.0.1:{port}/postgres"
    async with wall, lab.workers(1, concurrency=jobs, listen_url=wall_url) as crew:
        (worker,) = crew.processes
        await lab.until(lambda: "no wake-ups" in worker.output(), "the worker reports that it gets no wake-ups", 10.0)
        ids = await lab.enqueue_many(WORK, jobs - 2, {"seconds": 60}, attempts=1)
        ids += await lab.enqueue_many(HOLD_GIL, 2, {"seconds": 60}, attempts=1)
        await lab.until_started(ids)
        plan = [lab.random.uniform(0, lab.lease) for _ in ids]
        seconds = await asyncio.gather(*(_cancel(lab, job, after) for job, after in zip(ids, plan, strict=True)))
        lab.faulted()
        await lab.drained(_DRAINED_SECONDS)
        if "wake-ups are back" in worker.output():
            lab.violation(TARGET, "the worker was able to listen")
    lab.check("dropped connections for LISTEN", dropped, at_least=1)
    # One renewal, plus the time to stop the handler, write its end and see it here on a busy machine.
    lab.check("longest time until a cancel was seen", max(seconds), "s", at_most=lab.lease / 3 + 2 * _NOISE_SECONDS)
    lab.expect_one_start(ids)


async def _cancel(lab: Lab, job: UUID, after: float) -> float:
    """Cancel the job after that time. Returns how long it went on."""
    await asyncio.sleep(after)
    lab.record.note(What.CANCEL, job)
    (answer,) = await lab.producer.cancel([job])
    if answer is not Canceling.REQUESTED:
        lab.violation(TARGET, f"job {job}: is running, but the answer to its cancel is {answer}", job)
    asked = time.monotonic()
    ended = await lab.producer.wait(job, "20s")
    if ended.state is not JobState.CANCELED:
        lab.violation(TARGET, f"job {job}: is {ended.state} 20 s after it was canceled", job)
    return time.monotonic() - asked
