"""Claims as many jobs as there are free slots, plus a look-ahead, of the kinds that this worker handles.

`suspects.py` decides when nothing else may be claimed because a job has to run alone.
"""

import asyncio
import math
import sys
from collections.abc import Callable
from uuid import UUID

from holdfast.domain.claim import new_number
from holdfast.domain.crash_points import reach
from holdfast.domain.handlers import Handler, Handlers, Isolation, Room
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.shared_process import SharedProcess
from holdfast.logs.records import get_logger
from holdfast.store.contract import ClaimRequest, KindClaim, Looked, Store
from holdfast.worker.held import HeldJob, Slots
from holdfast.worker.looking import Looking, is_due
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.starts import Starts
from holdfast.worker.suspects import Suspects
from holdfast.worker.turn import FULL, Turn
from holdfast.worker.unheard import Unheard

log = get_logger("holdfast.worker")

_LOCKED_SECONDS = 0.1
_NO_LIMIT = sys.maxsize


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
        give_back: Callable[[list[HeldJob]], None],
        starts: Starts,
        process: SharedProcess,
    ) -> None:
        """`unheard` is told about claims whose answer was lost. `on_due` is called for due jobs that a look found too
        late for the turn that asked, and when the worker may claim again. `give_back` takes jobs that have not started.
        `starts` knows which kinds rest."""
        self._store = store
        self._slots = slots
        self._handlers = handlers
        self._holder = holder
        self._settings = settings
        self._most = _NO_LIMIT if settings.claim_max is None else settings.claim_max
        self.queues = settings.queues or tuple(sorted({handler.queue for handler in handlers}))
        self._nothing_due = False
        self._unheard = unheard
        self._with_room = [handler for handler in handlers if handler.room is not Room]
        self._processes = settings.process_limits.most
        in_processes = [handler.kind for handler in handlers if handler.isolation is Isolation.PROCESS]
        self._in_processes = frozenset(in_processes if self._processes < settings.concurrency else ())
        """Kinds that run in child processes. Without a limit, their jobs would wait in slots that others could use."""
        self._starts = starts
        self._has_no_limits = (
            not self._with_room and not self._in_processes and all(handler.limit is None for handler in handlers)
        )
        self._last_requests: dict[bool, ClaimRequest] = {}
        lease = settings.lease.total_seconds()
        longest = max((handler.timeout.total_seconds() for handler in handlers), default=0)
        self.suspects = Suspects(store, slots, self._ask_for_suspects, give_back, on_due, lease, process)
        process.join(self.suspects, longest)
        self._looking = Looking(self._look, on_due, self.suspects.note_due)

    @property
    def _is_unlimited(self) -> bool:
        return self._has_no_limits and not self._starts.has_trouble

    @property
    def may_have_more(self) -> bool:
        """False after a claim that found fewer jobs than it asked for. A freed slot is then no reason to ask again."""
        return not self._nothing_due

    async def step(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        """Make one claim of at most `limit` jobs, or return the reason for none.

        `looks_first`: there is probably nothing to claim. `to_end`: return nothing only if there really is nothing, no
        matter how long it takes to find out.
        """
        most = self._most if limit is None else min(limit, self._most)
        begun = self._looking.begun
        turn = await self.suspects.turn(most)
        wanted = min(self._slots.wanted, most)
        if turn is not None or not wanted:
            # There may be more by the time a slot is free.
            self._nothing_due = False
            return turn or FULL
        was_a_kind_full = self._is_a_kind_full()
        looked = await self._looking.answer(is_patient=to_end, after=begun) if looks_first else None
        found = await self._ask(wanted) if looked is None or is_due(looked) else []
        if not found and looked is None:
            looked = await self._looking.answer(is_patient=to_end, after=begun)
            if looked is not None and is_due(looked):
                found = await self._ask(wanted)
        if found:
            self._looking.keep_up()
        if len(found) >= wanted or self._may_be_cut(found):
            self._nothing_due = False
            return Turn(len(found), 0)
        if not found and self.suspects.is_due and not self._slots.held:
            turn = await self.suspects.turn(most, nothing_else=True)
        return turn or self._turn_when_idle(found, looked, was_a_kind_full=was_a_kind_full)

    async def close(self) -> None:
        await self._looking.close()

    def _may_be_cut(self, found: list[HeldJob]) -> bool:
        """Whether more jobs may be due that did not fit because of the size limit on payloads per claim.

        Counts four bytes per character, the maximum, because one claim too many does no harm.
        """
        return bool(found) and 4 * sum(len(held.job.payload) for held in found) >= self._settings.claim_bytes

    def _turn_when_idle(self, found: list[HeldJob], looked: Looked | None, *, was_a_kind_full: bool) -> Turn:
        # A kind that was full did not take part in the claim, even if it has room now.
        is_a_kind_full = was_a_kind_full or self._is_a_kind_full()
        self._nothing_due = not is_a_kind_full
        again_in = min((handler.room().more_in for handler in self._with_room), default=math.inf)
        again_in = min(again_in, self._starts.more_in, self.suspects.due_in)
        if not found and looked is not None and looked.due_in is not None:
            # A due job that could not be claimed is locked, by another claimer or by its producer.
            again_in = min(looked.due_in.total_seconds() or _LOCKED_SECONDS, again_in)
        return Turn(len(found), again_in, is_idle=True, is_short=is_a_kind_full and not found)

    async def _look(self) -> Looked:
        """Look only at kinds that could be claimed now: a full kind must not hide when others come due."""
        kinds = [handler.kind for handler in self._handlers if self._is_unlimited or self._room(handler) > 0]
        return await self._store.look(self.queues, kinds, shard=self._settings.shard)

    async def _ask_for_suspects(self, limit: int) -> list[HeldJob]:
        return await self._ask(limit, suspects=True)

    async def _ask(self, limit: int, *, suspects: bool = False) -> list[HeldJob]:
        request = self._request(limit, suspects=suspects)
        if not request.kinds:
            return []
        loop = asyncio.get_running_loop()
        before, sent = new_number(), lease_now()
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
        if suspects:
            self._slots.set_aside(held_jobs)
        else:
            self._slots.add(held_jobs)
        reach("claim.held")
        return held_jobs

    def _request(self, limit: int, *, suspects: bool) -> ClaimRequest:
        """Return the same object for the same request, so that the store does not have to prepare it again."""
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
        """Whether some kind is at its limit. There may be more of its jobs once it has room."""
        return not self._is_unlimited and any(self._room(handler) <= 0 for handler in self._handlers)

    def _room(self, handler: Handler) -> float:
        most = handler.room().most
        if handler.limit is not None:
            most = min(most, handler.limit)
        room = most - self._slots.by_kind[handler.kind]
        if handler.kind in self._in_processes:
            room = min(room, self._processes - sum(self._slots.by_kind[kind] for kind in self._in_processes))
        return min(room, self._starts.most(handler.kind))
