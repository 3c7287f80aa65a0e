"""The jobs that this process holds: waiting for a slot, running, or waiting for their outcome to be written.

One event loop changes it. The lease keeper's thread only reads snapshots and asks for interruptions.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.domain.handlers import Handler
from holdfast.domain.job import LeasedJob
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import Transition

_MOST_AT_ONCE = 1000
"""In one claim: it takes some ten milliseconds, and for longer the first of them must not wait for the last."""

_LAST_SHARE = 1 / 6


class Interruption(StrEnum):
    """Why a running handler was stopped from outside."""

    LEASE_LOST = "lease lost"
    UNRENEWED = "lease could not be renewed in time"
    CANCELED = "canceled by request"
    TIMEOUT = "timed out"
    SHUTDOWN = "worker is shutting down"


class HeldJob:
    """One leased job on its way through the worker."""

    # Defaults of the class, because a worker makes tens of thousands of them in a second and most need no other.
    started: float | None = None
    """Monotonic time from which the handler's timeout counts: infinite while it waits for a process."""
    task: asyncio.Task[None] | None = None
    """The attempt's. None until its first step is over, where that is made at once."""
    kill: Callable[[], None] | None = None
    """Ends the handler's own process at once; set only for process isolation, callable from any thread."""
    interruption: Interruption | None = None
    interrupted = 0.0
    finish_requested = False
    is_finishing = False
    """Its handler has begun to finish in a transaction of its own, which may hold the lease locked."""
    settled = False
    """An outcome was handed to the finisher, or there is none to write: nothing else may be."""
    transition: Transition
    """What the finisher is to write; there is none before it was handed over."""
    is_refused = False
    """The store refuses what is to be written, also without its data; said in the log."""
    is_over = False
    """Answered for. Noted only from the time on at which it may be written twice at once."""
    abandoned: Future[Any] | None = None
    """The thread of a handler that could not be stopped; it keeps its slot until it ends."""
    progress: Json | None = None

    def __init__(
        self, job: LeasedJob, handler: Handler, extend: float, claimed: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.job = job
        self.handler = handler
        self.extend = extend
        self.claimed = claimed
        """Time just before the claim was sent (lease_clock.py): the lease cannot end before this plus `extend`."""
        self.safe_until = claimed + extend
        """Until then the lease is surely ours. Moved on by the lease keeper, from before a renewal was sent."""
        self.loop = loop

    @property
    def id(self) -> UUID:
        return self.job.lease.id

    @property
    def waits_for_process(self) -> bool:
        return self.started == math.inf

    def nears_end(self, now: float) -> bool:
        """Of its lease: from now on nothing of it may run, because whoever stops it looks only now and then."""
        return now >= self.safe_until - self.extend * _LAST_SHARE

    @property
    def named(self) -> dict[str, str]:
        """Who it is, for log lines; an application knows its rows by their keys."""
        row = {} if self.job.row is None else {"row": self.job.row}
        return {"job_id": str(self.id), "kind": self.job.kind, **row}

    def report(self, progress: Json) -> None:
        self.progress = progress

    def finishing(self) -> None:
        self.is_finishing = True

    def interrupt(self, why: Interruption) -> None:
        """Stop the handler, from the event loop's own thread. The first reason stands."""
        if self.interruption is not None or self.settled:
            return
        self.interruption, self.interrupted = why, lease_now()
        if self.kill is not None:
            self.kill()
        # Canceled before its first step, a task would never make it; the attempt sees the interruption by itself.
        if self.task is not None and self.started is not None:
            self.task.cancel()

    def interrupt_from_thread(self, why: Interruption) -> None:
        """Stop the handler from the lease keeper's thread.

        A process dies at once even while the event loop is blocked; the rest follows as soon as the loop turns.
        """
        if self.loop.is_closed():
            return
        kill = self.kill  # read once: the event loop may set it to None at any moment
        if kill is not None and self.interruption is None:
            self.interruption, self.interrupted = why, lease_now()
            kill()
            return
        self.loop.call_soon_threadsafe(self.interrupt, why)


class Slots:
    """Who may start, and how much more to claim.

    A worker may claim a job again before it has learned that it lost the first claim: then it holds two of the same id.
    """

    def __init__(self, capacity: int, most_ahead: int) -> None:
        self.capacity = capacity
        self.held: dict[HeldJob, None] = {}
        """Dictionaries for their order, and because the lease keeper's thread copies them in one step."""
        self.waiting: deque[HeldJob] = deque()
        self.suspects: deque[HeldJob] = deque()
        """Held until the worker is empty, for each of them to run alone."""
        self.running: dict[HeldJob, None] = {}
        self.by_kind: Counter[str] = Counter()
        self._ahead = _LookAhead(most_ahead)

    def add(self, jobs: Iterable[HeldJob]) -> None:
        self._hold(jobs, self.waiting)

    def set_aside(self, suspects: Iterable[HeldJob]) -> None:
        self._hold(suspects, self.suspects)

    def _hold(self, jobs: Iterable[HeldJob], queue: "deque[HeldJob]") -> None:
        for job in jobs:
            self.held[job] = None
            self.by_kind[job.job.kind] += 1
            queue.append(job)

    @property
    def has_only_suspects(self) -> bool:
        """Nothing is held but suspects that wait for their turn."""
        return len(self.held) == len(self.suspects)

    def let_next_suspect_start(self) -> HeldJob:
        suspect = self.suspects.popleft()
        self.waiting.append(suspect)
        return suspect

    @property
    def startable(self) -> int:
        return max(0, min(len(self.waiting), self.capacity - len(self.running)))

    def next_to_start(self) -> HeldJob | None:
        if not self.waiting or len(self.running) >= self.capacity:
            return None
        job = self.waiting.popleft()
        self.running[job] = None
        return job

    def stopped_running(self, job: HeldJob) -> None:
        """The handler is over: its slot is free, its lease is held until the outcome is written."""
        if job in self.running:
            del self.running[job]
            self._ahead.done += 1
            if job not in self.held:
                self.by_kind[job.job.kind] -= 1

    def forget(self, jobs: Iterable[HeldJob]) -> None:
        """Leases that are no longer ours to keep: finished, released or lost."""
        for job in jobs:
            # A handler that could not be stopped counts for its kind's limit until it ends.
            if job in self.held:
                del self.held[job]
                self.by_kind[job.job.kind] -= job not in self.running

    def take_waiting(self) -> list[HeldJob]:
        """All jobs that wait for a slot; none waits any more."""
        waiting, self.waiting = list(self.waiting), deque()
        return waiting

    def take_suspects(self) -> list[HeldJob]:
        suspects, self.suspects = list(self.suspects), deque()
        return suspects

    def give_up_waiting(self, claimed_before: float) -> list[HeldJob]:
        """Jobs that have waited for a slot since then: their turn came later than the look-ahead expected.

        Not those for which there is a slot: they only wait for the loop, which a handler has blocked.
        """
        waiting = list(self.waiting)
        kept, rest = waiting[: self.startable], waiting[self.startable :]
        old = [job for job in rest if job.claimed < claimed_before]
        if old:
            self.waiting = deque([*kept, *(job for job in rest if job.claimed >= claimed_before)])
            self._ahead.give_up()
        return old

    @property
    def wanted(self) -> int:
        """How many more jobs to claim: the free slots and a look-ahead that follows the rate of work."""
        ahead = self._ahead.size()
        # A few more or less change nothing, and the store answers the same question as before with less work.
        ahead -= ahead % max(1, self.capacity // 4)
        if len(self.waiting) - self.startable > ahead * 3 // 4:
            # Enough to go on with: claiming for every slot that frees up would fetch fast jobs one by one.
            return 0
        free = min(self.capacity + ahead - len(self.running) - len(self.waiting), _MOST_AT_ONCE)
        # Outcomes that are not written yet count too, so that a store that is slow to write slows the claims down.
        room = 2 * (self.capacity + ahead) - len(self.held)
        return max(0, min(free, room))

    @property
    def stuck(self) -> int:
        return sum(1 for job in self.running if job.settled)


class _LookAhead:
    """As many jobs as were done in the last tenth of a second: none when jobs are slow, hundreds when they are fast."""

    _WINDOW = 0.01
    _FALL = 0.95
    _SECONDS_AHEAD = 0.1
    _TRUST = 1.2

    def __init__(self, most: int) -> None:
        self._most = most
        self._trusted = float(most)
        """After a look-ahead that was wrong it is believed again only by and by."""
        self.done = 0
        """Since the rate was last reckoned; counted up by whoever sees a handler end."""
        self._rate = 0.0
        self._since = time.monotonic()

    def give_up(self) -> None:
        self._trusted = max(1.0, min(self._trusted, self._rate * self._SECONDS_AHEAD) / 4)
        self.done, self._rate, self._since = 0, 0.0, time.monotonic()

    def size(self) -> int:
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed >= self._WINDOW:
            # Falls slowly: a window in which the store was being asked saw nothing done, and says little.
            self._rate = max(self.done / elapsed, self._rate * self._FALL ** (elapsed / self._WINDOW))
            self._trusted = min(self._most, self._trusted * self._TRUST)
            self.done, self._since = 0, now
        return int(min(self._trusted, self._rate * self._SECONDS_AHEAD))
