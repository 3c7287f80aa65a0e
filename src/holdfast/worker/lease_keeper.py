"""Keeps the leases of this process alive, in its own thread and on its own connection.

While the event loop is blocked, it also gives back jobs that have not started, because only the loop could start them.

`KeeperRules` makes the decisions, as step functions without a clock or thread, so that a simulation can drive it.
`LeaseKeeper` runs the rules in a thread that survives a blocked event loop and a lost connection.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta

from holdfast.domain.errors import AccessRefused, HoldfastError, StoreUnavailable
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.logs.records import get_logger
from holdfast.store.contract import Fenced, Renewal, Renewed, Renewer
from holdfast.worker.held import HeldJob, Interruption
from holdfast.worker.renewing import Renewing

log = get_logger("holdfast.lease_keeper")

GRACE_SECONDS = 5.0
"""How long a handler may take to stop, and how long after a timeout the event loop may take to tell it to."""

ANSWERED = 1 / 10
"""The share of a lease within which a renewal must be answered. It starts after a third of the lease, so there is time
for a new connection and a second try before half of the lease is over: 0.2 s for a lease of 3 s."""

_LOCKED_SECONDS = 0.25
_OVERDUE_SECONDS = 0.05
_LOCKED_TRUST = 1 / 4
"""How long, as a share of the lease, to rely on the answer that the handler's own transaction holds the lock."""

_RELEASED_AT_ONCE = 500
_LATE = 1 / 6
_PROGRESS_SECONDS = 1.0
_REFUSED_SHARE, _LONGEST_REFUSED_SECONDS = 1 / 12, 30.0
"""The first wait before a refused renewal is tried again, as a share of the lease, and the longest."""
_SHORTEST_TURN_SECONDS = 0.01
_UNREACHABLE = "lease keeper cannot reach the store, trying again"


@dataclass(slots=True)
class _Watch:
    """What the keeper knows about one lease."""

    held: HeldJob
    renewed: float
    progress: Json | None = None
    progress_written: float = float("-inf")
    locked: float = float("-inf")
    """When the last renewal that found the lease locked was sent."""
    refusals: int = 0
    """How often in a row the store refused to renew this lease, even alone."""
    refused_until: float = float("-inf")
    was_refused: bool = False
    was_progress_dropped: bool = False
    lost: bool = False
    stopping: bool = False

    @property
    def is_locked(self) -> bool:
        return self.locked > self.renewed

    @property
    def locked_pause(self) -> float:
        """The wait before the next try. Once the lease has expired, the first to try after the unlock gets it."""
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
        """Record what the process currently holds."""
        known, self._watches = self._watches, {}
        for held in held_jobs:
            watch = known.get(held)
            if watch is None:
                watch = _Watch(held, renewed=held.claimed)
            self._watches[held] = watch

    def to_renew(self, now: float) -> dict[HeldJob, Renewal]:
        """Leases to renew together. Refused ones are left out, because each of them would fail them all."""
        renewals = {}
        for watch in self._watches.values():
            if watch.lost or watch.refusals or self._is_overdue(watch, now):
                continue
            progress = self._unwritten_progress(watch, now)
            if self._renewal_in(watch, now) <= 0 or progress is not None:
                renewals[watch.held] = _renewal(watch.held, progress)
        return renewals

    def to_try_again(self, now: float) -> dict[HeldJob, Renewal]:
        """Refused leases to renew one by one."""
        return {
            watch.held: _renewal(watch.held)
            for watch in self._watches.values()
            if watch.refusals and not watch.lost and not self._is_overdue(watch, now)
            if self._renewal_in(watch, now) <= 0
        }

    def refused(self, held: HeldJob, now: float) -> bool:
        """The store refuses to renew this lease even alone. Returns whether that is news."""
        watch = self._watches.get(held)
        if watch is None:
            return False
        wait = min(held.extend * _REFUSED_SHARE * 2 ** min(watch.refusals, 10), _LONGEST_REFUSED_SECONDS)
        watch.refusals += 1
        watch.refused_until = now + wait
        is_news, watch.was_refused = not watch.was_refused, True
        return is_news

    def drop_progress(self, held: HeldJob, progress: Json | None, now: float) -> bool:
        """The store refuses this progress report. Returns whether it is the first of this job."""
        watch = self._watches.get(held)
        if watch is None:
            return False
        watch.progress, watch.progress_written = progress, now
        is_first, watch.was_progress_dropped = not watch.was_progress_dropped, True
        return is_first

    def next_renewal(self, now: float) -> float:
        """Seconds until a lease must be renewed; infinite if none must."""
        due = (
            self._renewal_in(watch, now)
            for watch in self._watches.values()
            if not watch.lost and not self._is_overdue(watch, now)
        )
        return max(0.0, min(due, default=math.inf))

    def _renewal_in(self, watch: _Watch, now: float) -> float:
        if watch.refusals:
            return watch.refused_until - now
        if watch.is_locked:
            return watch.locked + watch.locked_pause - now
        return watch.renewed + watch.held.extend * self._renew_at - now

    def learn(self, sent_at: float, renewals: Mapping[HeldJob, Renewal], answers: Iterable[Renewed]) -> list[Stop]:
        """Process the store's answers, in order, to renewals that were sent at `sent_at`."""
        stops: list[Stop] = []
        for (held, renewal), answer in zip(renewals.items(), answers, strict=True):
            watch = self._watches.get(held)
            if watch is None:
                continue
            watch.refusals = 0
            match answer.fenced:
                case Fenced.DONE:
                    watch.renewed = sent_at
                    watch.held.safe_until = sent_at + watch.held.extend
                    if renewal.progress is not None:
                        watch.progress, watch.progress_written = renewal.progress, sent_at
                    if answer.cancel_requested:
                        self._stop(stops, watch, Interruption.CANCELED)
                case Fenced.LOCKED:
                    # Nothing was renewed, so the lease ends when it would have. The lock may be held by its handler's
                    # own transaction, which may roll back, or by a rescue that is about to commit.
                    watch.locked = sent_at
                case Fenced.ALREADY:
                    watch.lost = True
                case Fenced.STALE:
                    watch.lost = True
                    self._stop(stops, watch, Interruption.LEASE_LOST)
        return stops

    def unstarted(self) -> list[HeldJob]:
        return [watch.held for watch in self._watches.values() if watch.held.is_unstarted and not watch.lost]

    def released(self, held_jobs: Iterable[HeldJob], answers: Iterable[Fenced]) -> None:
        """Process the store's answers to a release."""
        for held, fenced in zip(held_jobs, answers, strict=True):
            if fenced is not Fenced.LOCKED and (watch := self._watches.get(held)) is not None:
                watch.lost = True

    def to_stop(self, now: float) -> list[Stop]:
        """Handlers whose lease is about to end without a renewal. They are stopped while it is still certainly ours."""
        stops: list[Stop] = []
        for watch in self._watches.values():
            if watch.held.nears_end(now) and not watch.lost and not self._is_being_finished(watch, now):
                self._stop(stops, watch, Interruption.UNRENEWED)
        return stops

    def _is_being_finished(self, watch: _Watch, now: float) -> bool:
        """Whether its handler's own transaction is finishing the job: no other worker can get it before that ends."""
        return watch.held.is_finishing and watch.is_locked and now < watch.locked + watch.held.extend * _LOCKED_TRUST

    def _stop(self, stops: list[Stop], watch: _Watch, why: Interruption) -> None:
        # The handler of a settled job has ended, and the finisher deals with its outcome. A handler that keeps running
        # although it was told to stop has nothing left to write once its lease is lost.
        if not watch.held.settled and (why is Interruption.LEASE_LOST or not watch.stopping):
            watch.stopping = True
            stops.append(Stop(watch.held, why))

    def shortest_lease(self, default: float) -> float:
        return min((watch.held.extend for watch in self._watches.values()), default=default)

    def latest_gap(self, now: float) -> float:
        """The largest share of a lease that has passed since its last renewal."""
        ages = [
            (now - watch.renewed) / watch.held.extend
            for watch in self._watches.values()
            if not watch.lost and not watch.is_locked and not watch.refusals and not self._is_overdue(watch, now)
        ]
        return max(ages, default=0.0)

    def _is_overdue(self, watch: _Watch, now: float) -> bool:
        """Whether the handler is past its timeout and the event loop has not noticed, so this worker cannot help it."""
        held, limit = watch.held, watch.held.handler.timeout.total_seconds() + GRACE_SECONDS
        is_known = held.settled or held.interruption is not None or held.has_running_thread
        return not is_known and held.started is not None and now > held.started + limit

    def _unwritten_progress(self, watch: _Watch, now: float) -> Json | None:
        progress = watch.held.progress
        if progress is None or progress == watch.progress or now < watch.progress_written + _PROGRESS_SECONDS:
            return None
        return progress


def _renewal(held: HeldJob, progress: Json | None = None) -> Renewal:
    return Renewal(held.job.lease, timedelta(seconds=held.extend), progress)


class LeaseKeeper:
    """The thread. `connect` opens a renewer that only this thread uses."""

    def __init__(
        self,
        held_jobs: Callable[[], list[HeldJob]],
        connect: Callable[[], AbstractAsyncContextManager[Renewer]],
        default_lease: float,
        renew_at: float = 1 / 3,
        look_at_loop: Callable[[], None] = lambda: None,
        is_loop_blocked: Callable[[], bool] = lambda: False,
    ) -> None:
        """`look_at_loop` is called at least every half second, even while the event loop is blocked."""
        self._look_at_loop = look_at_loop
        self._is_loop_blocked = is_loop_blocked
        self._held_jobs = held_jobs
        self._connect = connect
        self._default_lease = default_lease
        self._renew_at = renew_at
        self._rules = KeeperRules(renew_at)
        self._renewing = Renewing(self._rules, self._interrupt)
        self._stopping = threading.Event()
        self._is_out = False
        """Whether the store is unreachable or accepts no renewals. Logged once."""
        self._is_late = False
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is alive. Also true before the start, when there is nothing to renew."""
        return self._thread.ident is None or self._thread.is_alive()

    def stop(self) -> None:
        # In this order, so that a loop that begins between the two steps sees the first.
        self._stopping.set()
        if self._end is not None:
            self._end.tell()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._keep())
            except Exception as error:
                if self._stopping.is_set():
                    # To end its default executor, an event loop starts a thread.
                    log.warning("lease keeper could not end in order", error=str(error))
                    return
                log.exception("lease keeper failed, starting again")
                self._stopping.wait(0.5)

    async def _keep(self) -> None:
        self._end = _End(asyncio.get_running_loop())
        # Concurrently, because a hanging connection must not let a handler run beyond its lease.
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
                # The whole process was paused. The next renewal shows which leases that has cost.
                patient_until = now + lease / 6
            looked = now
            if now >= patient_until:
                self._interrupt(self._rules.to_stop(now))
            self._look_at_loop()
            await self._pause(min(0.5, lease / 24))

    async def _renew_in_time(self) -> None:
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as exits:
                    renewer = await self._connected(exits)
                    while not self._stopping.is_set():
                        await self._turn(renewer)
            except (Exception, asyncio.CancelledError) as error:
                # A task group ignores a canceled task, and then nothing would renew leases.
                if is_being_canceled():
                    raise
                if self._is_out:
                    await self._pause(min(0.5, self._rules.shortest_lease(self._default_lease) / 20))
                else:
                    # Reconnect immediately the first time: most failures affect only the old connection.
                    # Even after an unexpected error, log its traceback and reconnect, because leases matter more.
                    unforeseen = not isinstance(error, HoldfastError | asyncio.CancelledError)
                    is_outage = isinstance(error, StoreUnavailable) and not isinstance(error, AccessRefused)
                    message = _UNREACHABLE if is_outage else "lease keeper cannot renew leases, trying again"
                    log.warning(message, error=str(error), exc_info=unforeseen)
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
            await self._renewing.renew(renewer, renewals, lease * ANSWERED)
        if refused := self._rules.to_try_again(lease_now()):
            await self._renewing.try_again(renewer, refused, lease * ANSWERED)
        has_more = self._is_loop_blocked() and await self._give_back(renewer, lease * ANSWERED)
        if self._is_out:
            # A connection alone proves little: a read-only server, for example, accepts connections too.
            log.warning("lease keeper is connected again")
            self._is_out = False
        # Not beyond the next renewal: the time lost would be missing if the server does not answer.
        next_renewal = 0.0 if has_more else self._rules.next_renewal(lease_now())
        await self._pause(min(lease / 12, _PROGRESS_SECONDS, max(_SHORTEST_TURN_SECONDS, next_renewal)))

    async def _give_back(self, renewer: Renewer, seconds: float) -> bool:
        """Give back jobs that have not started; return whether there are more. Renewals, also of jobs that are not
        released yet, have a turn between two releases.

        When the loop is unblocked, it releases everything that was withdrawn once more.
        """
        withdrawn = [held for held in self._rules.unstarted() if held.withdraw()]
        if not withdrawn:
            return False
        first = withdrawn[:_RELEASED_AT_ONCE]
        try:
            async with asyncio.timeout(seconds):
                answers = await renewer.release([held.job.lease for held in first])
        except TimeoutError:
            raise StoreUnavailable("the release was not answered in time") from None
        self._rules.released(first, answers)
        log.warning("the event loop is blocked, gave back jobs that had not started", count=len(first))
        return len(withdrawn) > len(first)

    def _tell_if_late(self, gap: float) -> None:
        """Warn once until renewals are on time again, but not in an outage, when the reason is known."""
        was_late, self._is_late = self._is_late, gap > self._renew_at + _LATE
        if self._is_late and not was_late and not self._is_out:
            log.warning(
                "renewal is late: something is holding the GIL or the store is slow; "
                'run long-running C code and regular expressions with isolation="process"',
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
    """Ends every pause of one event loop, from any thread. A threading.Event could only be polled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told = asyncio.Event()

    def tell(self) -> None:
        # A closed loop has no pauses to end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told.set)

    async def within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
