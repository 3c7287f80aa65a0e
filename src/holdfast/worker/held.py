"""The jobs that this process holds: waiting for a slot, running, or waiting for their outcome to be written.

Only the event loop changes these objects. The lease keeper's thread just reads snapshots, requests interruptions, and
withdraws jobs that have not started.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.domain.handlers import Handler
from holdfast.domain.job import LeasedJob
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import Move, Transition

_MOST_AT_ONCE = 1000
"""The most jobs in one claim. This many take about ten milliseconds, and the first should not wait longer than that."""

_LAST_SHARE = 1 / 6


class Interruption(StrEnum):
    """Why a running handler was stopped from outside."""

    LEASE_LOST = "lease lost"
    UNRENEWED = "lease could not be renewed in time"
    CANCELED = "canceled by request"
    TIMEOUT = "timed out"
    SHUTDOWN = "worker is shutting down"
    WITHDRAWN = "event loop is blocked"
    """The job had not started; the lease keeper gives it back."""


class HeldJob:
    """One leased job on its way through the worker."""

    # Class-level defaults, because a worker creates tens of thousands of these per second and most keep the defaults.
    started: float | None = None
    """Monotonic time from which the handler's timeout counts: infinite while it waits for a process."""
    ended = 0.0
    """When the handler ended."""
    task: asyncio.Task[None] | None = None
    """The attempt's task. If its first step runs immediately, this is None until that step is over."""
    kill: Callable[[], None] | None = None
    """Ends the handler's own process at once; set only for process isolation, callable from any thread."""
    interruption: Interruption | None = None
    interrupted = 0.0
    finish_requested: Move | None = None
    """How the handler's own transaction may have ended the job."""
    is_finishing = False
    """The handler has begun to finish in its own transaction, which may hold a lock on the lease."""
    settled = False
    """An outcome was handed to the finisher, or there is none to write. No other outcome may be written."""
    transition: Transition
    """What the finisher has to write. Not set before the handover."""
    is_refused = False
    """The store refuses the outcome, even without its data. This has been logged."""
    refused_without_data = ""
    """Why the store refused the outcome even without its data: a reason that is not about the data."""
    is_over = False
    """The store has answered. Recorded only during shutdown, when two requests at once may write the outcome."""
    thread: Future[object] | None = None
    """The thread in which the handler runs."""
    never_began = False
    """The handler's process ended, or was killed, before the handler began."""
    goes_on = False
    """The handler was told to stop but did not; it keeps its slot and its lease until it ends."""
    said_again = 0.0
    """When to log this again."""
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
        """Until this time the lease is certainly ours. The lease keeper extends it, counted from before a renewal is
        sent."""
        self.loop = loop
        self.is_free = True
        """Deleted by the event loop to start the job, or by the lease keeper's thread to withdraw it. Only one of them
        can, and a lock would take three times as long."""

    @property
    def id(self) -> UUID:
        return self.job.lease.id

    @property
    def took(self) -> float:
        """How many seconds the handler took. Infinite if it never began or could not be stopped."""
        took = -math.inf if self.started is None else self.ended - self.started
        return took if took >= 0 else math.inf

    @property
    def has_running_thread(self) -> bool:
        thread = self.thread  # read once: the event loop may set it to None at any moment
        return thread is not None and not thread.done()

    @property
    def is_left_behind(self) -> bool:
        """Whether the worker no longer waits for the handler. If it cannot be stopped, it ends with the process."""
        return self.settled or self.interruption is Interruption.SHUTDOWN

    @property
    def waits_for_process(self) -> bool:
        return self.started == math.inf

    @property
    def has_snoozed(self) -> bool:
        """Whether the handler snoozed in its own transaction. If that committed, the lease is gone, but the job is not
        final."""
        return self.finish_requested is Move.SNOOZE

    def nears_end(self, now: float) -> bool:
        """Whether its lease is about to end. Nothing may run from here on, because the code that stops handlers checks
        only at intervals."""
        return now >= self.safe_until - self.extend * _LAST_SHARE

    @property
    def named(self) -> dict[str, Any]:
        """What identifies the job in log lines. An application knows its rows by their keys."""
        row = {} if self.job.row is None else {"row": self.job.row}
        return {"job_id": str(self.id), "kind": self.job.kind, **row}

    def report(self, progress: Json) -> None:
        self.progress = progress

    def finishing(self) -> None:
        self.is_finishing = True

    def start(self, now: float) -> bool:
        """Mark the job as started, so that it cannot be withdrawn anymore. Returns False if it was withdrawn."""
        self.started = now
        try:
            del self.is_free
        except AttributeError:
            return False
        return True

    def withdraw(self) -> bool:
        """Keep the event loop from starting the job; called from another thread. Returns False if it is too late."""
        if self.is_unstarted and self.interruption is None:
            with suppress(AttributeError):
                del self.is_free
                self.interruption, self.interrupted = Interruption.WITHDRAWN, lease_now()
        return self.is_withdrawn

    @property
    def is_unstarted(self) -> bool:
        """Whether no part of the job has run and nothing has been decided about it."""
        return self.started is None and not self.settled

    @property
    def is_withdrawn(self) -> bool:
        return self.interruption is Interruption.WITHDRAWN

    def interrupt(self, why: Interruption) -> None:
        """Stop the handler from the event loop's own thread. The first reason is kept, unless the lease is lost."""
        if self.settled:
            return
        if self.interruption is not None:
            if why is Interruption.LEASE_LOST:
                self.interruption = why
            return
        self.interruption, self.interrupted = why, lease_now()
        if self.kill is not None:
            self.kill()
        # A task that is canceled before its first step never runs; such an attempt notices the interruption itself.
        if self.task is not None and self.started is not None:
            self.task.cancel()

    def interrupt_from_thread(self, why: Interruption) -> None:
        """Stop the handler from the lease keeper's thread.

        A child process dies immediately, even if the event loop is blocked; the rest follows when the loop runs again.
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
    """Which jobs may start, and how many more to claim.

    A worker may claim a job again before it learns that it lost its first claim. It then holds two jobs with one id.
    """

    def __init__(self, capacity: int, most_ahead: int) -> None:
        self.capacity = capacity
        self.held: dict[HeldJob, None] = {}
        """Dictionaries because they keep their order and the lease keeper's thread can copy them atomically."""
        self.waiting: deque[HeldJob] = deque()
        self.suspects: deque[HeldJob] = deque()
        """Held until the process is quiet, so that each can run alone."""
        self.running: dict[HeldJob, None] = {}
        self.by_kind: Counter[str] = Counter()
        """Jobs that are running or have yet to run, but not jobs whose outcome is waiting to be written."""
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
        """Whether nothing is held except suspects that wait for their turn, and nothing runs.

        A thread that could not be stopped goes on after its lease was lost, so what runs is not always held.
        """
        return not self.running and len(self.held) == len(self.suspects)

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
        """The handler has ended: free its slot, but hold its lease until the outcome is written."""
        if job in self.running:
            del self.running[job]
            self._ahead.done += 1
            self.by_kind[job.job.kind] -= 1

    def forget(self, jobs: Iterable[HeldJob]) -> None:
        """Drop leases that are no longer ours: finished, released or lost."""
        for job in jobs:
            self.held.pop(job, None)

    def take_waiting(self) -> list[HeldJob]:
        """Remove and return all jobs that wait for a slot."""
        waiting, self.waiting = list(self.waiting), deque()
        return self._never_to_run(waiting)

    def take_suspects(self) -> list[HeldJob]:
        suspects, self.suspects = list(self.suspects), deque()
        return self._never_to_run(suspects)

    def _never_to_run(self, jobs: list[HeldJob]) -> list[HeldJob]:
        self.by_kind.subtract(job.job.kind for job in jobs)
        return jobs

    def give_up_waiting(self, claimed_before: float) -> list[HeldJob]:
        """Remove and return jobs that have waited too long, because the look-ahead expected their turn earlier.

        Jobs that already have a slot are kept: they only wait for the loop, which a handler has blocked.
        """
        waiting = list(self.waiting)
        kept, rest = waiting[: self.startable], waiting[self.startable :]
        old = [job for job in rest if job.claimed < claimed_before]
        if old:
            self.waiting = deque([*kept, *(job for job in rest if job.claimed >= claimed_before)])
            self._ahead.give_up()
        return self._never_to_run(old)

    @property
    def wanted(self) -> int:
        """How many more jobs to claim: the free slots plus a look-ahead that follows the rate of work."""
        ahead = self._ahead.size()
        # Rounded, because a few more or less do not matter and the store answers a repeated question with less work.
        ahead -= ahead % max(1, self.capacity // 4)
        if len(self.waiting) - self.startable > ahead * 3 // 4:
            # Enough for now: claiming for every freed slot would fetch fast jobs one by one.
            return 0
        free = min(self.capacity + ahead - len(self.running) - len(self.waiting), _MOST_AT_ONCE)
        # Unwritten outcomes count too, so that a store that writes slowly also slows down the claims.
        room = 2 * (self.capacity + ahead) - len(self.held)
        return max(0, min(free, room))

    @property
    def stuck(self) -> int:
        return sum(1 for job in self.running if job.goes_on)


class _LookAhead:
    """How many jobs to claim ahead: as many as were done in a tenth of a second. None for slow jobs, hundreds for fast
    ones."""

    _WINDOW = 0.01
    _FALL = 0.95
    _SECONDS_AHEAD = 0.1
    _TRUST = 1.2

    def __init__(self, most: int) -> None:
        self._most = most
        self._trusted = float(most)
        """The limit on the look-ahead. After it was wrong, the limit is low and rises gradually."""
        self.done = 0
        """Jobs done since the rate was last calculated."""
        self._rate = 0.0
        self._since = time.monotonic()

    def give_up(self) -> None:
        self._trusted = max(1.0, min(self._trusted, self._rate * self._SECONDS_AHEAD) / 4)
        self.done, self._rate, self._since = 0, 0.0, time.monotonic()

    def size(self) -> int:
        now = time.monotonic()
        elapsed = now - self._since
        if elapsed >= self._WINDOW:
            # Falls slowly, because a window in which the worker waited for the store saw no work and says little.
            self._rate = max(self.done / elapsed, self._rate * self._FALL ** (elapsed / self._WINDOW))
            self._trusted = min(self._most, self._trusted * self._TRUST)
            self.done, self._since = 0, now
        return int(min(self._trusted, self._rate * self._SECONDS_AHEAD))
