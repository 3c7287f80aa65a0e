"""A receiver of webhooks: an HTTP server on a loopback address that answers as a test says, also against the rules."""

import asyncio
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    line: str
    names: list[str]
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    port: int = 0
    connections: int = 0
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def receiving(
    answer: bytes | Answer = b"HTTP/1.1 204 No Content\r\n\r\n",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    reads: bool = True,
) -> AsyncIterator[Receiver]:
    receiver, tasks = Receiver(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        receiver.connections += 1
        # The sender may close the connection, and the end of the test cancels this task.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if reads:
                receiver.received.append(await _request(reader))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answering(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Reason", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def silence(writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def dripping(start: bytes, drops: bytes) -> Answer:
    """Send the start at once and then one byte every few milliseconds, so that no single read takes long."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        for drop in itertools.cycle(drops):
            writer.write(bytes([drop]))
            await writer.drain()
            await asyncio.sleep(0.005)

    return drip


async def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _request(reader: asyncio.StreamReader) -> Received:
    line, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    pairs = [header.split(": ", 1) for header in headers]
    found = {name.lower(): value for name, value in pairs}
    return Received(line, [name for name, _ in pairs], found, await reader.readexactly(int(found["content-length"])))
