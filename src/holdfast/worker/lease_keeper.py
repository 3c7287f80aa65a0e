"""Keeps the leases of this process alive, in a thread and on a connection of its own.

`KeeperRules` decides, as a step function without a clock or a thread, so that a simulation can drive it. `LeaseKeeper`
is only its composition: a thread that survives a blocked event loop and a lost connection.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Renewal, Renewed, Renewer
from holdfast.worker.held import HeldJob, Interruption

log = get_logger("holdfast.lease_keeper")

GRACE_SECONDS = 5.0
"""How long after its timeout a handler's lease is still renewed, so that its end can be written."""

ANSWERED = 1 / 10
"""The share of a lease in which a renewal must be answered. With a third before it, there is time for a new connection
and a second try before half of the lease is over: 0.2 s of a lease of 3 s."""

_LOCKED_SECONDS = 0.25
_OVERDUE_SECONDS = 0.05
_LOCKED_TRUST = 1 / 4
"""The share of a lease for which the answer counts that its handler's own transaction holds it."""

_LATE = 1 / 6
_PROGRESS_SECONDS = 1.0
_SHORTEST_TURN_SECONDS = 0.01


@dataclass(slots=True)
class _Watch:
    """What the keeper knows of one lease."""

    held: HeldJob
    renewed: float
    progress: Json | None = None
    progress_written: float = float("-inf")
    locked: float = float("-inf")
    """When the last renewal was sent that found it locked."""
    lost: bool = False
    stopping: bool = False

    @property
    def is_locked(self) -> bool:
        return self.locked > self.renewed

    @property
    def locked_pause(self) -> float:
        """Until it is asked for again. Once the lease is over, the first who looks after the lock is gone has it."""
        is_over = self.locked >= self.held.safe_until
        return _OVERDUE_SECONDS if is_over else min(_LOCKED_SECONDS, self.held.extend / 12)


@dataclass(frozen=True, slots=True)
class Stop:
    held: HeldJob
    why: Interruption


class KeeperRules:
    """Which leases to renew now, and which handlers to stop. Times are those of lease_clock.py."""

    def __init__(self, renew_at: float = 1 / 3) -> None:
        self._renew_at = renew_at
        self._watches: dict[HeldJob, _Watch] = {}

    def watch(self, held_jobs: Iterable[HeldJob]) -> None:
        """Take note of what the process holds at this moment."""
        known, self._watches = self._watches, {}
        for held in held_jobs:
            watch = known.get(held)
            if watch is None:
                watch = _Watch(held, renewed=held.claimed)
            self._watches[held] = watch

    def to_renew(self, now: float) -> dict[HeldJob, Renewal]:
        renewals = {}
        for watch in self._watches.values():
            if watch.lost or self._is_overdue(watch, now):
                continue
            progress = self._unwritten_progress(watch, now)
            if self._renewal_in(watch, now) <= 0 or progress is not None:
                extend = timedelta(seconds=watch.held.extend)
                renewals[watch.held] = Renewal(watch.held.job.lease, extend, progress)
        return renewals

    def next_renewal(self, now: float) -> float:
        """Seconds until a lease is to be renewed; infinite if none is."""
        due = (
            self._renewal_in(watch, now)
            for watch in self._watches.values()
            if not watch.lost and not self._is_overdue(watch, now)
        )
        return max(0.0, min(due, default=math.inf))

    def _renewal_in(self, watch: _Watch, now: float) -> float:
        if watch.is_locked:
            return watch.locked + watch.locked_pause - now
        return watch.renewed + watch.held.extend * self._renew_at - now

    def learn(self, sent_at: float, renewals: Mapping[HeldJob, Renewal], answers: Iterable[Renewed]) -> list[Stop]:
        """Take in the store's answers, in their order, to renewals that were sent at `sent_at`."""
        stops: list[Stop] = []
        for (held, renewal), answer in zip(renewals.items(), answers, strict=True):
            watch = self._watches.get(held)
            if watch is None:
                continue
            match answer.fenced:
                case Fenced.DONE:
                    watch.renewed = sent_at
                    watch.held.safe_until = sent_at + watch.held.extend
                    if renewal.progress is not None:
                        watch.progress, watch.progress_written = renewal.progress, sent_at
                    if answer.cancel_requested:
                        self._stop(stops, watch, Interruption.CANCELED)
                case Fenced.LOCKED:
                    # Nothing was renewed: the lease ends when it would have ended. Its own handler's transaction may
                    # hold it and roll back, or a rescue that is about to commit.
                    watch.locked = sent_at
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
            if watch.held.nears_end(now) and not watch.lost and not self._is_being_finished(watch, now):
                self._stop(stops, watch, Interruption.UNRENEWED)
        return stops

    def _is_being_finished(self, watch: _Watch, now: float) -> bool:
        """By a transaction of its handler's own, so that nobody else can have it before that ends."""
        return watch.held.is_finishing and watch.is_locked and now < watch.locked + watch.held.extend * _LOCKED_TRUST

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
            if not watch.lost and not watch.is_locked and not self._is_overdue(watch, now)
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
        self._is_out = False
        """The store cannot be reached, or takes no renewal: said once."""
        self._is_late = False
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False only after it ended: before its start there is nothing to renew."""
        return self._thread.ident is None or self._thread.is_alive()

    def stop(self) -> None:
        # In this order: a loop that begins between the two finds the first.
        self._stopping.set()
        if self._end is not None:
            self._end.tell()

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
        self._end = _End(asyncio.get_running_loop())
        # Side by side, because a connection that hangs must not let a handler run beyond its lease.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stop_in_time())
            tasks.create_task(self._renew_in_time())

    async def _stop_in_time(self) -> None:
        looked, patient_until = lease_now(), 0.0
        while not self._stopping.is_set():
            self._rules.watch(self._held_jobs())
            lease = self._rules.shortest_lease(self._default_lease)
            now = lease_now()
            if now - looked > lease / 6:
                # The whole process was paused. The next renewal finds out which of its leases that has cost.
                patient_until = now + lease / 6
            looked = now
            if now >= patient_until:
                self._interrupt(self._rules.to_stop(now))
            await self._pause(min(0.5, lease / 24))

    async def _renew_in_time(self) -> None:
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as exits:
                    renewer = await self._connected(exits)
                    while not self._stopping.is_set():
                        await self._turn(renewer)
            except (Exception, asyncio.CancelledError) as error:
                # A task group lets a canceled task go without a word, and then nobody would renew.
                if is_being_canceled():
                    raise
                if self._is_out:
                    await self._pause(min(0.5, self._rules.shortest_lease(self._default_lease) / 20))
                else:
                    # The first new connection comes at once: most failures are of the old one alone.
                    # An error nobody foresaw is worth its traceback, but leases are worth more: connect again.
                    unforeseen = not isinstance(error, HoldfastError | asyncio.CancelledError)
                    log.warning(
                        "lease keeper cannot reach the store, trying again", error=str(error), exc_info=unforeseen
                    )
                    self._is_out = True

    async def _connected(self, exits: contextlib.AsyncExitStack) -> Renewer:
        try:
            async with asyncio.timeout(self._rules.shortest_lease(self._default_lease) / 3):
                return await exits.enter_async_context(self._connect())
        except TimeoutError:
            raise StoreUnavailable("no connection in time") from None

    async def _turn(self, renewer: Renewer) -> None:
        now = lease_now()
        self._rules.watch(self._held_jobs())
        self._tell_if_late(self._rules.latest_gap(now))
        renewals = self._rules.to_renew(now)
        lease = self._rules.shortest_lease(self._default_lease)
        if renewals:
            reach("renew.before")
            try:
                async with asyncio.timeout(lease * ANSWERED):
                    answers = await renewer.renew(list(renewals.values()))
            except TimeoutError:
                raise StoreUnavailable("the renewal was not answered in time") from None
            reach("renew.after")
            self._interrupt(self._rules.learn(now, renewals, answers))
        if self._is_out:
            # Not as soon as there is a connection: a server that is read-only, for one, lets everybody in.
            log.warning("lease keeper is connected again")
            self._is_out = False
        # Not beyond the next renewal: what it came late would be missing when the server says nothing.
        next_renewal = max(_SHORTEST_TURN_SECONDS, self._rules.next_renewal(lease_now()))
        await self._pause(min(lease / 12, _PROGRESS_SECONDS, next_renewal))

    def _tell_if_late(self, gap: float) -> None:
        """Once, until renewals are in time again; in an outage they are late for a reason that is known."""
        was_late, self._is_late = self._is_late, gap > self._renew_at + _LATE
        if self._is_late and not was_late and not self._is_out:
            log.warning(
                "renewal comes late: something holds the interpreter or the store is slow; "
                'long-running C code and regular expressions belong in isolation="process"',
                share_of_lease=round(gap, 2),
            )

    def _interrupt(self, stops: list[Stop]) -> None:
        for stop in stops:
            log.warning("stopping handler", why=stop.why, **stop.held.named, fence=stop.held.job.lease.fence)
            stop.held.interrupt_from_thread(stop.why)

    async def _pause(self, seconds: float) -> None:
        if self._end is not None:
            await self._end.within(seconds)


class _End:
    """Ends every pause of one event loop, told from any thread: a threading.Event could only be asked now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told = asyncio.Event()

    def tell(self) -> None:
        # A loop that is closed pauses no more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told.set)

    async def within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
