"""Opens connections to the first host that accepts, and runs every statement of the engine at read committed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from asyncpg import exceptions as pg

from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.store.postgres.address import Address, place_of
from holdfast.store.postgres.translation import AWAY, PASSING, summary

COMMAND_SECONDS = 30.0
CONNECT_SECONDS = 5.0

# PostgreSQL computes the days of an interval in the session's time zone, where a day may have 23 hours. The conditions
# of row queues must keep the meaning they had when they were checked. Poolers support both settings.
_SESSION = {"timezone": "UTC", "standard_conforming_strings": "on"}
# What pg_stat_activity shows. Poolers pass it on.
_NAME = {"application_name": "holdfast"}
# The engine's statements require read committed, whatever the default of the role or database is.
_LEVEL = "default_transaction_isolation"
_LEVEL_OF_ENGINE = {_LEVEL: "read committed"}
_refusing: set[str] = set()
"""Addresses of poolers that refuse this setting, so later connections do not try it."""
_last_host: dict[tuple[str, ...], int] = {}
"""With several hosts, the one that last accepted a connection is tried first, so a dead host costs its timeout once."""


class Connection(asyncpg.Connection):
    """A connection that never asks the server to cancel a statement."""

    __slots__ = ("is_given_up",)

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.is_given_up = False

    @property
    def itself(self) -> "Connection":
        """The connection itself, without the pool's wrapper, which disappears when the connection is lost."""
        return self

    def _cancel_current_command(self, *_waiters: object) -> None:
        """Give up the connection together with its statement.

        A cancel request would turn a commit that waits for a synchronous standby into a commit on this server only:
        every session would see it and rely on it, and a failover would lose it. Without the request, the commit stays
        invisible until the standby has it.
        """
        self.is_given_up = True
        # Not immediately: the driver must first notify the code that waits for the statement.
        asyncio.get_running_loop().call_soon(self.terminate)

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection, or just drop it if it is lost, because then there is no server to notify.

        The driver's pool closes connections in tasks that are never awaited, so errors would only produce warnings.
        """
        with suppress(*PASSING):
            await super().close(timeout=timeout)


class PooledConnection(Connection):
    """A connection through a pooler that accepts no session settings and would leak SET to its other clients.

    If the role's default is not read committed, each statement runs in a transaction that sets it, which takes two more
    round trips.
    """

    is_read_committed = True

    async def learn(self) -> None:
        # No parameters: they would prepare a statement and leave it in a connection that another client gets next.
        status = await self.execute(f"SELECT WHERE current_setting('{_LEVEL}') = 'read committed'")
        self.is_read_committed = status == "SELECT 1"

    async def fetch(self, query: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the driver has it
        if self.is_read_committed or self.is_in_transaction():
            return await super().fetch(query, *arguments, **options)
        async with read_committed(self):
            return await super().fetch(query, *arguments, **options)


@asynccontextmanager
async def read_committed(connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[None]:
    """A transaction that raises its block's error even if the rollback fails.

    The driver's own transaction raises "connection is closed" instead, even in place of a cancellation.
    """
    try:
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        yield
        await connection.execute("COMMIT")
    except BaseException:
        # If the rollback fails, the connection is gone, and nothing is left of the transaction on the server either.
        with suppress(*PASSING, pg.PostgresError, pg.InterfaceError, pg.InternalClientError):
            await connection.execute("ROLLBACK", timeout=COMMAND_SECONDS)
        raise


def connecting(address: Address) -> Callable[..., Coroutine[Any, Any, Connection]]:
    """Return a function that opens connections to this address, in the form that asyncpg's pool expects."""

    async def connect(*_: object, **options: Any) -> Connection:  # noqa: ANN401
        session = _SESSION if address.names_application else _SESSION | _NAME
        options |= {"command_timeout": COMMAND_SECONDS, "statement_cache_size": address.statement_cache_size}
        if not address.pooled and address.dsn not in _refusing:
            direct = options | {"server_settings": session | _LEVEL_OF_ENGINE, "connection_class": Connection}
            try:
                return await _first_host(address, direct)
            except pg.ProtocolViolationError as error:
                if _LEVEL not in str(error):
                    raise
                _refusing.add(address.dsn)
        pooled = options | {"server_settings": session, "connection_class": PooledConnection}
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
    """Try each host with an equal share of the time, because the first may be switched off and not answer at all."""
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
        # For example a wrong password: the server's refusal says more than that another host is down.
        if isinstance(failure, pg.PostgresError) and not isinstance(failure, PASSING):
            raise failure
    reasons = "; ".join(f"{place_of(hosts[number])}: {summary(failures[number])}" for number in sorted(failures))
    raise StoreUnavailable(f"{AWAY} on any of its hosts: {reasons}")


async def _connect(dsn: str, seconds: float, options: dict[str, Any]) -> Connection:
    try:
        connection: Connection = await asyncpg.connect(dsn, timeout=seconds, **options)
    except UnicodeError:
        raise InvalidInput(f"store: {place_of(dsn)!r} is not a valid host name; correct the store's address") from None
    return connection
