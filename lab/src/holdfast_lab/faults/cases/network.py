"""Failures of the network between workers and their servers."""

import asyncio
import math
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast import Holdfast
from holdfast.domain.errors import StoreUnavailable
from holdfast_lab.faults.app import EFFECT, HOLD_GIL, THREAD, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.judge import LOST, STUCK, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import latencies
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.proxy import Cut, Proxy
from holdfast_lab.faults.record import Note, What

_DRAINED_SECONDS = 10.0
_PRODUCERS = 4
_TURN_SECONDS = 0.02
_POLL_SECONDS = 1.0
_QUIET_TIMES = 4
_ANSWERED_SECONDS = 0.1
_KEYED, _FINISH, _COMMIT = "is_new, ", ".finish(", "commit"
"""Texts that identify these statements. Each is near the beginning, which is all that a fault shows of a statement."""
_SHARES = {_KEYED: 0.1, _FINISH: 0.4, _COMMIT: 0.3}
_NAMES = {_KEYED: "an enqueue", _FINISH: "a finish", _COMMIT: "a COMMIT"}


@case(
    "R13",
    "the connection is cut before or after an enqueue, a finish or a COMMIT takes effect",
    small={"jobs": 200},
    large={"jobs": 1_000},
)
async def cut_commits(lab: Lab) -> None:
    """Producers repeat an enqueue with its key until it is accepted. Every cut must reach its producer as an error."""
    with lab.proxy() as proxy:
        async with lab.workers(2, url=proxy.url) as crew:
            producing = _Producing(lab, proxy.url)
            proxy.plan(*(Cut("either", of, times=None, share=share) for of, share in _SHARES.items()))
            await producing.run(lab.count("jobs"))
            lab.faulted()
            await lab.drained(lab.lease + 2 * _DRAINED_SECONDS)
        cuts = _cuts(proxy)
        for (of, when), number in cuts.items():
            lab.check(f"cut {when} {_NAMES[of]}", number, at_least=1)
        cut_enqueues = cuts[_KEYED, "before"] + cuts[_KEYED, "after"]
        if producing.errors < cut_enqueues:
            lab.violation(TARGET, f"{cut_enqueues} enqueues were cut, but only {producing.errors} of them failed")
        lab.check("jobs for a key", await producing.most_jobs_of_a_key(), at_most=1)
        for each in crew.processes:
            # A written retry leaves no trace of its fence, so only a retry may be refused as stale when sent again.
            if any("outcome refused" in line and "outcome=succeed" in line for line in each.output().splitlines()):
                lab.violation(TARGET, "a success whose reply was lost was refused as stale")


def _cuts(proxy: Proxy) -> dict[tuple[str, str], int]:
    return {
        (of, when): sum(
            fault.what == f"cut {when}" and of in fault.statement.replace("COMMIT", _COMMIT) for fault in proxy.faults
        )
        for of in _NAMES
        for when in ("before", "after")
    }


class _Producing:
    """Several producers, each with its own app, that go through the proxy."""

    def __init__(self, lab: Lab, url: str) -> None:
        self._lab = lab
        self._url = url
        self._key_of: dict[UUID, str] = {}
        self.errors = 0

    async def run(self, jobs: int) -> None:
        keys = [f"key {number}" for number in range(jobs)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(_PRODUCERS):
                tasks.create_task(self._produce(keys[number::_PRODUCERS]))

    async def _produce(self, keys: list[str]) -> None:
        async with _opened(self._url, self._lab.schema) as app:
            for number, key in enumerate(keys):
                kind = EFFECT if number % 4 == 3 else WORK
                while not await self._is_accepted(app, kind, key):
                    self.errors += 1

    async def _is_accepted(self, app: Holdfast, kind: str, key: str) -> bool:
        job = app.job(kind, {}, key=key)
        self._key_of[job.id] = key
        self._lab.record.note(What.ENQUEUING, job.id, kind=kind)
        try:
            (enqueued,) = await app.enqueue_many([job])
        except StoreUnavailable:
            return False
        if self._key_of.get(enqueued.id) != key:
            self._lab.violation(LOST, f"the answer to {key} names job {enqueued.id}, which has another key")
        self._lab.record.note(What.ACCEPTED, enqueued.id)
        return True

    async def most_jobs_of_a_key(self) -> int:
        there = {row["id"] for name in ("read_final", "read_open") for row in await self._lab.fetch(name)}
        counts: dict[str, int] = {}
        for id in there:
            key = self._key_of[id]
            counts[key] = counts.get(key, 0) + 1
        return max(counts.values(), default=0)


@asynccontextmanager
async def _opened(url: str, schema: str) -> AsyncIterator[Holdfast]:
    """An app that opens even if its first connections are cut."""
    app = Holdfast(url, schema=schema)
    while True:
        try:
            await app.open()
            break
        except StoreUnavailable:
            await asyncio.sleep(_TURN_SECONDS)
    try:
        yield app
    finally:
        await app.close()


@case(
    "R14",
    "all bytes to the server are silently dropped",
    small={"times": 1},
    large={"times": 5},
    # Noticing an outage may take 11/12 of half a lease: with a long lease, a busy machine can be late by the rest.
    lease=10.0,
)
async def swallowed(lab: Lab) -> None:
    """The worst moment is right after a renewal, because the next one is as far away as it can be."""
    with lab.proxy() as proxy:
        for _ in range(lab.count("times")):
            # Enqueued before there is a worker, so that one claim takes them all and they are renewed together.
            jobs = [await lab.enqueue(kind, {"seconds": 2 * lab.lease}) for kind in (WORK, HOLD_GIL, THREAD)]
            async with lab.workers(1, url=proxy.url) as crew:
                starts = [await _started(lab, job) for job in jobs]
                await _swallowed(lab, proxy, crew.processes[0], *starts)
                proxy.flow()
                lab.back()
                await lab.drained(lab.lease * 8)


async def _started(lab: Lab, job: UUID | None) -> Note:
    await lab.until(lambda: _start_of(lab, job) is not None, "a job is started")
    found = _start_of(lab, job)
    if found is None:
        raise Broken("a job was not started")
    return found


def _start_of(lab: Lab, job: UUID | None) -> Note | None:
    return next((note for note in lab.notes() if note.what is What.START and note.job == job), None)


async def _swallowed(
    lab: Lab, proxy: Proxy, worker: FaultyProcess, in_loop: Note, in_process: Note, in_thread: Note
) -> None:
    left = await _just_renewed(lab)
    proxy.swallow()
    lab.cut_off()
    since = time.monotonic()
    words = "lease keeper cannot reach the store"
    await lab.until(lambda: words in worker.output(), "the outage is noticed", lab.lease)
    lab.check("noticed after", time.monotonic() - since, "s", at_most=lab.lease / 2)
    await lab.until(lambda: _has_ended(lab, in_loop), "the async handler is stopped", lab.lease)
    await lab.until(lambda: not _exists(in_process.pid), "the handler in a process is stopped", lab.lease)
    lab.check("stopped before the end of the lease", left - (time.monotonic() - since), "s", at_least=0.0)
    words = f"is still running; it keeps its slot until it ends  job_id={in_thread.job}"
    await lab.until(lambda: words in worker.output(), "the thread is reported", lab.lease)


async def _just_renewed(lab: Lab) -> float:
    """Wait until all leases have just been renewed. Returns how long the first of them lasts."""
    patience = time.monotonic() + 2 * lab.lease
    before = None
    while time.monotonic() < patience:
        ((left,),) = await lab.fetch("read_lease_left")
        if before is not None and left > before:
            # The reply is still on its way, and a worker cut off before it arrives has not renewed, as far as it knows.
            await asyncio.sleep(_ANSWERED_SECONDS)
            return float(left) - _ANSWERED_SECONDS
        before = left
        await asyncio.sleep(_TURN_SECONDS)
    raise Broken("no lease was renewed")


def _has_ended(lab: Lab, start: Note) -> bool:
    return any(note.what is What.END and note.fence == start.fence for note in lab.notes())


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@case(
    "R16",
    "the listening connection is killed, and jobs arrive while no worker listens",
    small={"jobs": 100},
    large={"jobs": 100},
)
async def killed_listener(lab: Lab) -> None:
    """The worker listens through a proxy, and does everything else without it."""
    with lab.proxy() as proxy:
        async with lab.workers(1, poll=f"{_POLL_SECONDS:g}s", listen_url=proxy.url) as crew:
            (worker,) = crew.processes
            await _rung(lab)
            proxy.refuse()
            lab.faulted()
            await lab.until(lambda: "no wake-ups" in worker.output(), "the listener's end is noticed", 5.0)
            jobs = []
            for _ in range(_QUIET_TIMES):
                # A worker that just ended a job looks for the next one even without a ring: let these reach an idle
                # worker.
                await asyncio.sleep(lab.random.uniform(0.4, 0.6))
                jobs += [await lab.enqueue(WORK) for _ in range(lab.count("jobs") // _QUIET_TIMES)]
            await lab.until(lambda: latencies(lab.notes()).keys() >= set(jobs), "all of them are started", 10.0, STUCK)
            slowest = max((at for job, at in latencies(lab.notes()).items() if job in jobs), default=math.inf)
            lab.check("slowest start while no worker listened", slowest, "s", at_most=_POLL_SECONDS + 1)
            proxy.flow()
            lab.faulted()
            back = time.monotonic()
            await lab.until(lambda: "wake-ups are back" in worker.output(), "the worker listens again", 10.0)
            lab.check("listening again after", time.monotonic() - back, "s", at_most=5.0)
            await _rung(lab)
            await lab.drained(_DRAINED_SECONDS)


async def _rung(lab: Lab) -> None:
    """Rings reach the listener: of a few jobs that arrive one by one, most start before the next look."""
    found = []
    for _ in range(5):
        # Long enough that a worker without a listener would not look again by itself right away.
        await asyncio.sleep(lab.random.uniform(0.4, 0.6))
        job = await lab.enqueue(WORK)
        await lab.until(lambda job=job: job in latencies(lab.notes()), "a job is started")  # type: ignore[misc]
        found.append(latencies(lab.notes()).get(job or UUID(int=0), 60.0))
    lab.check("median start after a ring", statistics.median(found), "s", at_most=_POLL_SECONDS / 3)
