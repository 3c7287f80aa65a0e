"""A server that receives webhooks and answers as a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


def answer(status: int, body: bytes = b"", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} Status\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclass(frozen=True, slots=True)
class Received:
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    url: str = ""
    answers: list[bytes] = field(default_factory=list)
    """Sent one after the other; the last one repeats."""
    received: list[Received] = field(default_factory=list)
    hangs: bool = False
    """Whether to wait for the sender to give up, after the answer."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            size = next(int(value) for name, value in headers.items() if name.lower() == "content-length")
            self.received.append(Received(headers, await reader.readexactly(size)))
            self.arrived.set()
            writer.write(self.answers[0] if len(self.answers) == 1 else self.answers.pop(0) if self.answers else OK)
            await writer.drain()
            if self.hangs:
                await self._gives_up(reader)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def release(self) -> None:
        """Close the connections that hang."""
        self.released.set()

    async def _gives_up(self, reader: asyncio.StreamReader) -> None:
        waiting = [asyncio.create_task(reader.read()), asyncio.create_task(self.released.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    async with server:
        receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/webhooks/bpc"
        yield receiver
