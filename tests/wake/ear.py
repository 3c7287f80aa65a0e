"""Registers sleepers on queues, hears every ring for them, and knows when no ring is still on its way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import asyncpg

from holdfast.store.postgres.sql_files import statement
from holdfast.wake.postgres import channel
from tests.databases import connected

MINUTE = timedelta(minutes=1)
TEAM = UUID("00000000-0000-4000-8000-00000000000a")


class Ring(NamedTuple):
    holder: UUID
    how: str
    queue: str


class Ear:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", url: str, schema: str) -> None:
        self._connection = connection
        self._url = url
        self._schema = schema
        self._marks = f"marks_{uuid4().hex}"
        self._heard: asyncio.Queue[Ring | str] = asyncio.Queue()

    async def listen(self) -> None:
        await self._connection.add_listener(self._marks, lambda *heard: self._heard.put_nowait(str(heard[3])))

    async def asleep(
        self, *queues: str, until: timedelta = MINUTE, team: UUID = TEAM, holder: UUID | None = None
    ) -> UUID:
        """Register a sleeper on the queues and listen for its rings."""
        holder = holder or uuid4()

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            how, _, queue = str(payload).partition(":")
            self._heard.put_nowait(Ring(holder, how, queue))

        await self._connection.add_listener(channel(holder), hear)
        await fall_asleep(self._connection, holder, queues, until, team=team, schema=self._schema)
        return holder

    async def rings(self) -> list[Ring]:
        """All rings since the last call. Notifications arrive in commit order, so the mark comes last."""
        mark = uuid4().hex
        async with connected(self._url) as other:
            await other.execute("SELECT pg_notify($1, $2)", self._marks, mark)
        everything: list[Ring] = []
        async with asyncio.timeout(30):
            while (heard := await self._heard.get()) != mark:
                assert isinstance(heard, Ring), heard
                everything.append(heard)
        return everything

    async def heard(self) -> list[str]:
        """The queue of each ring, without the rings that only ask for a later look."""
        return [ring.queue for ring in await self.rings() if ring.how != "later"]


@asynccontextmanager
async def listening(url: str, schema: str = "holdfast") -> AsyncIterator[Ear]:
    async with connected(url) as connection:
        ear = Ear(connection, url, schema)
        await ear.listen()
        yield ear


async def fall_asleep(
    connection: "asyncpg.Connection[asyncpg.Record]",
    holder: UUID,
    queues: Sequence[str],
    until: timedelta = MINUTE,
    *,
    team: UUID = TEAM,
    schema: str = "holdfast",
) -> int:
    """Register the sleeper; return how many others of the team sleep on the first of the queues."""
    others: int = await connection.fetchval(statement("asleep", schema), list(queues), holder, until, team, queues[0])
    return others
