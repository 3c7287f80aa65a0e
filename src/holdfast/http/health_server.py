"""A small HTTP server for probes, in its own thread: GET /live, /ready and /health (both).

The thread answers even while the event loop is blocked. No client can hold it up, because connections are few and
short-lived, and each has its own thread.
"""

import asyncio
import concurrent.futures
import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from holdfast.domain.errors import InvalidInput
from holdfast.http.health import STALLED_SECONDS, STOPPING, Check, Health, Pulse, liveness
from holdfast.logs.records import get_logger

log = get_logger("holdfast.health")

_CACHED_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_CONNECTION_SECONDS = 5.0
_MOST_CONNECTIONS = 32
_LOOK_SECONDS = 0.25
_NUDGE_SECONDS = 1.0
_UNANSWERED = Health((Check("event loop", False, "does not respond: something is blocking it"),))
_PATHS = ("/live", "/ready", "/health")


class HealthServer:
    """`async with HealthServer(…):` on the event loop that it watches.

    `ready` is called on that loop, at most once a second regardless of the number of probes.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], Awaitable[Health]],
        keeper_alive: Callable[[], bool] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        stalled_after: float = STALLED_SECONDS,
    ) -> None:
        self._host = host
        self._port = port
        self._ready = ready
        self._keeper_alive = keeper_alive
        self._is_stopping = is_stopping
        self._stalled_after = stalled_after
        self._lock = threading.Lock()
        self._asked: concurrent.futures.Future[Health] | None = None
        self._known: tuple[float, Health] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulse: Pulse | None = None
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on, even if it was opened with port 0."""
        if self._server is None:
            raise InvalidInput("the health port is not open")
        port: int = self._server.server_address[1]
        return port

    def start(self) -> None:
        """Start listening. Raise InvalidInput if the address is not available."""
        self._loop = asyncio.get_running_loop()
        self._server = _listen(self._host, self._port, self._answer)
        self._pulse = Pulse(self._loop)
        threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="holdfast-health", daemon=True
        ).start()
        log.info("health port is open", host=self._host, port=self.port)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if self._pulse is not None:
            self._pulse.stop()
        if server is not None:
            await _in_own_thread(server.stop)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def live(self) -> Health:
        if self._pulse is None:
            raise InvalidInput("the health port is not open")
        if self._pulse.seconds_since() > self._stalled_after:
            self._pulse.nudge()
            patience = time.monotonic() + _NUDGE_SECONDS
            while self._pulse.seconds_since() > self._stalled_after and time.monotonic() < patience:
                time.sleep(0.02)
        alive = None if self._keeper_alive is None or self._is_stopping() else self._keeper_alive()
        return liveness(self._pulse.seconds_since(), alive, stalled_after=self._stalled_after)

    def ready(self) -> Health:
        if self._is_stopping():
            return STOPPING
        asked = self._ask()
        if isinstance(asked, Health):
            return asked
        try:
            return asked.result(_ANSWER_SECONDS)
        except (TimeoutError, concurrent.futures.CancelledError):
            self._note(_UNANSWERED)
            return _UNANSWERED

    def _note(self, health: Health) -> None:
        with self._lock:
            self._known = (time.monotonic(), health)

    def _ask(self) -> "Health | concurrent.futures.Future[Health]":
        """The cached answer, or the one question that is in progress."""
        with self._lock:
            if self._known is not None and time.monotonic() - self._known[0] < _CACHED_SECONDS:
                return self._known[1]
            if self._asked is None or self._asked.done():
                if self._loop is None or self._loop.is_closed():
                    return _UNANSWERED
                self._asked = asyncio.run_coroutine_threadsafe(self._question(), self._loop)
            return self._asked

    async def _question(self) -> Health:
        """Save the answer before ending, or a probe could find the question done but unanswered, and ask again."""
        try:
            health = await self._ready()
        except Exception as error:
            log.warning("readiness check failed", exc_info=True)
            health = Health((Check("readiness", False, f"unexpected error: {type(error).__name__}"),))
        self._note(health)
        return health

    def _answer(self, path: str) -> Health:
        match path:
            case "/live":
                return self.live()
            case "/ready":
                return self.ready()
            case _:
                return self.live() + self.ready()


class _Server(ThreadingHTTPServer):
    """Closes every connection after a few seconds, and the oldest one at once if there are too many."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[Any, ...], family: socket.AddressFamily, answer: Callable[[str], Health]) -> None:
        self.address_family = family
        self.answer = answer
        self._open: dict[socket.socket, float] = {}
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own method looks up this machine's name, which can take many seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        with self._open_lock:
            self._open[request] = time.monotonic()
            excess = list(self._open)[:-_MOST_CONNECTIONS]
        for each in excess:
            _hang_up(each)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close overdue connections. The socket timeout misses a client that sends a byte now and then."""
        now = time.monotonic()
        with self._open_lock:
            overdue = [each for each, opened in self._open.items() if now - opened > _CONNECTION_SECONDS]
        for each in overdue:
            _hang_up(each)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002
        log.debug("a health probe ended early", error=repr(sys.exception()))

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        with self._open_lock:
            left = list(self._open)
        for each in left:
            _hang_up(each)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in _PATHS:
            self._send(404, {"error": f"no such path; use {', '.join(_PATHS)}"})
            return
        health = self.server.answer(path)
        self._send(200 if health.ok else 503, health.as_dict())

    do_HEAD = do_GET  # noqa: N815 - the base class looks for it by this name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer a request that the base class refuses, as JSON and without its banner."""
        # Until it has read a version, the base class assumes HTTP/0.9, which is answered without a status.
        self.request_version = self.protocol_version
        if code == 501:
            self._send(405, {"error": "only GET and HEAD are allowed"}, allow="GET, HEAD")
        else:
            # An unknown HTTP version is the client's mistake, but probes and proxies would read a 505 as the server's.
            self._send(400 if code >= 500 else code, {"error": "the request cannot be read"})

    def _send(self, code: int, body: object, allow: str | None = None) -> None:
        text = json.dumps(body).encode() + b"\n"
        self.send_response_only(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: probes arrive every few seconds."""


def _listen(host: str, port: int, answer: Callable[[str], Health]) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(address, family, answer)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"the health port {host}:{port} cannot be opened: {why}; choose another with HOLDFAST_HEALTH_PORT and "
            f"HOLDFAST_HEALTH_HOST"
        ) from error


async def _in_own_thread(blocking: Callable[[], None]) -> None:
    """Run `blocking` in a new thread. The pool of `to_thread` may be full of handlers that never end."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        blocking()
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="holdfast-health-stop", daemon=True).start()
    await done.wait()


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The client has already hung up.
        return
