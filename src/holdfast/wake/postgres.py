"""Being woken by PostgreSQL: LISTEN on a connection of its own, and the rows that tell producers who sleeps.

Say `asleep()` before each wait with free slots; while the rows are there it does nothing. If it returns False they are
written at once, and `wake(None)` follows: look once more, for a producer that committed before did not see them. Say
`awake()` when there is no time to wait: the rows go when no `asleep()` follows for about a second. They go for a second
when rings come faster than a hundred a second, because each of them makes commits wait for each other.
"""

import asyncio
import hashlib
import time
from collections.abc import Collection, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.retry import exponential
from holdfast.log import get_logger
from holdfast.store.postgres.driver import Address, open_session
from holdfast.store.postgres.sql_files import quoted, statement
from holdfast.wake import Wake
from holdfast.wake.answers import answered
from holdfast.wake.link import Link

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.wake")

Answer = TypeVar("Answer")

_BACKOFF = exponential(base="100ms", max="2s")
_SLEEP = timedelta(seconds=15)
_RENEW_SECONDS = 5.0
_PING = timedelta(seconds=_RENEW_SECONDS)
"""Together with the renewals, which are as good as pings."""
_COUNTED_SECONDS = 0.5
_MOST_RINGS = 50
"""In that time; more are not worth what they cost the producers."""
_QUIET_SECONDS = 1.0
_LINGER_SECONDS = 1.0
_FORGET_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_LAST_WORD_SECONDS = 1.0


def channel(schema: str) -> str:
    """Keep in sync with schema/functions/ring.sql, where the quoted schema takes the place of `holdfast`."""
    name = f"{quoted(schema)}.wake"
    return f"holdfast_{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()}"


def listener_url(store_url: str, listen_url: str | None) -> str | None:
    """Where to listen; None if the store is behind PgBouncer, where LISTEN is lost, and no way past it is known."""
    if listen_url is not None:
        return listen_url
    if Address.parse(store_url).pooled:
        log.warning("no wake-ups by PostgreSQL: set HOLDFAST_LISTEN_URL to its address past PgBouncer; polling goes on")
        return None
    return store_url


class Listener:
    """Calls `wake(queue)` when a producer rings for one of the queues, and `wake(None)` when one may have been missed.

    `run` returns only after `stop`, whatever happens to the database. A closed connection is noticed at once, a dead
    one by a ping that is not answered in `patience`.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        queues: Collection[str],
        wake: Wake,
        *,
        holder: UUID | None = None,
        ping: timedelta = _PING,
        patience: timedelta = timedelta(seconds=2),
    ) -> None:
        Address.parse(url)
        self._url = url
        self._schema = schema
        self._queues = frozenset(queues)
        self._wake = wake
        self._holder = holder or uuid4()
        self._ping_seconds = ping.total_seconds()
        self._patience = patience.total_seconds()
        self._link = Link("PostgreSQL", self._session, _BACKOFF)
        self._changed = asyncio.Event()
        self._busy_since: float | None = float("-inf")
        self._registered: float | None = None
        """When the rows were last written; None if there are none, or none that can be relied on."""
        self._is_relied_on = False
        """Somebody sleeps for long, because it would be told."""
        self._forgot = float("-inf")
        self._quiet_until = float("-inf")
        """Rings came too fast: until then there are no rows, and then one `wake(None)` for all that came meanwhile."""
        self._rings = 0
        self._counting_since = float("-inf")

    @property
    def is_listening(self) -> bool:
        return self._link.is_up

    def asleep(self) -> bool:
        """Whether producers know; if not, they soon will, and then `wake(None)` is called."""
        self._busy_since = None
        self._is_relied_on = self._registered is not None
        if not self._is_relied_on:
            self._changed.set()
        return self._is_relied_on

    def awake(self) -> None:
        if self._busy_since is None:
            self._busy_since = time.monotonic()

    async def run(self) -> None:
        await self._link.run()

    def stop(self) -> None:
        """`run` removes the rows and returns, in a few seconds at most."""
        self._link.stop()
        self._changed.set()

    async def _session(self) -> None:
        connection = await self._link.within(_CONNECT_SECONDS, open_session(self._url))
        try:
            connection.add_termination_listener(lambda _: self._changed.set())
            await self._answer(connection, connection.add_listener(channel(self._schema), self._heard))
            # Also shows whether there is such a table and whether it may be written, before anybody says "back".
            await self._forget_sleepers(connection)
            self._link.up()
            await self._serve(connection)
        finally:
            self._registered = None
            connection.terminate()
            if self._is_relied_on and not self._link.stopping.is_set():
                self._wake_all()

    async def _serve(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """A step: bring the rows up to date, make sure that somebody is there, wait for a change."""
        greeted = False
        answered = time.monotonic()
        while not self._link.stopping.is_set():
            self._changed.clear()
            if connection.is_closed():
                raise StoreUnavailable("PostgreSQL closed the connection")
            now = time.monotonic()
            wrote, is_fresh = await self._keep_rows(connection, now)
            if not greeted or is_fresh:
                self._wake_all()
                greeted = True
            if not wrote and now >= answered + self._ping_seconds:
                await self._answer(connection, connection.execute("SELECT 1"))
                wrote = True
            if wrote:
                answered = now
            now = time.monotonic()
            next_step = answered + self._ping_seconds
            await self._wait((min(next_step, self._quiet_until) if now < self._quiet_until else next_step) - now)
        if self._registered is not None:
            await self._answer(connection, self._remove_rows(connection), _LAST_WORD_SECONDS)

    def _wake_all(self) -> None:
        self._is_relied_on = False
        self._wake(None)

    async def _keep_rows(self, connection: "asyncpg.Connection[asyncpg.Record]", now: float) -> tuple[bool, bool]:
        """Whether anything was written, and whether the rows are new."""
        is_busy = self._busy_since is not None and now >= self._busy_since + _LINGER_SECONDS
        if is_busy or now < self._quiet_until:
            if self._registered is None:
                return False, False
            # Said before it is done: an `asleep()` meanwhile must not rely on rows that are about to go.
            self._registered = None
            await self._answer(connection, self._remove_rows(connection))
            return True, False
        is_fresh = self._registered is None
        if self._registered is not None and now < self._registered + _RENEW_SECONDS:
            return False, False
        if now >= self._forgot + _FORGET_SECONDS:
            await self._forget_sleepers(connection)
        asleep = statement("asleep", self._schema)
        await self._answer(connection, connection.execute(asleep, sorted(self._queues), self._holder, _SLEEP))
        self._registered = now
        return True, is_fresh

    def _remove_rows(self, connection: "asyncpg.Connection[asyncpg.Record]") -> Coroutine[Any, Any, str]:
        return connection.execute(statement("awake", self._schema), sorted(self._queues), self._holder)

    async def _forget_sleepers(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await self._answer(connection, connection.execute(statement("forget_sleepers", self._schema)))
        self._forgot = time.monotonic()

    def _heard(self, connection: object, pid: int, channel: str, payload: object) -> None:  # noqa: ARG002
        if payload in self._queues:
            self._count_ring()
            self._wake(str(payload))

    def _count_ring(self) -> None:
        now = time.monotonic()
        if now >= self._counting_since + _COUNTED_SECONDS:
            self._counting_since, self._rings = now, 0
        self._rings += 1
        if self._rings == _MOST_RINGS:
            # Every ring makes a commit wait for the one before it. Where they come so often, one a second is enough.
            self._quiet_until = now + _QUIET_SECONDS
            self._changed.set()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _answer(
        self,
        connection: "asyncpg.Connection[asyncpg.Record]",
        request: Coroutine[Any, Any, Answer],
        seconds: float | None = None,
    ) -> Answer:
        return await answered(connection, request, self._patience if seconds is None else seconds)
