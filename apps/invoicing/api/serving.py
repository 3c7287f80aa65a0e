"""Runs the API as a process: its socket, timeouts and shutdown."""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from apps.invoicing.api.app import create_api
from apps.invoicing.endings import FORESEEN, tell
from apps.invoicing.settings import Misconfigured, Settings
from holdfast import Holdfast
from holdfast.logs import setup_logging

# Longer than the longest wait, and longer than proxies keep idle connections by default. Otherwise the server could
# close a connection just as a request arrives on it.
KEEP_ALIVE_SECONDS = 75
# Waits end at once by themselves; this limit is for everything else.
SHUTDOWN_SECONDS = 10

_INTERRUPTED = 130


class ApiServer(uvicorn.Server):
    """Tells the API when the server begins to stop, so no request keeps waiting for a PDF."""

    def __init__(self, api: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                api,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                # The lifespan is entered outside, where its errors can be reported in one line.
                lifespan="off",
                # An access log would contain the signatures of links.
                access_log=False,
                log_config=None,
                server_header=False,
            )
        )
        self._api = api

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._api.state.service.stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process: uvicorn would raise them again before the lifespan has ended."""
        yield


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code. Report a failure to start in one line."""
    try:
        setup_logging(Holdfast(settings.database_url).settings)
        api = create_api(settings)
        server = ApiServer(api)
        with (
            _listening(settings.api_host, settings.api_port) as listener,
            asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner,
        ):
            runner.run(_run(api, server, listener))
    except FORESEEN as error:
        return tell(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


async def _run(api: FastAPI, server: ApiServer, listener: socket.socket) -> None:
    async with api.router.lifespan_context(api):
        with _handling(server):
            logging.getLogger("invoicing.api").info("listening on http://%s:%d", *listener.getsockname()[:2])
            await server.serve(sockets=[listener])


@contextmanager
def _handling(server: ApiServer) -> Iterator[None]:
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Bind the socket before opening anything else, so a port in use is reported at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid name"
        raise Misconfigured(f"API_HOST: {host} is not an address of this machine: {why}") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            name = "API_HOST" if error.errno == errno.EADDRNOTAVAIL else "API_PORT"
            raise Misconfigured(f"{name}: cannot listen on {host}:{port}: {error.strerror}") from None
        yield listener
