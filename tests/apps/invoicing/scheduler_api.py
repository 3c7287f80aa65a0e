"""A stand-in for the API's internal endpoints, on a separate socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-service-token-of-these-tests"


@dataclass
class SchedulerApi:
    """Has `left` items to create for each path, and creates as many per call as the caller asks for."""

    url: str = ""
    left: dict[str, int] = field(default_factory=dict)
    limits: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    status: int = 200
    refused: set[str] = field(default_factory=set)
    """Paths that are answered with 500, regardless of the status of the others."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """If not set, requests wait for it."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has arrived."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
            target = urlsplit(head[0].split()[1])
            path = next((known for known in self.left if known.lower() == target.path), target.path)
            self.calls.append(path)
            self.waiting.set()
            await self.hold.wait()
            status = self.status if f"x-service-token: {TOKEN}" in head else 401
            status = 500 if path in self.refused else status
            body = json.dumps(self._create(path, int(parse_qs(target.query)["limit"][0])) if status == 200 else {})
            writer.write(
                f"HTTP/1.1 {status} It\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _create(self, path: str, limit: int) -> dict[str, object]:
        self.limits.append(limit)
        created = min(limit, self.left.get(path, 0))
        self.left[path] = self.left.get(path, 0) - created
        return {"created": created, "items": [], "more": self.left[path] > 0}


@asynccontextmanager
async def scheduler_api() -> AsyncIterator[SchedulerApi]:
    api = SchedulerApi()
    api.hold.set()
    server = await asyncio.start_server(api.answer, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        api.hold.set()
        server.close()
        await server.wait_closed()
