"""Runs suspects, each alone in its process, so that a job that kills workers takes no other job with it.

A worker first claims suspects, then takes the process for itself and lets everything else in it finish. While it holds
their leases, the store grants no suspect to another worker, so only one worker at a time does this. It gives back what
it could not run, at no cost to the jobs.
"""

import math
import time
from collections.abc import Awaitable, Callable

from holdfast.domain.shared_process import SharedProcess
from holdfast.logs.records import get_logger
from holdfast.store.contract import Fenced, Store
from holdfast.worker.held import HeldJob, Interruption, Slots
from holdfast.worker.turn import FULL, Turn

log = get_logger("holdfast.worker")

_CLEARING_SECONDS = 0.05
_LOCKED_SECONDS = 0.1
_REFUSED_SECONDS = 1.0
_REST = 9
"""A process that did not become quiet does other work for this multiple of the time it waited."""


class Suspects:
    """Times are monotonic seconds."""

    def __init__(
        self,
        store: Store,
        slots: Slots,
        claim: Callable[[int], Awaitable[list[HeldJob]]],
        give_back: Callable[[list[HeldJob]], None],
        go_on: Callable[[], None],
        lease: float,
        process: SharedProcess,
    ) -> None:
        """`go_on` is called when this worker may claim again, after another one had the process."""
        self._store = store
        self._slots = slots
        self._claim = claim
        self._give_back = give_back
        self._go_on = go_on
        self._lease = self._patience = lease
        self._process = process
        # A worker is empty when it starts, so it begins with suspects.
        self._is_due = self._is_new = True
        self._deaf_until = 0.0
        self._began: float | None = None
        """When the worker claimed the suspects that it holds."""
        self._ends = 0.0
        self._is_clear = False
        self._alone: HeldJob | None = None

    @property
    def is_due(self) -> bool:
        return self._is_due

    def note_due(self) -> None:
        """A look has found a due suspect."""
        if time.monotonic() >= self._deaf_until:
            self._is_due = True

    @property
    def due_in(self) -> float:
        """Seconds until the next turn, if suspects are due."""
        return max(_CLEARING_SECONDS, self._free_in(nothing_else=True)) if self._is_due else math.inf

    @property
    def is_quiet(self) -> bool:
        return self._slots.has_only_suspects

    def make_way(self) -> None:
        self._give_back(self._slots.take_waiting())

    def go_on(self) -> None:
        self._go_on()

    def expect(self) -> None:
        self._process.expect(self)

    def has_begun(self) -> None:
        self._process.has_begun(self)

    async def turn(self, limit: int, *, nothing_else: bool = False) -> Turn | None:
        """None means that it is the turn of other jobs. `nothing_else`: there are none, so there is no need to wait."""
        if self._process.is_taken_from(self):
            return FULL
        if self._alone is not None and self._alone in self._slots.held:
            return FULL
        self._alone = None
        now = time.monotonic()
        if self._began is not None and (not self._slots.suspects or now >= self._ends):
            self._end(now)
        if self._began is None:
            if self._is_due and limit and self._free_in(nothing_else=nothing_else) <= 0:
                await self._take(limit)
            if self._began is None:
                return None
        if not (self.is_quiet and self._process.is_quiet_around(self)):
            return Turn(0, _CLEARING_SECONDS)
        return await self._start_next()

    def _free_in(self, *, nothing_else: bool) -> float:
        # A new worker takes its turn even in a rest: its process may live too briefly for another one.
        return 0.0 if self._is_new else self._process.free_in(self, time.monotonic(), nothing_else=nothing_else)

    async def _take(self, limit: int) -> None:
        claimed = await self._claim(min(limit, self._slots.capacity))
        now = time.monotonic()
        self._is_due = False
        if claimed:
            self._began, self._ends, self._is_clear = now, now + self._patience, False
            self.make_way()
            self._process.take(self)
        elif not self._is_new:
            # Another worker holds suspects, or their rows are locked.
            self._deaf_until = now + _REFUSED_SECONDS
        self._is_new = False

    async def _start_next(self) -> Turn:
        if not self._is_clear:
            self._is_clear, self._patience = True, self._lease
            self._ends = time.monotonic() + self._lease
        suspect = self._slots.suspects[0]
        if suspect.interruption is None:
            fenced = await self._store.run_alone(suspect.job.lease, suspect.handler.crashes)
            if suspect not in self._slots.suspects:
                # The worker was told to stop in the meantime.
                return FULL
            if fenced is Fenced.LOCKED:
                return Turn(0, _LOCKED_SECONDS)
            if fenced is not Fenced.DONE:
                suspect.interrupt(Interruption.LEASE_LOST)
        self._alone = self._slots.let_next_suspect_start()
        log.warning("job is suspected of killing workers and runs alone", **suspect.named, losses=suspect.job.losses)
        return Turn(1, 0)

    def _end(self, now: float) -> None:
        """Give back the rest. Other jobs now have their turn, for a time that depends on how long they waited."""
        took = now - (self._began or now)
        if self._is_clear:
            rest = min(took, self._lease)
        else:
            longest = max(self._lease, self._process.longest)
            rest, self._patience = _REST * took, min(2 * self._patience, longest)
        self._began = None
        self._give_back(self._slots.take_suspects())
        self._process.leave(now, rest)
