"""Whether a process is alive and whether it is ready, as values.

Alive: restarting the process would not help. Ready: it can do its work right now. health_server.py serves both over
HTTP.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.domain.errors import HoldfastError, SchemaMismatch
from holdfast.logs.records import get_logger

log = get_logger("holdfast.health")

STORE_SECONDS = 2.0
STALLED_SECONDS = 30.0
_RETENTION_SECONDS = 60.0
_BEAT_SECONDS = 1.0
# The event loop's reference does not keep a task from being garbage-collected.
_ASKED: "set[asyncio.Task[tuple[Check, ...]]]" = set()


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """OK if every check is."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, object]:
        checks = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in self.checks]
        return {"ok": self.ok, "checks": checks}

    def __add__(self, other: "Health") -> "Health":
        return Health(self.checks + other.checks)


STOPPING = Health((Check("worker", False, "stopping: no new work starts"),))


async def readiness(
    app: Holdfast, *, broker_connected: Callable[[], bool] | None = None, seconds: float = STORE_SECONDS
) -> Health:
    """Whether the store answers in time with the right schema, and the broker is connected if it counts."""
    probe = ReadinessProbe(app, broker_connected=broker_connected, seconds=seconds)
    try:
        return await probe.look()
    finally:
        probe.give_up()


class ReadinessProbe:
    """Checks readiness repeatedly. Asks a store that hangs only once, instead of opening a connection for each look.

    The question to the store therefore runs until the store's own timeout. Abandoning it would leave the server working
    for a closed connection, and the next look would open another one.
    """

    def __init__(
        self,
        app: Holdfast,
        *,
        broker_connected: Callable[[], bool] | None = None,
        not_started: Callable[[], str | None] | None = None,
        seconds: float = STORE_SECONDS,
    ) -> None:
        """`not_started` says why the worker cannot start some of its handlers."""
        self._app = app
        self._broker_connected = broker_connected
        self._not_started = not_started
        self._seconds = seconds
        self._asked: asyncio.Task[tuple[Check, ...]] | None = None
        self._retention: tuple[float, Check] | None = None

    async def look(self) -> Health:
        checks = await self._store()
        if self._broker_connected is not None:
            connected = self._broker_connected()
            checks += (Check("broker", connected, "connected" if connected else "not connected; polling continues"),)
        if self._not_started is not None:
            why = self._not_started()
            said = "can be started" if why is None else f"cannot be started: {why}"
            checks += (Check("handlers", why is None, said),)
        return Health(checks)

    def give_up(self) -> None:
        """Cancel a question that has no answer yet. Call this after the last look."""
        if self._asked is not None:
            self._asked.cancel()

    async def _store(self) -> tuple[Check, ...]:
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask())
            _ASKED.add(self._asked)
            self._asked.add_done_callback(_ASKED.discard)
        await asyncio.wait([self._asked], timeout=self._seconds)
        if not self._asked.done():
            return _unknown_schema(f"no answer within {self._seconds:g} s")
        if self._asked.cancelled():
            return _unknown_schema("the check was canceled")
        return self._asked.result()

    async def _ask(self) -> tuple[Check, ...]:
        started = time.monotonic()
        try:
            await self._app.opened.check()
            took = (time.monotonic() - started) * 1000
            retention = await self._ask_retention()
        except SchemaMismatch as error:
            return Check("store", True, "answers"), Check("schema", False, str(error))
        except HoldfastError as error:
            return _unknown_schema(str(error))
        except Exception as error:
            log.exception("readiness check failed")
            return _unknown_schema(f"unexpected error: {type(error).__name__}")
        schema = Check("schema", True, "the one this release knows")
        return Check("store", True, f"answered in {took:.1f} ms"), schema, retention

    async def _ask_retention(self) -> Check:
        """Report overdue retention, but always as OK: restarting the process would not make it catch up faster."""
        if self._retention is None or time.monotonic() - self._retention[0] > _RETENTION_SECONDS:
            maintenance = self._app.opened.maintenance
            overdue = await maintenance.overdue_days(self._app.settings.retention)
            said = [f"behind: {overdue[0]} should be gone"] if overdue else []
            said += [f"{chore}: {trouble}" for chore, trouble in (await maintenance.troubles()).items()]
            state = "; ".join([*said, "see `holdfast doctor`"]) if said else "nothing is overdue"
            self._retention = time.monotonic(), Check("retention", True, state)
        return self._retention[1]


def _unknown_schema(why: str) -> tuple[Check, ...]:
    return Check("store", False, why), Check("schema", False, "unknown while the store does not answer")


class Pulse:
    """Records when the event loop last turned. Started on the loop, read from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turned = time.monotonic()
        self._next: asyncio.TimerHandle | None = None
        self._beat()

    def _beat(self) -> None:
        self._turned = time.monotonic()
        self._next = self._loop.call_later(_BEAT_SECONDS, self._beat)

    def seconds_since(self) -> float:
        return time.monotonic() - self._turned

    def nudge(self) -> None:
        """Request a turn now, from another thread: after a pause of the whole process, the last beat means nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        self._turned = time.monotonic()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()


def liveness(
    seconds_since_turn: float, keeper_alive: bool | None = None, *, stalled_after: float = STALLED_SECONDS
) -> Health:
    """Whether the event loop turned recently and the lease keeper's thread is alive (None: there is no keeper).

    Uses only these values, so it works while the loop or the store hangs.
    """
    turned = f"turned {seconds_since_turn:.1f} s ago"
    checks = [Check("event loop", seconds_since_turn <= stalled_after, turned)]
    if keeper_alive is not None:
        checks.append(Check("lease keeper", keeper_alive, "running" if keeper_alive else "its thread is gone"))
    return Health(tuple(checks))
