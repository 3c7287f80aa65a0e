"""A TCP proxy before a server, for tests and bench, to be cut or to swallow everything. Runs in its own thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


class Proxy:
    """Before PostgreSQL's socket or, as host and port, before any other server."""

    def __init__(self, server: Path | tuple[str, int], database: str = "") -> None:
        self._server = server
        self._database = database
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._trap: _Trap | None = None
        self._sprung: set[asyncio.StreamWriter] = set()
        self._swallows = False
        self._refuses = False
        self._port = 0

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{self._database}"

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._refuses = True
        self._call(self._abort_all)

    def swallow(self) -> None:
        """Keep every connection, accept new ones, and let no byte through."""
        self._swallows = True

    def half_open(self) -> None:
        """Let no byte through on the connections that there are, and tell nobody; new ones go through."""
        self._call(lambda: self._dead.update(self._writers))

    def cut_at(self, words: bytes, *, answered: bool) -> None:
        """Cut the next connection on which a client sends these words, and no other.

        The server does not get them; or, `answered`, it has acted on them and its answer gets lost.
        """
        self._trap = _Trap(words, answered)

    def restore(self) -> None:
        """Connections that were swallowed are reset, as routers do; new ones go through."""
        self._refuses = self._swallows = False
        self._call(self._abort_all)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._abort_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self._accept, "127.0.0.1", 0)

        listener = self._loop.run_until_complete(listen())
        self._port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        listener.close()
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        # A task that is canceled before its first step never gets to close its connection.
        self._refuses = True
        await asyncio.sleep(0)
        self._abort_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(5)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await self._connect()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pair = {writer, server_writer}
        self._writers |= pair
        try:
            await asyncio.gather(self._pump(reader, server_writer, writer), self._pump(server_reader, writer))
        finally:
            self._writers -= pair
            self._dead -= pair
            self._sprung -= pair
            for each in pair:
                each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, Path):
            return await asyncio.open_unix_connection(str(self._server))
        return await asyncio.open_connection(*self._server)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None = None
    ) -> None:
        """`client` is who sends, if it is a client: only its words can spring the trap."""
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(65536):
                if writer in self._sprung or (client is not None and self._springs(received, client)):
                    break
                if not self._swallows and writer not in self._dead:
                    writer.write(received)
                    await writer.drain()
        writer.transport.abort()

    def _springs(self, received: bytes, client: asyncio.StreamWriter) -> bool:
        """Whether to cut now. If the words are to be answered, the cut comes with the answer."""
        trap = self._trap
        if trap is None or trap.words not in received:
            return False
        self._trap = None
        if trap.answered:
            self._sprung.add(client)
        return not trap.answered


@dataclass(frozen=True, slots=True)
class _Trap:
    words: bytes
    answered: bool
