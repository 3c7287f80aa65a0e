"""The jobs that this process holds: waiting for a slot, running, or waiting for their outcome to be written.

One event loop changes it. The lease keeper's thread only reads snapshots and asks for interruptions.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.handlers import Handler
from holdfast.job import LeasedJob
from holdfast.json_text import Json
from holdfast.outcome import Outcome


class Interruption(StrEnum):
    """Why a running handler was stopped from outside."""

    LEASE_LOST = "lease lost"
    UNRENEWED = "lease could not be renewed in time"
    CANCELED = "canceled by request"
    TIMEOUT = "timed out"
    SHUTDOWN = "worker is shutting down"


class HeldJob:
    """One leased job on its way through the worker."""

    __slots__ = (
        "abandoned",
        "claimed",
        "extend",
        "finish_requested",
        "handler",
        "interrupted",
        "interruption",
        "job",
        "kill",
        "loop",
        "progress",
        "settled",
        "started",
        "task",
    )

    def __init__(
        self, job: LeasedJob, handler: Handler, extend: float, claimed: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.job = job
        self.handler = handler
        self.extend = extend
        self.claimed = claimed
        """Monotonic time just before the claim was sent: the lease cannot end before this plus `extend`."""
        self.started: float | None = None
        self.task: asyncio.Task[Outcome | None] | None = None
        self.loop = loop
        self.kill: Callable[[], None] | None = None
        """Ends the handler's own process at once; set only for process isolation, callable from any thread."""
        self.interruption: Interruption | None = None
        self.interrupted = 0.0
        self.finish_requested = False
        self.settled = False
        """An outcome was handed to the finisher, or there is none to write: nothing else may be."""
        self.abandoned: Future[Any] | None = None
        """The thread of a handler that could not be stopped; it keeps its slot until it ends."""
        self.progress: Json | None = None

    @property
    def id(self) -> UUID:
        return self.job.lease.id

    @property
    def fence(self) -> int:
        return self.job.lease.fence

    @property
    def named(self) -> dict[str, str]:
        """Who it is, for log lines; an application knows its rows by their keys."""
        row = {} if self.job.row is None else {"row": self.job.row}
        return {"job_id": str(self.id), "kind": self.job.kind, **row}

    def interrupt(self, why: Interruption) -> None:
        """Stop the handler, from the event loop's own thread. The first reason stands."""
        if self.interruption is not None or self.settled:
            return
        self.interruption, self.interrupted = why, time.monotonic()
        if self.kill is not None:
            self.kill()
        if self.task is not None:
            self.task.cancel()

    def interrupt_from_thread(self, why: Interruption) -> None:
        """Stop the handler from the lease keeper's thread.

        A process dies at once even while the event loop is blocked; the rest follows as soon as the loop turns.
        """
        if self.loop.is_closed():
            return
        kill = self.kill  # read once: the event loop may set it to None at any moment
        if kill is not None and self.interruption is None:
            self.interruption, self.interrupted = why, time.monotonic()
            kill()
            return
        self.loop.call_soon_threadsafe(self.interrupt, why)


class Slots:
    """Who may start, and how much more to claim.

    Keyed by fence, because a worker may claim a job again before it has learned that it lost the first claim.
    """

    def __init__(self, capacity: int, most_ahead: int) -> None:
        self.capacity = capacity
        self.held: dict[int, HeldJob] = {}
        self.waiting: deque[HeldJob] = deque()
        self.running: dict[int, HeldJob] = {}
        self.by_kind: Counter[str] = Counter()
        self.on_freed: Callable[[], None] = lambda: None
        self._ahead = _LookAhead(most_ahead)

    def add(self, job: HeldJob) -> None:
        self.held[job.fence] = job
        self.by_kind[job.job.kind] += 1
        self.waiting.append(job)

    def next_to_start(self) -> HeldJob | None:
        if not self.waiting or len(self.running) >= self.capacity:
            return None
        job = self.waiting.popleft()
        self.running[job.fence] = job
        return job

    def stopped_running(self, job: HeldJob) -> None:
        """The handler is over: its slot is free, its lease is held until the outcome is written."""
        if self.running.pop(job.fence, None) is not None:
            self._ahead.count()
            self._over(job)

    def forget(self, job: HeldJob) -> None:
        """The lease is no longer ours to keep: finished, released or lost."""
        if self.held.pop(job.fence, None) is not None:
            self._over(job)

    def _over(self, job: HeldJob) -> None:
        # A handler that could not be stopped counts for its kind's limit until it ends.
        if job.fence not in self.held and job.fence not in self.running:
            self.by_kind[job.job.kind] -= 1
        self.on_freed()

    def give_up_waiting(self, claimed_before: float) -> list[HeldJob]:
        """Jobs that have waited for a slot since then: their turn came later than the look-ahead expected."""
        old = [job for job in self.waiting if job.claimed < claimed_before]
        if old:
            self.waiting = deque(job for job in self.waiting if job.claimed >= claimed_before)
            self._ahead.start_again()
        return old

    @property
    def wanted(self) -> int:
        """How many more jobs to claim: the free slots and a look-ahead that follows the rate of work."""
        ahead = self._ahead.size()
        if len(self.waiting) > ahead // 2:
            # Enough to go on with: claiming for every slot that frees up would fetch fast jobs one by one.
            return 0
        free = self.capacity + ahead - len(self.running) - len(self.waiting)
        # Outcomes that are not written yet count too, so that a store that is slow to write slows the claims down.
        room = 2 * (self.capacity + ahead) - len(self.held)
        return max(0, min(free, room))

    @property
    def stuck(self) -> int:
        return sum(1 for job in self.running.values() if job.settled)


class _LookAhead:
    """As many jobs as were done in the last tenth of a second: none when jobs are slow, hundreds when they are fast."""

    _WINDOW = 0.05
    _SECONDS_AHEAD = 0.1

    def __init__(self, most: int) -> None:
        self._most = most
        self._done = 0
        self._rate = 0.0
        self._since = time.monotonic()

    def count(self) -> None:
        self._done += 1

    def start_again(self) -> None:
        self._done, self._rate, self._since = 0, 0.0, time.monotonic()

    def size(self) -> int:
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed >= self._WINDOW:
            # Falls slowly: a window in which the store was being asked saw nothing done, and says little.
            self._rate = max(self._done / elapsed, 0.8 * self._rate)
            self._done, self._since = 0, now
        return min(self._most, int(self._rate * self._SECONDS_AHEAD))
