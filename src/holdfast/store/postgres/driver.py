"""The edge to asyncpg: connections and the pool. translation.py turns its exceptions into Holdfast's."""

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
    "through_pooler",
    "translated",
    "translation",
    "while_connected",
]

# A plan that was made while the table was small would read it from end to end when it is large. For one transaction:
# settings of a session do not survive PgBouncer, and a function to pin them to would be one more thing to install.
BY_INDEX = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off; SET LOCAL jit = off
"""
_AT_HAND = 2
"""One for whoever claims or enqueues, one for whoever finishes meanwhile."""
_IDLE_SECONDS = 60.0
"""Routers forget connections that are idle for minutes; what nobody uses goes back to the driver, which closes it."""

_ROUND_TRIPS = 3


async def is_pooled(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Whether a pooler, such as PgBouncer, is between here and the server.

    It makes up the process id that it tells its clients, because they have no process of their own there. Asked without
    parameters, for whoever prepares a statement leaves it in a connection that is another client's next.
    """
    told = await connection.execute(f"SELECT FROM pg_backend_pid() AS pid WHERE pid = {connection.get_server_pid()}")
    return told != "SELECT 1"


async def round_trip(connection: "asyncpg.Connection[asyncpg.Record]") -> timedelta:
    """How long it takes to ask nothing. The least of a few, because something else may always come in between."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(_ROUND_TRIPS):
        started = loop.time()
        await connection.execute("SELECT")
        took.append(loop.time() - started)
    return timedelta(seconds=min(took))


@asynccontextmanager
async def while_connected(connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[None]:
    """As long as a command may take, and no longer than the connection lasts.

    A COPY that waits until it may send more has no limit in the driver, and is not told that the connection is gone.
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
                    # What was told to stop after the loss would wait for an answer, in a task of the driver's.
                    itself.terminate()
    except TimeoutError as error:
        if is_lost:
            raise pg.ConnectionDoesNotExistError("the connection was lost while jobs were sent") from error
        raise


class CopyRefused(HoldfastError):
    """The server takes these rows by a statement only."""


@contextmanager
def copy_refusals() -> Iterator[None]:
    """With row level security, for example, PostgreSQL takes INSERT and no COPY."""
    try:
        yield
    except pg.FeatureNotSupportedError as error:
        raise CopyRefused(f"PostgreSQL refused: {error}") from error


class Pool:
    """asyncpg's pool, of which a few connections stay at hand between two statements.

    To give one back and take it again takes a task, and with the driver's own reset a question to the server: together
    more than half of a commit. Whatever did not end well goes back all the same, and is looked at there.
    """

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", *, has_several_hosts: bool = False) -> None:
        self._pool = pool
        self._has_several_hosts = has_several_hosts
        self._loop = asyncio.get_running_loop()
        self._at_hand: list[_Taken] = []
        """The one that was put back last is at the end, and taken first."""
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
        """Whoever is canceled meanwhile leaves no connection open either."""
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
        """Connections mostly die together, and some without a word: after the first the others are not trusted either,
        or each of them would cost whoever gets it a whole timeout."""
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
        # Where there are several hosts, another one may take writes by now.
        is_read_only = self._has_several_hosts and isinstance(error, pg.ReadOnlySQLTransactionError)
        return taken.itself.is_closed() or isinstance(error, TimeoutError) or is_read_only

    def _at_hand_and_fit(self) -> "_Taken | None":
        """Nearly always there is one, and then nobody has to wait for it."""
        if not self._at_hand:
            return None
        last = self._at_hand[-1]
        # The look at what is idle comes late to a process that was stopped.
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
        # Who waits for a connection waits at the driver's pool.
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
    """A connection out of the driver's pool.

    `itself` is what is asked: the pool's wrapper looks each method up by its name, and has none left when the
    connection was lost.
    """

    __slots__ = ("connection", "itself", "since")

    def __init__(self, connection: "PoolConnectionProxy[asyncpg.Record]") -> None:
        self.connection = connection
        self.itself: Connection = connection.itself  # type: ignore[attr-defined]
        self.since = 0.0


async def _nothing_to_reset(_: object) -> None:
    """No statement leaves anything in its session: settings, locks and channels are those of a transaction, or of a
    connection outside the pool. What a canceled task left open the driver rolls back before it calls this.
    """


async def open_pool(url: str, size: int) -> Pool:
    """Connects when somebody asks for a connection, and not before.

    With a least number of connections the driver would restore it by itself, and in an outage log a traceback for each
    of its tries.
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


async def open_session(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    """A connection that keeps what LISTEN says; StoreUnavailable if a pooler would lose it without a word."""
    connection = await open_connection(url)
    try:
        with translated():
            if Address.parse(url).pooled is not False and await is_pooled(connection):
                raise StoreUnavailable("this address leads to PgBouncer, which loses LISTEN; name the server's own")
    except BaseException:
        connection.terminate()
        raise
    return connection
