"""Asks the store for as many jobs as there are free slots, plus a look-ahead, of the kinds this worker handles.

A job that lost its lease twice (a suspect) is claimed only when the worker holds nothing else, and runs alone, so that
a job that kills workers takes no other with it.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.crash_points import reach
from holdfast.domain.handlers import Handler, Handlers, Isolation, Room
from holdfast.domain.lease_clock import lease_now
from holdfast.log import get_logger
from holdfast.store.contract import ClaimRequest, KindClaim, Looked, Store
from holdfast.worker.held import HeldJob, Slots
from holdfast.worker.looking import Looking
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.unheard import Unheard

log = get_logger("holdfast.worker")

_CLEARING_SECONDS = 0.05
_LOCKED_SECONDS = 0.1
_NO_SUSPECT_SECONDS = 1.0


class Turn(NamedTuple):
    """What one turn claimed, and when the next one makes sense.

    `again_in` is in seconds; infinite: nothing is known to become due. `is_idle`: slots are free and nothing more is
    due, so that claiming again is a matter of polling; otherwise a freed slot says when. `is_short`: it found
    nothing, but of some kind it may take no more, so something may be due.
    """

    claimed: int
    again_in: float
    is_idle: bool = False
    is_short: bool = False


_FULL = Turn(0, math.inf)


class Claimer:
    def __init__(
        self,
        store: Store,
        slots: Slots,
        handlers: Handlers,
        holder: UUID,
        settings: WorkerSettings,
        unheard: Unheard,
        on_due: Callable[[], None],
    ) -> None:
        """`unheard` hears of claims whose answer was lost, `on_due` of due jobs that a look found too late for the turn
        that asked."""
        self._store = store
        self._slots = slots
        self._handlers = handlers
        self._holder = holder
        self._settings = settings
        self.queues = settings.queues or tuple(sorted({handler.queue for handler in handlers}))
        self._nothing_due = False
        self._unheard = unheard
        self._suspect: HeldJob | None = None
        self._suspect_due = False
        self._no_suspects_before = 0.0
        self._with_room = [handler for handler in handlers if handler.room is not Room]
        self._processes = settings.process_limits.most
        in_processes = [handler.kind for handler in handlers if handler.isolation is Isolation.PROCESS]
        self._in_processes = frozenset(in_processes if self._processes < settings.concurrency else ())
        """The kinds whose jobs would otherwise wait for a process in slots that others could use."""
        self._is_unlimited = (
            not self._with_room and not self._in_processes and all(handler.limit is None for handler in handlers)
        )
        self._last_requests: dict[bool, ClaimRequest] = {}
        self._looking = Looking(self._look, on_due, self._make_way)
        self._clearing = _Clearing(
            settings.lease.total_seconds(), max((h.timeout.total_seconds() for h in handlers), default=0)
        )

    @property
    def may_have_more(self) -> bool:
        """False after a claim that found less than it asked for: a freed slot is then no reason to ask again."""
        return not self._nothing_due

    async def step(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        """One claim of at most `limit` jobs, or the reason for none.

        `looks_first`: most likely there is nothing. `to_end`: nothing means that nothing is there, however long that
        takes to find out.
        """
        turn = await self._turn_for_suspects()
        if turn is not None:
            return turn
        wanted = min(most for most in (self._slots.wanted, limit, self._settings.claim_max) if most is not None)
        if not wanted:
            # There may be more by the time a slot is free.
            self._nothing_due = False
            return _FULL
        was_a_kind_full = self._is_a_kind_full()
        looked = await self._looking.answer(is_patient=to_end) if looks_first else None
        found = await self._ask(wanted) if looked is None or _is_due(looked) else []
        if not found and looked is None:
            looked = await self._looking.answer(is_patient=to_end)
            if looked is not None and _is_due(looked):
                found = await self._ask(wanted)
        if found:
            self._looking.keep_up()
        if len(found) >= wanted or self._may_be_cut(found):
            self._nothing_due = False
            return Turn(len(found), 0)
        if not found and self._suspect_due and not self._slots.held:
            # No other job waits for a turn.
            return await self._claim_suspect()
        return self._turn_when_idle(found, looked, was_a_kind_full=was_a_kind_full)

    async def close(self) -> None:
        await self._looking.close()

    def _may_be_cut(self, found: list[HeldJob]) -> bool:
        """Whether more jobs may be due, and only their payloads were too much for one claim.

        A character of them has four bytes at most, and to claim once more than needed does no harm.
        """
        return bool(found) and 4 * sum(len(held.job.payload) for held in found) >= self._settings.claim_bytes

    def _turn_when_idle(self, found: list[HeldJob], looked: Looked | None, *, was_a_kind_full: bool) -> Turn:
        # One that was full did not take part, even if it has room by now.
        is_a_kind_full = was_a_kind_full or self._is_a_kind_full()
        self._nothing_due = not is_a_kind_full
        again_in = min((handler.room().more_in for handler in self._with_room), default=math.inf)
        if not found and looked is not None and looked.due_in is not None:
            # A due job that could not be claimed is locked, by another claimer or by its producer.
            again_in = min(looked.due_in.total_seconds() or _LOCKED_SECONDS, again_in)
        return Turn(len(found), again_in, is_idle=True, is_short=is_a_kind_full and not found)

    async def _look(self) -> Looked:
        """For what could be claimed now: a full kind must not hide when others come due."""
        kinds = [handler.kind for handler in self._handlers if self._is_unlimited or self._room(handler) > 0]
        return await self._store.look(self.queues, kinds, shard=self._settings.shard)

    def _make_way(self) -> None:
        """A suspect is due: let the worker run empty for it."""
        now = time.monotonic()
        if now >= self._no_suspects_before:
            self._suspect_due = True
            self._clearing.begin(now)

    async def _turn_for_suspects(self) -> Turn | None:
        """Nothing is claimed beside a suspect, nor while the worker runs empty for one."""
        now = time.monotonic()
        if self._suspect is not None:
            if self._suspect in self._slots.held:
                self._nothing_due = False
                return _FULL
            self._suspect = None
            self._clearing.suspect_over(now)
        if self._clearing.is_on:
            if not self._slots.held:
                return await self._claim_suspect()
            if self._clearing.goes_on(now):
                return Turn(0, _CLEARING_SECONDS)
        return None

    async def _claim_suspect(self) -> Turn:
        claimed = await self._ask(1, suspects=True)
        if not claimed:
            if self._suspect_due:
                # Another worker has it, or its row is locked.
                self._no_suspects_before = time.monotonic() + _NO_SUSPECT_SECONDS
            self._suspect_due = False
            self._clearing.succeeded()
            return Turn(0, 0)
        self._suspect_due = True
        (self._suspect,) = claimed
        log.warning("job lost its lease twice and runs alone", **self._suspect.named, losses=self._suspect.job.losses)
        return Turn(1, 0)

    async def _ask(self, limit: int, *, suspects: bool = False) -> list[HeldJob]:
        request = self._request(limit, suspects=suspects)
        if not request.kinds:
            return []
        loop = asyncio.get_running_loop()
        before, sent = self._unheard.next_name(), lease_now()
        try:
            jobs = await self._store.claim(request)
        except BaseException:
            self._unheard.lost(before, max(claim.lease for claim in request.kinds.values()).total_seconds())
            raise
        if not jobs:
            return []
        reach("claim.answered")
        policies = {kind: (self._handlers[kind], claim.lease.total_seconds()) for kind, claim in request.kinds.items()}
        held_jobs = [HeldJob(job, *policies[job.kind], sent, loop) for job in jobs]
        self._slots.add(held_jobs)
        reach("claim.held")
        return held_jobs

    def _request(self, limit: int, *, suspects: bool) -> ClaimRequest:
        """The same object for the same question, so that the store need not think about it again."""
        request = self._last_requests.get(suspects)
        if request is not None and request.limit == limit and self._is_unlimited:
            return request
        kinds = self._kinds(limit)
        if request is None or request.limit != limit or request.kinds != kinds:
            request = ClaimRequest(
                *(self._holder, limit, self.queues, kinds, suspects),
                *(self._settings.shard, self._settings.claim_bytes),
            )
            self._last_requests[suspects] = request
        return request

    def _kinds(self, limit: int) -> dict[str, KindClaim]:
        kinds = {}
        for handler in self._handlers:
            room = min(limit, self._room(handler))
            if room > 0:
                kinds[handler.kind] = KindClaim(handler.lease or self._settings.lease, int(room))
        return kinds

    def _is_a_kind_full(self) -> bool:
        """Then there may be more of it as soon as it has room."""
        return not self._is_unlimited and any(self._room(handler) <= 0 for handler in self._handlers)

    def _room(self, handler: Handler) -> float:
        most = handler.room().most
        if handler.limit is not None:
            most = min(most, handler.limit)
        room = most - self._slots.by_kind[handler.kind]
        if handler.kind in self._in_processes:
            room = min(room, self._processes - sum(self._slots.by_kind[kind] for kind in self._in_processes))
        return room


def _is_due(looked: Looked) -> bool:
    return looked.due_in is not None and not looked.due_in


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
