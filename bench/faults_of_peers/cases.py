"""The faults, in the same sizes as in Holdfast's own laboratory. The same seed gives all peers the same faults."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from bench.faults_of_peers.evidence import number_attempts
from bench.faults_of_peers.lab import LEASE_SECONDS, PeerLab
from holdfast_lab.faults.crew import came_true
from holdfast_lab.faults.record import DONE, Note, What

_RATE = 40
_ENOUGH = 0.95
_RECOVERY_SECONDS = 8.0
_PAUSED_JOBS = 16
"""Enough for two workers, so that slots are left for the jobs that a third one held."""


@dataclass(frozen=True, slots=True)
class PeerCase:
    name: str
    title: str
    run: Callable[[PeerLab], Awaitable[None]]


async def kills(lab: PeerLab, jobs: int = 2_000, number: int = 10) -> None:
    async with lab.workers() as crew:
        enqueuing = asyncio.create_task(_enqueue(lab, jobs))
        for count in range(number):
            await asyncio.sleep(lab.random.uniform(0.2, 0.8))
            await crew.kill(lab.random.choice(crew.alive))
            lab.faulted()
            await crew.start()
            lab.say(f"{count + 1} of {number} killed")
        await enqueuing
        await lab.drained()


async def _enqueue(lab: PeerLab, jobs: int, batch: int = 50) -> None:
    # In turn rather than at random: the order of random draws would depend on timing, and the faults on that order.
    seconds = cycle((0, 0, 0.05, 0.2))
    for first in range(0, jobs, batch):
        await lab.enqueue(min(batch, jobs - first), next(seconds))
        # Slow enough that there is work until the last kill.
        await asyncio.sleep(0.25)


async def pauses(lab: PeerLab, number: int = 5) -> None:
    """Stop a worker until another one has started one of its jobs again, then continue it while that one runs."""
    async with lab.workers() as crew:
        for count in range(number):
            await lab.enqueue(_PAUSED_JOBS, LEASE_SECONDS)
            await came_true(partial(_are_running, lab, _PAUSED_JOBS), LEASE_SECONDS / 2)
            notes = lab.notes()
            victim = lab.random.choice([each for each in crew.alive if _running(notes, each.pid)] or crew.alive)
            victim.stop()
            held = _running(lab.notes(), victim.pid)
            lab.faulted()
            await asyncio.sleep(LEASE_SECONDS)
            await came_true(partial(_is_taken, lab, held, victim.pid), 12)
            victim.go_on()
            lab.faulted()
            lab.say(f"{count + 1} of {number} stopped and continued, {len(held)} jobs in hand")
            await came_true(lambda: not _unfinished(lab.notes()), 2 * LEASE_SECONDS)
        await lab.drained()


async def blocks(lab: PeerLab, each: int = 1) -> None:
    """Block the event loop for three leases, and then do the same in plain handlers, which get a thread."""
    async with lab.workers():
        for how in ("sleep", "spin"):
            await lab.enqueue(each, 3 * LEASE_SECONDS, how=how)
        await lab.enqueue(10, 0.5)
        lab.faulted()
        await lab.emptied()
        await lab.enqueue(each, 3 * LEASE_SECONDS, how="sleep", kind="thread")
        await lab.enqueue(each, 3 * LEASE_SECONDS, how="spin", kind="thread")
        lab.faulted()
        await lab.drained()


async def restarts(lab: PeerLab, number: int = 2) -> None:
    over = asyncio.Event()
    async with lab.workers():
        loading = asyncio.create_task(lab.load(_RATE, over))
        await asyncio.sleep(3)
        moments = []
        for _ in range(number):
            lab.cut_off()
            await lab.server.stop_immediately()
            await lab.server.start()
            lab.back()
            moments.append(time.monotonic())
            await asyncio.sleep(_RECOVERY_SECONDS)
        over.set()
        await loading
        await lab.drained()
    # Computed afterwards, because reading the notes during the run would slow down the producer.
    notes = lab.notes()
    times = [at_rate_after(notes, moment, _RECOVERY_SECONDS) for moment in moments]
    lab.figures["at its rate again after, s"] = (
        None if None in times else max(each for each in times if each is not None)
    )


async def cuts(lab: PeerLab, seconds: float = 15, per_second: int = 5) -> None:
    over = asyncio.Event()
    async with lab.workers():
        loading = asyncio.create_task(lab.load(_RATE, over))
        await asyncio.sleep(2)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await lab.kill_connections(1)
            await asyncio.sleep(1 / per_second)
        over.set()
        await loading
        lab.faulted()
        await lab.drained()


CASES: Sequence[PeerCase] = (
    PeerCase("R1", "2,000 jobs, 10 workers killed", kills),
    PeerCase("R2", "5 workers stopped for longer than the lease, then continued", pauses),
    PeerCase("R4", "handlers that block the event loop for 3 leases", blocks),
    PeerCase("R11", "PostgreSQL restarted twice in `immediate` mode, 8 s of load after each", restarts),
    PeerCase("R12", "5 connections killed per second for 15 s", cuts),
)


def _unfinished(notes: Sequence[Note]) -> set[str]:
    """The tokens of attempts that have not ended."""
    started = {note.more["token"] for note in notes if note.what is What.START}
    return started - {note.more["token"] for note in notes if note.what is What.END}


def _running(notes: Sequence[Note], pid: int) -> list[Note]:
    unfinished = _unfinished(notes)
    return [note for note in notes if note.what is What.START and note.pid == pid and note.more["token"] in unfinished]


def _are_running(lab: PeerLab, number: int) -> bool:
    return len(_unfinished(lab.notes())) >= number


def _is_taken(lab: PeerLab, held: Sequence[Note], pid: int) -> bool:
    """Whether another process has started one of those jobs again."""
    jobs = {note.job for note in held}
    starts = [note for note in number_attempts(lab.notes()) if note.what is What.START and note.job in jobs]
    return any(note.fence > 1 and note.pid != pid for note in starts)


def at_rate_after(notes: Sequence[Note], moment: float, seconds: float) -> float | None:
    """Seconds until workers did as many jobs per second as were accepted, or None if that took too long."""
    ends = [note.at for note in notes if note.what is What.END and note.more["how"] == DONE and note.at > moment]
    accepted = [note.at for note in notes if note.what is What.ACCEPTED and note.at > moment]
    for begin in ends:
        if begin > moment + seconds - 1:
            break
        wanted = sum(begin <= at < begin + 1 for at in accepted)
        if wanted and sum(begin <= at < begin + 1 for at in ends) >= _ENOUGH * wanted:
            return round(begin - moment, 1)
    return None
