"""Whether a process is alive and whether it is ready, as values.

Alive: it would not help to restart it. Ready: it can do its work at this moment. health_server.py answers with them
over HTTP.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.domain.errors import HoldfastError, SchemaMismatch
from holdfast.log import get_logger

log = get_logger("holdfast.health")

STORE_SECONDS = 2.0
STALLED_SECONDS = 30.0
_RETENTION_SECONDS = 60.0
_BEAT_SECONDS = 1.0
# An event loop alone does not keep a task from being collected.
_ASKED: "set[asyncio.Task[tuple[Check, ...]]]" = set()


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """Fine if every check is."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, object]:
        checks = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in self.checks]
        return {"ok": self.ok, "checks": checks}

    def __add__(self, other: "Health") -> "Health":
        return Health(self.checks + other.checks)


STOPPING = Health((Check("worker", False, "stopping: starts nothing new"),))


async def readiness(
    app: Holdfast, *, broker_connected: Callable[[], bool] | None = None, seconds: float = STORE_SECONDS
) -> Health:
    """Whether the store answers within that time with the right schema, and the broker if it counts."""
    probe = ReadinessProbe(app, broker_connected=broker_connected, seconds=seconds)
    try:
        return await probe.look()
    finally:
        probe.give_up()


class ReadinessProbe:
    """Asks again and again. A store that hangs is asked once, and not with one more connection each time.

    So its question goes on until the store's own timeout: given up, it would leave the server at work behind a
    connection that is gone, and the next look would open another.
    """

    def __init__(
        self, app: Holdfast, *, broker_connected: Callable[[], bool] | None = None, seconds: float = STORE_SECONDS
    ) -> None:
        self._app = app
        self._broker_connected = broker_connected
        self._seconds = seconds
        self._asked: asyncio.Task[tuple[Check, ...]] | None = None
        self._retention: tuple[float, Check] | None = None

    async def look(self) -> Health:
        checks = await self._store()
        if self._broker_connected is not None:
            connected = self._broker_connected()
            checks += (Check("broker", connected, "connected" if connected else "not connected; polling goes on"),)
        return Health(checks)

    def give_up(self) -> None:
        """Nobody will look again: let go of a question that has no answer yet."""
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
            return _unknown_schema("the question was canceled")
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
            log.exception("readiness could not be found out")
            return _unknown_schema(f"unexpected error: {type(error).__name__}")
        schema = Check("schema", True, "the one this release knows")
        return Check("store", True, f"answered in {took:.1f} ms"), schema, retention

    async def _ask_retention(self) -> Check:
        """Says so and is fine all the same: a process that is restarted for it would not catch up faster."""
        if self._retention is None or time.monotonic() - self._retention[0] > _RETENTION_SECONDS:
            overdue = await self._app.opened.maintenance.overdue_days(self._app.settings.retention)
            behind = f"behind: {overdue[0]} should be gone; see `holdfast doctor`" if overdue else "nothing is overdue"
            self._retention = time.monotonic(), Check("retention", True, behind)
        return self._retention[1]


def _unknown_schema(why: str) -> tuple[Check, ...]:
    return Check("store", False, why), Check("schema", False, "not known while the store does not answer")


class Pulse:
    """Notes that the event loop turns. Started on the loop, read from any thread."""

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
        """Ask for a turn now, from a thread: after a pause of the whole process the last beat says nothing."""
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
    """Whether the event loop turned lately and the lease keeper's thread lives (None: there is none to live).

    Asks nobody, so that it can be answered while the loop or the store hangs.
    """
    turned = f"turned {seconds_since_turn:.1f} s ago"
    checks = [Check("event loop", seconds_since_turn <= stalled_after, turned)]
    if keeper_alive is not None:
        checks.append(Check("lease keeper", keeper_alive, "runs" if keeper_alive else "its thread is gone"))
    return Health(tuple(checks))
