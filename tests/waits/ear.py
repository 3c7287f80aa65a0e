"""Collects the notifications of one channel, including those still in flight."""

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.databases import connected

if TYPE_CHECKING:
    import asyncpg


class Ear:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", url: str, name: str) -> None:
        self._connection = connection
        self._url = url
        self._name = name
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self) -> None:
        await self._connection.add_listener(self._name, lambda *heard: self._heard.put_nowait(str(heard[3])))

    async def heard(self) -> list[str]:
        """Everything since the last call. Notifications arrive in commit order, so the mark arrives last."""
        mark = uuid4().hex
        async with connected(self._url) as other:
            await other.execute("SELECT pg_notify($1, $2)", self._name, mark)
        everything = []
        async with asyncio.timeout(30):
            while (payload := await self._heard.get()) != mark:
                everything.append(payload)
        return everything
