"""Listens for jobs that became final: LISTEN on a separate connection, on a channel that only the holder uses.

This module only listens. store/postgres/waiters.py registers which jobs the holder waits for, on any connection.
"""

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.retry import exponential
from holdfast.store.postgres.answers import answered
from holdfast.store.postgres.driver import Address, open_session
from holdfast.store.waiters import Heard
from holdfast.wake.link import Link

if TYPE_CHECKING:
    import asyncpg

_BACKOFF = exponential(base="100ms", max="2s")
_CONNECT_SECONDS = 5.0
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def channel(holder: UUID) -> str:
    """Keep in sync with schema/functions/ring_waiters.sql."""
    return f"holdfast_waiter_{holder.hex}"


class FinalListener:
    """Calls `heard(ids)` when jobs that the holder registered become final, and `heard(None)` after each connect.

    `run` returns only after `stop`, whatever happens to the database. It notices a closed connection at once, and a
    dead one when a ping is not answered within `patience`.
    """

    def __init__(
        self,
        url: str,
        holder: UUID,
        heard: Heard,
        *,
        ping: timedelta = timedelta(seconds=2),
        patience: timedelta = timedelta(seconds=2),
    ) -> None:
        Address.parse(url)
        self._url = url
        self._holder = holder
        self._heard = heard
        self._ping_seconds = ping.total_seconds()
        self._patience = patience.total_seconds()
        self._link = Link("PostgreSQL, for waits", self._session, _BACKOFF)
        self._changed = asyncio.Event()

    @property
    def is_listening(self) -> bool:
        return self._link.is_up

    async def run(self) -> None:
        await self._link.run()

    def stop(self) -> None:
        self._link.stop()
        self._changed.set()

    async def _session(self) -> None:
        connection = await self._link.within(_CONNECT_SECONDS, open_session(self._url))
        try:
            connection.add_termination_listener(lambda _: self._changed.set())
            listening = connection.add_listener(channel(self._holder), self._rung)
            await answered(connection, listening, self._patience)
            self._link.up()
            self._heard(None)
            await self._serve(connection)
        finally:
            connection.terminate()

    async def _serve(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        while not self._link.stopping.is_set():
            self._changed.clear()
            if connection.is_closed():
                raise StoreUnavailable("PostgreSQL closed the connection")
            await answered(connection, connection.execute("SELECT 1"), self._patience)
            await self._wait(self._ping_seconds)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _rung(self, connection: object, pid: int, channel: str, payload: object) -> None:  # noqa: ARG002
        # Any session can notify any channel. Text that is not an id is skipped, and an unknown job's id is harmless.
        self._heard([UUID(id) for id in str(payload).split(",") if _ID.fullmatch(id)])
