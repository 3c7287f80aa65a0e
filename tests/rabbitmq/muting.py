"""A proxy in front of the broker that can hold back its answers: messages arrive, but clients are not told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class MutingProxy:
    def __init__(self, port: int) -> None:
        self._server_port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._is_muted = False
        self.port = 0

    def mute(self) -> None:
        """Forward no more answers on existing connections."""
        self._is_muted = True

    def cut(self) -> None:
        """Close existing connections; answers on new ones are forwarded."""
        self._is_muted = False
        for writer in self._open:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pair = {writer, server_writer}
        self._open |= pair
        try:
            await asyncio.gather(
                self._pump(reader, server_writer, is_answer=False), self._pump(server_reader, writer, is_answer=True)
            )
        finally:
            self._open -= pair
            for each in pair:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(ConnectionError):
            while received := await reader.read(65536):
                if not (is_answer and self._is_muted):
                    writer.write(received)
                    await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def muting_proxy(port: int) -> AsyncIterator[MutingProxy]:
    proxy = MutingProxy(port)
    listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
        await listener.wait_closed()
