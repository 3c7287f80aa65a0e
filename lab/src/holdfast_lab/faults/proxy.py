"""A local TCP proxy in front of PostgreSQL, or any other server, that breaks connections the way networks do.

It runs in its own thread, so neither a blocked event loop nor a blocking caller can stop it. protocol.py recognizes
which statement a client executes.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, Self
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from holdfast.domain.errors import InvalidInput
from holdfast_lab.faults.protocol import Conversation, Messages, Opening, asks_for_rows, is_meant

When = Literal["before", "after", "either"]
Way = Literal["both", "to_server", "to_client"]

_PORT = 5432
_READ_BYTES = 65536
_CALL_SECONDS = 5.0
_SHOWN = 80
_STEPS = 10
"""Steps of the event loop: an accepted connection takes four to reach the first step of a task."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the connection that executes a certain statement.

    `of`: a text in the statement; "commit" means the statement COMMIT. `when`: "before" the server gets it, "after" the
    server has answered but before the client knows, or "either" at random. `nth`: the first matching statement to cut,
    counted over all connections from now on. `times`: how many to cut from there; None for no end. `share`: cut only
    this share of them, at random.
    """

    when: When = "before"
    of: str = "commit"
    nth: int = 1
    times: int | None = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.when not in ("before", "after", "either"):
            raise InvalidInput(f"when: {self.when!r} is not known; use before, after or either")
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise InvalidInput("nth and times are counted from 1")
        if not 0 <= self.share <= 1:
            raise InvalidInput(f"share: {self.share!r} is not a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the proxy did. `at`: seconds since its start. `connection`: None for all connections."""

    at: float
    what: str
    connection: int | None = None
    statement: str = ""


@dataclass(slots=True)
class _Plan:
    cut: Cut
    seen: int = 0
    done: int = 0

    @property
    def is_over(self) -> bool:
        return self.cut.times is not None and self.done >= self.cut.times

    def takes(self, statement: str, random: Random) -> bool:
        if self.is_over or not is_meant(statement, self.cut.of):
            return False
        self.seen += 1
        if self.seen < self.cut.nth or random.random() >= self.cut.share:
            return False
        self.done += 1
        return True


@dataclass(slots=True, eq=False)
class _Link:
    """One connection through the proxy."""

    number: int
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    opening: Opening = field(default_factory=Opening)
    conversation: Conversation = field(default_factory=Conversation)
    from_client: Messages = field(default_factory=Messages)
    from_server: Messages = field(default_factory=Messages)
    swallows: bool = False
    has_lost: bool = False
    """Bytes are missing, so nothing that follows would make sense."""
    is_half_closed: bool = False
    cut_at: int | None = None
    """The number of the server's answer to cut at; the client gets none of it."""
    cut_statement: str = ""

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """A proxy to a server's Unix socket, or its host and port. Every method may be called anytime, from any thread.

    `seed` decides everything random. Clients that insist on encryption are refused.
    """

    def __init__(self, server: Path | tuple[str, int], url: str = "", *, seed: int = 0) -> None:
        self._server = server
        self._url = url
        # Separate sources, so that the cuts do not depend on how many messages came before.
        self._random, self._spread = Random(f"cuts {seed}"), Random(f"delays {seed}")  # noqa: S311 - they guard nothing
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._started = time.monotonic()
        self._links: dict[int, _Link] = {}
        self._accepted = 0
        self._plans: list[_Plan] = []
        self._faults: list[Fault] = []
        self._swallows = self._refuses = False
        self._refusals = 0
        self._delays = {"to_server": 0.0, "to_client": 0.0}
        self._jitter = 0.0
        self._port = 0

    @classmethod
    def before(cls, url: str, *, seed: int = 0) -> Self:
        """A proxy to the server of a PostgreSQL URL; the proxy's `url` leads through it."""
        return cls(_server_of(url), url, seed=seed)

    @classmethod
    @asynccontextmanager
    async def open(cls, host: str, port: int = _PORT, *, seed: int = 0) -> AsyncIterator[Self]:
        """A proxy that runs while the block does. A `host` that starts with a slash is the folder of a socket."""
        proxy = cls(_server(host, port), seed=seed)
        await asyncio.to_thread(proxy.__enter__)
        try:
            yield proxy
        finally:
            await asyncio.to_thread(proxy.__exit__)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return self._port

    def lead_to(self, url: str) -> None:
        """Forward to the server of this URL from now on. Connections to the previous one are closed."""

        def lead() -> None:
            self._server = _server_of(url)
            self._each(None, "lead elsewhere", _Link.abort)

        self._call(lead)

    @property
    def url(self) -> str:
        return self.through(self._url)

    def through(self, url: str) -> str:
        """Return a PostgreSQL URL with this proxy in place of its server."""
        parts = urlsplit(url)
        gone = ("host", "port", "sslmode")
        options = {name: values[-1] for name, values in parse_qs(parts.query).items() if name not in gone}
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}", query=urlencode(options)))

    @property
    def connections(self) -> list[int]:
        """The numbers of the open connections, counted from 1."""
        return list(self._links)

    @property
    def faults(self) -> list[Fault]:
        """The faults so far, oldest first."""
        return list(self._faults)

    def plan(self, *cuts: Cut) -> None:
        """Add these cuts to those already planned."""
        self._call(lambda: self._plans.extend(map(_Plan, cuts)))

    def swallow(self, connection: int | None = None) -> None:
        """Keep connections open but let no bytes through in either direction.

        Affects the given connection, or all present and future ones.
        """

        def swallow() -> None:
            self._swallows |= connection is None
            self._each(connection, "swallow", _swallow)

        self._call(swallow)

    def half_open(self) -> None:
        """Let no more bytes through on current connections, without telling either side; new ones work."""
        self._call(lambda: self._each(None, "half-open", _swallow))

    def half_close(self, connection: int | None = None) -> None:
        """Tell clients that the server will send nothing more, but keep forwarding what they send."""
        self._call(lambda: self._each(connection, "half-close", _half_close))

    def delay(self, seconds: float, *, way: Way = "both", jitter: float = 0.0) -> None:
        """Hold back everything for `seconds` plus a random time of up to `jitter`, until changed."""
        if seconds < 0 or jitter < 0:
            raise InvalidInput("delay: a time cannot be negative")

        def delay() -> None:
            self._delays.update({each: seconds for each in self._delays if way in ("both", each)})
            self._jitter = jitter
            self._note("delay")

        self._call(delay)

    def cut(self, connection: int) -> None:
        """Close one connection at once on both sides."""
        self._call(lambda: self._each(connection, "cut", _Link.abort))

    def cut_all(self) -> None:
        """Close all connections at once on both sides; new ones work."""
        self._call(lambda: self._each(None, "cut", _Link.abort))

    def refuse(self) -> None:
        """Close all connections and refuse new ones."""

        def refuse() -> None:
            self._refuses = True
            self._refusals += 1
            self._each(None, "refuse", _Link.abort)

        self._call(refuse)

    def flow(self) -> None:
        """Let everything through again. A connection whose bytes were swallowed is closed, as routers do."""

        def flow() -> None:
            self._refuses = self._swallows = False
            self._delays = dict.fromkeys(self._delays, 0.0)
            self._jitter = 0.0
            self._plans.clear()
            for link in self._links.values():
                link.swallows = False
                if link.has_lost or link.is_half_closed:
                    link.abort()
            self._note("flow")

        self._call(flow)

    def _each(self, connection: int | None, what: str, act: Callable[[_Link], None]) -> None:
        self._note(what, connection)
        for number, link in list(self._links.items()):
            if connection in (None, number):
                act(link)

    def _note(self, what: str, connection: int | None = None, statement: str = "") -> None:
        shown = " ".join(statement.split())[:_SHOWN]
        self._faults.append(Fault(time.monotonic() - self._started, what, connection, shown))

    def _call(self, action: Callable[[], None]) -> None:
        """Run in the proxy's thread, and return when it is done."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        if not done.wait(_CALL_SECONDS):
            raise RuntimeError("the proxy is not running")

    def _run(self) -> None:
        listener = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self._port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(listener))

    async def _end(self, listener: asyncio.Server) -> None:
        # A connection that was just accepted takes a few steps to reach a task of ours. A server that is closed in the
        # meantime forgets it, and so does a task that is canceled before its first step.
        self._refuses = True
        for socket in listener.sockets:
            self._loop.remove_reader(socket.fileno())
        await _steps()
        listener.close()
        for link in self._links.values():
            link.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A socket is closed one step after its transport was told to close.
        await _steps()

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refuses:
            client.transport.abort()
            return
        refusals = self._refusals
        try:
            server_reader, server = await self._connect()
        except (OSError, asyncio.CancelledError):
            client.transport.abort()
            return
        self._accepted += 1
        link = self._links[self._accepted] = _Link(self._accepted, client, server, swallows=self._swallows)
        if self._refusals != refusals:
            link.abort()
        try:
            # Only the proxy's own end cancels this, and asyncio would log the cancellation.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._pump_to_server(reader, link), self._pump_to_client(server_reader, link))
        finally:
            del self._links[link.number]
            link.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, Path):
            return await asyncio.open_unix_connection(str(self._server))
        return await asyncio.open_connection(*self._server)

    async def _pump_to_server(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(_READ_BYTES):
                if await self._is_let_through(link, "to_server") and not await self._pass_to_server(received, link):
                    break
        link.abort()

    async def _pump_to_client(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(_READ_BYTES):
                if await self._is_let_through(link, "to_client") and not await self._pass_to_client(received, link):
                    break
        link.abort()

    async def _is_let_through(self, link: _Link, way: Way) -> bool:
        if seconds := self._delays[way]:
            await asyncio.sleep(seconds + self._spread.uniform(0.0, self._jitter))
        if link.swallows and not link.has_lost:
            link.has_lost = True
            self._note("swallowed", link.number)
        return not link.has_lost

    async def _pass_to_server(self, received: bytes, link: _Link) -> bool:
        """Return False if the connection is to be cut now."""
        if not link.opening.is_over:
            opening, answer = link.opening.take(received)
            if answer:
                link.client.write(answer)
                await link.client.drain()
            if opening:
                link.server.write(opening)
            received = link.opening.rest if link.opening.is_over else b""
        if not link.opening.is_over or not link.opening.is_postgres:
            link.server.write(received)
        else:
            passed = []
            for message in link.from_client.take(received):
                statement = link.conversation.statement_of(message)
                if statement is not None and self._cuts_before(statement, link):
                    return False
                passed.append(message)
            link.server.write(b"".join(passed))
        await link.server.drain()
        return True

    def _cuts_before(self, statement: str, link: _Link) -> bool:
        """Whether to cut now. A cut after the answer is only marked here."""
        # Ask all plans, because each one counts for itself.
        cuts = [plan.cut for plan in self._plans if plan.takes(statement, self._random)]
        self._plans = [plan for plan in self._plans if not plan.is_over]
        if not cuts or link.cut_at is not None:
            return False
        when = cuts[0].when
        if when == "either":
            when = self._random.choice(("before", "after"))
        if when == "before":
            self._note("cut before", link.number, statement)
            return True
        link.cut_at, link.cut_statement = link.conversation.answer_of_next, statement
        return False

    async def _pass_to_client(self, received: bytes, link: _Link) -> bool:
        """Return False if the connection is to be cut now."""
        if not link.opening.is_postgres:
            _write(link, received)
        else:
            passed = []
            for message in link.from_server.take(received):
                answered = link.conversation.answered
                link.conversation.hear(message)
                # A COPY is answered only after its rows, and the client sends those only when the server asks for them.
                if link.cut_at is None or answered < link.cut_at - 1 or asks_for_rows(message):
                    passed.append(message)
                elif link.conversation.answered >= link.cut_at:
                    self._note("cut after", link.number, link.cut_statement)
                    return False
            _write(link, b"".join(passed))
        if not link.is_half_closed:
            await link.client.drain()
        return True


async def _steps() -> None:
    """Let the event loop finish what it has started by itself."""
    for _ in range(_STEPS):
        await asyncio.sleep(0)


def _write(link: _Link, message: bytes) -> None:
    if not link.is_half_closed:
        link.client.write(message)


def _swallow(link: _Link) -> None:
    link.swallows = True


def _half_close(link: _Link) -> None:
    if not link.is_half_closed and link.client.can_write_eof():
        link.is_half_closed = True
        link.client.write_eof()


def _server_of(url: str) -> Path | tuple[str, int]:
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    host = options.get("host") or parts.hostname or "localhost"
    return _server(host, int(options.get("port") or parts.port or _PORT))


def _server(host: str, port: int) -> Path | tuple[str, int]:
    """Follow libpq: a host that starts with a slash is the folder of a Unix socket."""
    return Path(host, f".s.PGSQL.{port}") if host.startswith("/") else (host, port)
