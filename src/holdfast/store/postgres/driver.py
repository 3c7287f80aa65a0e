"""The boundary to asyncpg: connections and the pool. translation.py turns its exceptions into Holdfast's."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
from asyncpg import exceptions as pg

from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.store.postgres.address import Address, through_pooler
from holdfast.store.postgres.connecting import (
    COMMAND_SECONDS,
    CONNECT_SECONDS,
    Connection,
    PooledConnection,
    connecting,
    read_committed,
)
from holdfast.store.postgres.translation import LeaseLocked, translated, translation

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

__all__ = [
    "BY_INDEX",
    "COMMAND_SECONDS",
    "CONNECT_SECONDS",
    "Address",
    "CopyRefused",
    "LeaseLocked",
    "Pool",
    "copy_refusals",
    "is_pooled",
    "open_connection",
    "open_pool",
    "open_session",
    "read_committed",
    "round_trip",
    "stay",
    "through_pooler",
    "translated",
    "translation",
    "while_connected",
]

# A plan made while the table was small would read all of it once it is large. These settings apply to one transaction:
# session settings do not survive PgBouncer, and pinning them to a function would mean one more function to install.
BY_INDEX = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL jit = off
"""
# A role's own timeout would end a session that only listens, or that waits to renew a lease. A server without it
# returns no row.
_STAY = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
_AT_HAND = 2
"""One for a claim or an enqueue, and one for a finish at the same time."""
_IDLE_SECONDS = 60.0
"""Routers drop connections that are idle for minutes. Unused connections go back to the driver, which closes them."""

_ROUND_TRIPS = 3


async def is_pooled(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Whether a pooler, such as PgBouncer, sits between this client and the server.

    A pooler makes up the process id it reports, because its clients have no server process of their own. The query has
    no parameters, because those would prepare a statement and leave it in a connection that another client gets next.
    """
    status = await connection.execute(f"SELECT FROM pg_backend_pid() AS pid WHERE pid = {connection.get_server_pid()}")
    return status != "SELECT 1"


async def round_trip(connection: "asyncpg.Connection[asyncpg.Record]") -> timedelta:
    """Measure an empty query. Returns the shortest of several, because any of them may be delayed."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(_ROUND_TRIPS):
        started = loop.time()
        await connection.execute("SELECT")
        took.append(loop.time() - started)
    return timedelta(seconds=min(took))


@asynccontextmanager
async def while_connected(connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[None]:
    """Limit the block to the time of one command, and end it when the connection is lost.

    The driver has no limit for a COPY that waits to send more, and does not notify it when the connection is gone.
    """
    loop = asyncio.get_running_loop()
    itself: asyncpg.Connection[asyncpg.Record] = getattr(connection, "itself", connection)
    is_over = is_lost = False

    def lose(_: object) -> None:
        nonlocal is_lost
        if not is_over and not limit.expired():
            is_lost = True
            limit.reschedule(loop.time())

    try:
        async with asyncio.timeout(COMMAND_SECONDS) as limit:
            itself.add_termination_listener(lose)
            try:
                yield
            finally:
                is_over = True
                itself.remove_termination_listener(lose)
                if itself.is_closed():
                    # A request stopped after the loss would wait for an answer, in one of the driver's tasks.
                    itself.terminate()
    except TimeoutError as error:
        if is_lost:
            raise pg.ConnectionDoesNotExistError("the connection was lost while sending jobs") from error
        raise


class CopyRefused(HoldfastError):
    """The server accepts these rows only through a statement."""


@contextmanager
def copy_refusals() -> Iterator[None]:
    """Translate refusals: with row level security, for example, PostgreSQL accepts INSERT but not COPY."""
    try:
        yield
    except pg.FeatureNotSupportedError as error:
        raise CopyRefused(f"PostgreSQL refused: {error}") from error


class Pool:
    """Wraps asyncpg's pool, and keeps a few connections at hand between statements.

    Returning a connection and taking it again requires a task, and with the driver's own reset a query: together more
    than half the time of a commit. A connection whose statement failed is always returned, and the driver checks it.
    """

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", *, has_several_hosts: bool = False) -> None:
        self._pool = pool
        self._has_several_hosts = has_several_hosts
        self._loop = asyncio.get_running_loop()
        self._at_hand: list[_Taken] = []
        """The most recently returned connection is last, and is taken first."""
        self._next_look: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None
        self._waiting = 0

    async def fetch(self, sql: str, *arguments: object) -> "list[asyncpg.Record]":
        taken = self._at_hand_and_fit() or await self._take()
        try:
            rows: list[asyncpg.Record] = await taken.itself.fetch(sql, *arguments)
        except BaseException as error:
            await self._give_up(taken, error)
            raise
        if not self._keeps_at_hand(taken):
            await self._pool.release(taken.connection)
        return rows

    @asynccontextmanager
    async def acquire(self) -> "AsyncIterator[PoolConnectionProxy[asyncpg.Record]]":
        taken = self._at_hand_and_fit() or await self._take()
        try:
            yield taken.connection
        except BaseException as error:
            await self._give_up(taken, error)
            raise
        if not self._keeps_at_hand(taken):
            await self._pool.release(taken.connection)

    async def close(self) -> None:
        """Close all connections, even if the caller is canceled in the meantime."""
        if self._next_look is not None:
            self._next_look.cancel()
        try:
            if self._giving_back is not None:
                await asyncio.wait([self._giving_back])
            await self._give_back(self._at_hand)
            await self._pool.close()
        except BaseException:
            self._pool.terminate()
            raise

    async def _give_up(self, taken: "_Taken", error: BaseException) -> None:
        """Return a connection after an error. Connections usually die together, some silently, so after the first loss
        the others are dropped too. Otherwise, each would cost its next user a whole timeout."""
        if self._is_lost(taken, error):
            others, self._at_hand = self._at_hand, []
            await self._pool.expire_connections()
            for each in others:
                each.itself.terminate()
                await self._pool.release(each.connection)
        if taken.itself.is_given_up:
            taken.itself.terminate()
        else:
            await self._pool.release(taken.connection)

    def _is_lost(self, taken: "_Taken", error: BaseException) -> bool:
        # With several hosts, another one may accept writes by now.
        is_read_only = self._has_several_hosts and isinstance(error, pg.ReadOnlySQLTransactionError)
        return taken.itself.is_closed() or isinstance(error, TimeoutError) or is_read_only

    def _at_hand_and_fit(self) -> "_Taken | None":
        """Return a connection without waiting. There nearly always is one."""
        if not self._at_hand:
            return None
        last = self._at_hand[-1]
        # In a process that was stopped, the check for idle connections runs late.
        if last.itself.is_closed() or self._loop.time() - last.since >= _IDLE_SECONDS:
            return None
        return self._at_hand.pop()

    async def _take(self) -> "_Taken":
        while self._at_hand:
            if (taken := self._at_hand_and_fit()) is not None:
                return taken
            await self._pool.release(self._at_hand.pop().connection)
        self._waiting += 1
        try:
            connection = await self._pool.acquire()
        finally:
            self._waiting -= 1
        return _Taken(connection)

    def _keeps_at_hand(self, taken: "_Taken") -> bool:
        # Code that waits for a connection waits in the driver's pool.
        if self._waiting or len(self._at_hand) >= _AT_HAND or self._pool.is_closing():
            return False
        if taken.itself.is_closed() or taken.itself.is_in_transaction():
            return False
        taken.since = self._loop.time()
        self._at_hand.append(taken)
        if self._next_look is None:
            self._next_look = self._loop.call_later(_IDLE_SECONDS, self._look_for_idle)
        return True

    def _look_for_idle(self) -> None:
        now = self._loop.time()
        idle = [each for each in self._at_hand if now - each.since >= _IDLE_SECONDS]
        self._at_hand = self._at_hand[len(idle) :]
        if idle:
            self._giving_back = self._loop.create_task(self._give_back(idle))
        self._next_look = None
        if self._at_hand:
            wait = _IDLE_SECONDS - (now - self._at_hand[0].since)
            self._next_look = self._loop.call_later(wait, self._look_for_idle)

    async def _give_back(self, unused: "list[_Taken]") -> None:
        while unused:
            await self._pool.release(unused.pop().connection)


class _Taken:
    """A connection taken from the driver's pool.

    Statements run on `itself`: the pool's wrapper looks up each method by name, and has none left once the connection
    is lost.
    """

    __slots__ = ("connection", "itself", "since")

    def __init__(self, connection: "PoolConnectionProxy[asyncpg.Record]") -> None:
        self.connection = connection
        self.itself: Connection = connection.itself  # type: ignore[attr-defined]
        self.since = 0.0


async def _nothing_to_reset(_: object) -> None:
    """No statement leaves anything in its session: settings, locks and channels belong to a transaction or to a
    connection outside the pool. The driver rolls back what a canceled task left open before it calls this.
    """


async def open_pool(url: str, size: int) -> Pool:
    """Open a pool that connects on first use.

    With a minimum size, the driver would restore it by itself, and in an outage log a traceback for each attempt.
    """
    address = Address.parse(url)
    with translated():
        pool = await asyncpg.create_pool(
            address.dsn,
            min_size=0,
            max_size=size,
            connect=connecting(address),
            reset=_nothing_to_reset,
            connection_class=Connection,
        )
    return Pool(pool, has_several_hosts=len(address.hosts) > 1)


async def open_connection(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    address = Address.parse(url)
    with translated():
        connection = await connecting(address)()
        try:
            if address.pooled is not None or not await is_pooled(connection):
                return connection
        except BaseException:
            connection.terminate()
            raise
    await connection.close()
    return await open_connection(through_pooler(url))


async def stay(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Keep this session when it is idle, whatever the role's settings are. A pooler's session is not ours to change."""
    # To isinstance, all of asyncpg's connections are the same.
    if type(connection) is not PooledConnection:
        await connection.execute(_STAY)


async def open_session(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    """Open a connection that keeps LISTEN. Raises StoreUnavailable if a pooler would lose it silently."""
    connection = await open_connection(url)
    try:
        with translated():
            if Address.parse(url).pooled is not False and await is_pooled(connection):
                raise StoreUnavailable("this address leads to PgBouncer, which loses LISTEN; use the server's own")
            await stay(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection
