"""Opening a connection: to the first host that takes it, with every statement of the engine at read committed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from asyncpg import exceptions as pg

from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.store.postgres.address import Address, place_of
from holdfast.store.postgres.translation import PASSING, summary

COMMAND_SECONDS = 30.0
CONNECT_SECONDS = 5.0

# PostgreSQL counts the days of an interval by the session's time zone, where one may have 23 hours.
_SESSION = {"timezone": "UTC"}
# The engine's statements are written for read committed, whatever the role or the database has by default.
_LEVEL = "default_transaction_isolation"
_DIRECT_SESSION = _SESSION | {_LEVEL: "read committed"}
_refusing: set[str] = set()
"""Addresses of poolers that refuse this setting: the next connection need not try."""
_last_host: dict[tuple[str, ...], int] = {}
"""Of several hosts the one that was connected to last is asked first: one that is dead costs its time once."""


class Connection(asyncpg.Connection):
    """One that never asks the server to cancel a statement."""

    __slots__ = ("is_given_up",)

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.is_given_up = False

    @property
    def itself(self) -> "Connection":
        """From under its pool, which takes its wrapper away when the connection is lost."""
        return self

    def _cancel_current_command(self, *_waiters: object) -> None:
        """A statement was given up, and its connection is given up with it.

        A cancel request turns a commit that waits for a synchronous standby into one of this server alone: everybody
        sees it and relies on it, and after a failover it is gone. Without one it stays invisible until the standby has
        it.
        """
        self.is_given_up = True
        # Not at once: the driver has yet to tell whoever waits for the statement.
        asyncio.get_running_loop().call_soon(self.terminate)


class PooledConnection(Connection):
    """Through a pooler that takes no settings for a session, and would leave what SET says to its other clients.

    Where the role's default is not read committed, each statement has a transaction that says so: two round trips more.
    """

    is_read_committed = True

    async def learn(self) -> None:
        # Without parameters: whoever prepares a statement leaves it in a connection that is another client's next.
        told = await self.execute(f"SELECT WHERE current_setting('{_LEVEL}') = 'read committed'")
        self.is_read_committed = told == "SELECT 1"

    async def fetch(self, query: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the driver has it
        if self.is_read_committed or self.is_in_transaction():
            return await super().fetch(query, *arguments, **options)
        async with read_committed(self):
            return await super().fetch(query, *arguments, **options)


@asynccontextmanager
async def read_committed(connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[None]:
    """A transaction that ends with the error of its block, whatever becomes of the rollback.

    The driver's own raises in place of it that the connection is closed, also in place of a cancellation.
    """
    try:
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        yield
        await connection.execute("COMMIT")
    except BaseException:
        # What cannot be rolled back has no connection any more, and so nothing is left of it on the server either.
        with suppress(*PASSING, pg.PostgresError, pg.InterfaceError, pg.InternalClientError):
            await connection.execute("ROLLBACK", timeout=COMMAND_SECONDS)
        raise


def connecting(address: Address) -> Callable[..., Coroutine[Any, Any, Connection]]:
    """What opens a connection of this address, as asyncpg's pool calls it."""

    async def connect(*_: object, **options: Any) -> Connection:  # noqa: ANN401
        options |= {"command_timeout": COMMAND_SECONDS, "statement_cache_size": address.statement_cache_size}
        if not address.pooled and address.dsn not in _refusing:
            direct = options | {"server_settings": _DIRECT_SESSION, "connection_class": Connection}
            try:
                return await _first_host(address, direct)
            except pg.ProtocolViolationError as error:
                if _LEVEL not in str(error):
                    raise
                _refusing.add(address.dsn)
        pooled = options | {"server_settings": _SESSION, "connection_class": PooledConnection}
        connection = await _first_host(address, pooled)
        try:
            if isinstance(connection, PooledConnection):
                await connection.learn()
        except BaseException:
            connection.terminate()
            raise
        return connection

    return connect


async def _first_host(address: Address, options: dict[str, Any]) -> Connection:
    """Each host has its share of the time: the first one may be switched off, and say nothing."""
    hosts = address.hosts
    if len(hosts) == 1:
        return await _connect(hosts[0], CONNECT_SECONDS, options)
    first = _last_host.get(hosts, 0)
    failures: dict[int, Exception] = {}
    for number in (*range(first, len(hosts)), *range(first)):
        try:
            connection = await _connect(hosts[number], CONNECT_SECONDS / len(hosts), options)
        except (*PASSING, pg.PostgresError, pg.InternalClientError) as error:
            failures[number] = error
        else:
            _last_host[hosts] = number
            return connection
    for failure in failures.values():
        # Such as a wrong password: there is a server, and that it refuses us says more than that another is away.
        if isinstance(failure, pg.PostgresError) and not isinstance(failure, PASSING):
            raise failure
    told = "; ".join(f"{place_of(hosts[number])}: {summary(failures[number])}" for number in sorted(failures))
    raise StoreUnavailable(f"PostgreSQL is not available on any of its hosts: {told}")


async def _connect(dsn: str, seconds: float, options: dict[str, Any]) -> Connection:
    try:
        connection: Connection = await asyncpg.connect(dsn, timeout=seconds, **options)
    except UnicodeError:
        raise InvalidInput(f"store: {place_of(dsn)!r} is not the name of a host; correct the store's address") from None
    return connection
