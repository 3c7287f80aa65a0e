"""Asks the store for as many jobs as there are free slots, plus a look-ahead, of the kinds this worker handles.

A job that lost its lease twice (a suspect) is claimed only when the worker holds nothing else, and runs alone, so that
a job that kills workers takes no neighbour with it.
"""

import asyncio
import time
from collections.abc import Callable
from uuid import UUID

from holdfast.handlers import Handlers
from holdfast.log import get_logger
from holdfast.store.contract import ClaimRequest, KindClaim, Store
from holdfast.worker.held import HeldJob, Slots
from holdfast.worker.settings import WorkerSettings

log = get_logger("holdfast.worker")

_CLEARING_SECONDS = 0.05
_LOCKED_SECONDS = 0.1


class Claimer:
    def __init__(
        self,
        store: Store,
        slots: Slots,
        handlers: Handlers,
        holder: UUID,
        settings: WorkerSettings,
        start: Callable[[], None],
    ) -> None:
        self._store = store
        self._slots = slots
        self._handlers = handlers
        self._holder = holder
        self._settings = settings
        self._start = start
        self._queues = settings.queues or tuple(sorted({handler.queue for handler in handlers}))
        self._nothing_due = False
        self._suspect: HeldJob | None = None
        self._clearing = _Clearing(
            settings.lease.total_seconds(), max((h.timeout.total_seconds() for h in handlers), default=0)
        )

    @property
    def may_have_more(self) -> bool:
        """False after a claim that found less than it asked for: a freed slot is then no reason to ask again."""
        return not self._nothing_due

    async def look_for_suspects(self) -> None:
        """Called with every rescue: if a suspect is due, let the worker run empty for it."""
        due = await self._store.next_due(self._queues, [handler.kind for handler in self._handlers], suspects=True)
        if due is not None and not due:
            self._clearing.begin(time.monotonic())

    async def step(self) -> float | None:
        now = time.monotonic()
        if self._suspect is not None:
            if self._suspect.fence in self._slots.held:
                self._nothing_due = False
                return None
            self._suspect = None
            self._clearing.suspect_over(now)
        if self._clearing.is_on:
            if not self._slots.held:
                await self._claim_suspect()
                return 0
            if self._clearing.goes_on(now):
                return _CLEARING_SECONDS
        return await self._claim()

    async def _claim_suspect(self) -> None:
        claimed = await self._ask(1, suspects=True)
        if not claimed:
            self._clearing.succeeded()
            return
        (self._suspect,) = claimed
        job = self._suspect.job
        log.warning("job lost its lease twice and runs alone", job_id=str(job.id), kind=job.kind, losses=job.losses)

    async def _claim(self) -> float | None:
        wanted = self._slots.wanted
        if not wanted:
            # Whatever the last claim found, there may be more by the time a slot is free.
            self._nothing_due = False
            return None
        claimed = await self._ask(wanted, suspects=False)
        if len(claimed) >= wanted:
            self._nothing_due = False
            return 0
        self._nothing_due = not self._is_limited(wanted)
        poll = self._settings.poll.total_seconds()
        if claimed:
            return poll
        due = await self._store.next_due(self._queues, [handler.kind for handler in self._handlers])
        # A due job that could not be claimed is at its kind's limit or locked by another claimer for a moment.
        return (
            poll if due is None else min(poll, max(due.total_seconds(), _LOCKED_SECONDS if self._nothing_due else poll))
        )

    async def _ask(self, limit: int, *, suspects: bool) -> list[HeldJob]:
        kinds = self._kinds(limit)
        if not kinds:
            return []
        loop = asyncio.get_running_loop()
        sent = time.monotonic()
        jobs = await self._store.claim(ClaimRequest(self._holder, limit, self._queues, kinds, suspects))
        held_jobs = []
        for job in jobs:
            handler = self._handlers[job.kind]
            held = HeldJob(job, handler, kinds[job.kind].lease.total_seconds(), sent, loop)
            self._slots.add(held)
            held_jobs.append(held)
        self._start()
        return held_jobs

    def _kinds(self, limit: int) -> dict[str, KindClaim]:
        kinds = {}
        for handler in self._handlers:
            room = limit if handler.limit is None else min(limit, handler.limit - self._slots.by_kind[handler.kind])
            if room > 0:
                kinds[handler.kind] = KindClaim(handler.lease or self._settings.lease, room)
        return kinds

    def _is_limited(self, wanted: int) -> bool:
        return any(
            handler.limit is not None and handler.limit - self._slots.by_kind[handler.kind] < wanted
            for handler in self._handlers
        )


class _Clearing:
    """The times at which nothing is claimed, so that the worker becomes empty for a suspect.

    A worker with long handlers may not become empty in time. It then works nine times as long as it waited, and is more
    patient the next time, up to the longest timeout of its handlers: by then it must be empty.
    """

    def __init__(self, patience: float, longest: float) -> None:
        self._first_patience = self._patience = patience
        self._longest = max(patience, longest)
        # A worker that starts is empty anyway, so it begins with suspects.
        self._since: float | None = 0.0
        self._not_before = 0.0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, now: float) -> None:
        if self._since is None and now >= self._not_before:
            self._since = now

    def goes_on(self, now: float) -> bool:
        """False once patience is at an end."""
        if self._since is None or now < self._since + self._patience:
            return self._since is not None
        self._not_before = now + 9 * self._patience
        self._patience = min(2 * self._patience, self._longest)
        self._since = None
        return False

    def suspect_over(self, now: float) -> None:
        """Other jobs have their turn after as much time as they have waited."""
        if self._since is not None and now >= self._since + self._first_patience:
            self._not_before = now + min(now - self._since, self._first_patience)
            self.succeeded()

    def succeeded(self) -> None:
        self._since, self._patience = None, self._first_patience
