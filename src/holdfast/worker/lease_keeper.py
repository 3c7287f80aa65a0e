"""Keeps the leases of this process alive, in a thread and on a connection of its own.

`KeeperRules` decides, as a step function without a clock or a thread, so that a simulation can drive it. `LeaseKeeper`
is only its composition: a thread that survives a blocked event loop and a lost connection.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.job import Lease
from holdfast.json_text import Json
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Renewal, Renewed, Renewer
from holdfast.waiting import is_being_canceled
from holdfast.worker.held import HeldJob, Interruption

log = get_logger("holdfast.lease_keeper")

GRACE_SECONDS = 5.0
"""How long after its timeout a handler's lease is still renewed, so that its end can be written."""

_STOP_AT = 5 / 6
_LATE = 1 / 6
_PROGRESS_SECONDS = 1.0
_NAP_SECONDS = 0.1


@dataclass(slots=True)
class _Watch:
    """What the keeper knows of one lease. `safe_until` is counted from before the request that set it was sent."""

    held: HeldJob
    renewed: float
    safe_until: float
    progress: Json | None = None
    progress_written: float = float("-inf")
    lost: bool = False
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    held: HeldJob
    why: Interruption


class KeeperRules:
    """Which leases to renew now, and which handlers to stop. Times are monotonic seconds of this machine."""

    def __init__(self, renew_at: float = 1 / 3) -> None:
        self._renew_at = renew_at
        self._watches: dict[Lease, _Watch] = {}

    def watch(self, held_jobs: Iterable[HeldJob]) -> None:
        """Take note of what the process holds at this moment."""
        known, self._watches = self._watches, {}
        for held in held_jobs:
            lease = held.job.lease
            watch = known.get(lease)
            if watch is None:
                watch = _Watch(held, renewed=held.claimed, safe_until=held.claimed + held.extend)
            self._watches[lease] = watch

    def to_renew(self, now: float) -> list[Renewal]:
        renewals = []
        for lease, watch in self._watches.items():
            if watch.lost or self._is_overdue(watch, now):
                continue
            progress = self._unwritten_progress(watch, now)
            age = now - watch.renewed
            if age >= watch.held.extend * self._renew_at or progress is not None:
                renewals.append(Renewal(lease, timedelta(seconds=watch.held.extend), progress))
        return renewals

    def learn(self, sent_at: float, renewals: Iterable[Renewal], answers: Iterable[Renewed]) -> list[Stop]:
        """Take in the store's answer to renewals that were sent at `sent_at`."""
        stops: list[Stop] = []
        for renewal, answer in zip(renewals, answers, strict=True):
            watch = self._watches.get(answer.lease)
            if watch is None:
                continue
            match answer.fenced:
                case Fenced.DONE:
                    watch.renewed = sent_at
                    watch.safe_until = sent_at + watch.held.extend
                    if renewal.progress is not None:
                        watch.progress, watch.progress_written = renewal.progress, sent_at
                    if answer.cancel_requested:
                        self._stop(stops, watch, Interruption.CANCELED)
                case Fenced.LOCKED:
                    # A transaction is finishing the job: the lease is not lost, and nobody can rescue it meanwhile.
                    # Taken for a renewal and not for ever, or an outage now would leave the handler running.
                    watch.renewed = sent_at
                    watch.safe_until = sent_at + watch.held.extend
                case Fenced.ALREADY:
                    watch.lost = True
                case Fenced.STALE:
                    watch.lost = True
                    self._stop(stops, watch, Interruption.LEASE_LOST)
        return stops

    def to_stop(self, now: float) -> list[Stop]:
        """Handlers whose lease nears its end without a renewal: stopped while it is still surely ours."""
        stops: list[Stop] = []
        for watch in self._watches.values():
            near_end = now >= watch.safe_until - watch.held.extend * (1 - _STOP_AT)
            if near_end and not watch.lost:
                self._stop(stops, watch, Interruption.UNRENEWED)
        return stops

    def _stop(self, stops: list[Stop], watch: _Watch, why: Interruption) -> None:
        # A settled job's handler is over, and its outcome is the finisher's to write or to see refused.
        if not watch.stopping and not watch.held.settled:
            watch.stopping = True
            stops.append(Stop(watch.held, why))

    def shortest_lease(self, default: float) -> float:
        return min((watch.held.extend for watch in self._watches.values()), default=default)

    def latest_gap(self, now: float) -> float:
        """The largest share of a lease that has passed since its last renewal."""
        ages = [
            (now - watch.renewed) / watch.held.extend
            for watch in self._watches.values()
            if not watch.lost and not self._is_overdue(watch, now)
        ]
        return max(ages, default=0.0)

    def _is_overdue(self, watch: _Watch, now: float) -> bool:
        started = watch.held.started
        limit = watch.held.handler.timeout.total_seconds() + GRACE_SECONDS
        return started is not None and not watch.held.settled and now > started + limit

    def _unwritten_progress(self, watch: _Watch, now: float) -> Json | None:
        progress = watch.held.progress
        if progress is None or progress == watch.progress or now < watch.progress_written + _PROGRESS_SECONDS:
            return None
        return progress


class LeaseKeeper:
    """The thread. `connect` opens a renewer that belongs to it alone."""

    def __init__(
        self,
        held_jobs: Callable[[], list[HeldJob]],
        connect: Callable[[], AbstractAsyncContextManager[Renewer]],
        default_lease: float,
        renew_at: float = 1 / 3,
    ) -> None:
        self._held_jobs = held_jobs
        self._connect = connect
        self._default_lease = default_lease
        self._renew_at = renew_at
        self._rules = KeeperRules(renew_at)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False only after it ended: before its start there is nothing to renew."""
        return self._thread.ident is None or self._thread.is_alive()

    def stop(self) -> None:
        self._stopping.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._keep())
            except Exception:
                log.exception("lease keeper failed, starting again")
                self._stopping.wait(0.5)

    async def _keep(self) -> None:
        # Side by side, because a connection that hangs must not let a handler run beyond its lease.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stop_in_time())
            tasks.create_task(self._renew_in_time())

    async def _stop_in_time(self) -> None:
        looked, patient_until = time.monotonic(), 0.0
        while not self._stopping.is_set():
            self._rules.watch(self._held_jobs())
            lease = self._rules.shortest_lease(self._default_lease)
            now = time.monotonic()
            if now - looked > lease / 6:
                # The whole process was paused. The next renewal finds out which of its leases that has cost.
                patient_until = now + lease / 6
            looked = now
            if now >= patient_until:
                self._interrupt(self._rules.to_stop(now))
            await self._pause(min(0.5, lease / 24))

    async def _renew_in_time(self) -> None:
        outage = False
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as exits:
                    renewer = await self._connected(exits)
                    if outage:
                        log.warning("lease keeper is connected again")
                        outage = False
                    while not self._stopping.is_set():
                        await self._turn(renewer)
            except (Exception, asyncio.CancelledError) as error:
                # A task group lets a canceled task go without a word, and then nobody would renew.
                if is_being_canceled():
                    raise
                if not outage:
                    # An error nobody foresaw is worth its traceback, but leases are worth more: connect again.
                    unforeseen = not isinstance(error, HoldfastError | asyncio.CancelledError)
                    log.warning(
                        "lease keeper cannot reach the store, trying again", error=str(error), exc_info=unforeseen
                    )
                    outage = True
                await self._pause(min(0.5, self._rules.shortest_lease(self._default_lease) / 20))

    async def _connected(self, exits: contextlib.AsyncExitStack) -> Renewer:
        try:
            async with asyncio.timeout(self._rules.shortest_lease(self._default_lease) / 3):
                return await exits.enter_async_context(self._connect())
        except TimeoutError:
            raise StoreUnavailable("no connection in time") from None

    async def _turn(self, renewer: Renewer) -> None:
        now = time.monotonic()
        self._rules.watch(self._held_jobs())
        gap = self._rules.latest_gap(now)
        if gap > self._renew_at + _LATE:
            log.warning(
                "renewal comes late: something holds the interpreter or the store is slow; "
                'long-running C code and regular expressions belong in isolation="process"',
                share_of_lease=round(gap, 2),
            )
        renewals = self._rules.to_renew(now)
        lease = self._rules.shortest_lease(self._default_lease)
        if renewals:
            try:
                async with asyncio.timeout(lease / 6):
                    answers = await renewer.renew(renewals)
            except TimeoutError:
                raise StoreUnavailable("the renewal was not answered in time") from None
            self._interrupt(self._rules.learn(now, renewals, answers))
        await self._pause(min(lease / 12, _PROGRESS_SECONDS))

    def _interrupt(self, stops: list[Stop]) -> None:
        for stop in stops:
            log.warning("stopping handler", why=stop.why, **stop.held.named, fence=stop.held.job.lease.fence)
            stop.held.interrupt_from_thread(stop.why)

    async def _pause(self, seconds: float) -> None:
        # In short naps, because a threading.Event cannot be awaited and the worker waits for this thread to end.
        for nap in _naps(seconds):
            if self._stopping.is_set():
                return
            await asyncio.sleep(nap)


def _naps(seconds: float) -> list[float]:
    whole, rest = divmod(seconds, _NAP_SECONDS)
    return [_NAP_SECONDS] * int(whole) + [rest]
