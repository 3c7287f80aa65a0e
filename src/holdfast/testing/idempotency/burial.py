"""Rolls back transactions that a dead run left open, as a server does when a client is gone."""

import asyncio
from collections.abc import Iterable
from typing import Any

from holdfast.logs.records import get_logger

log = get_logger("holdfast.testing")

_SECONDS = 5.0


async def roll_back(connections: Iterable[object]) -> int:
    """Roll back, and return how many were in a transaction. Cut connections that are in use and so cannot roll back."""
    number = 0
    for connection in connections:
        if type(connection).__module__.startswith("asyncpg"):
            number += await _asyncpg(connection)
        else:
            number += await _psycopg(connection)
    return number


async def _asyncpg(protocol: Any) -> bool:  # noqa: ANN401
    if not protocol.is_connected() or not protocol.is_in_transaction():
        return False
    try:
        async with asyncio.timeout(_SECONDS):
            await protocol.query("ROLLBACK", None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the connection is not usable
        log.info("connection of a dead run is cut", error=str(error))
        protocol.abort()
    return True


async def _psycopg(connection: Any) -> bool:  # noqa: ANN401
    from psycopg import AsyncConnection
    from psycopg.pq import TransactionStatus

    if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
        return False
    try:
        if isinstance(connection, AsyncConnection):
            async with asyncio.timeout(_SECONDS):
                await connection.rollback()
        else:
            await asyncio.to_thread(connection.rollback)
    except Exception as error:  # noqa: BLE001 - whatever it is, the connection is not usable
        log.info("connection of a dead run is cut", error=str(error))
        connection.pgconn.finish()
    return True
