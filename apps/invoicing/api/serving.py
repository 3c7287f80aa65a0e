"""The API as a process: its socket, its timeouts, its end."""

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

# Above the longest wait, and above what proxies keep idle connections for by default, so that it is not the server that
# closes a connection on which a request is just coming in.
KEEP_ALIVE_SECONDS = 75
# Waits end by themselves at once; this is for everything else.
SHUTDOWN_SECONDS = 10

_INTERRUPTED = 130


class ApiServer(uvicorn.Server):
    """Tells the API when the server begins to stop: nobody is made to wait for a PDF then."""

    def __init__(self, api: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                api,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                # The lifespan is entered outside, where an error of it can be told in one line.
                lifespan="off",
                # An access log would have the signatures of links in it.
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
        """They are the process's business: uvicorn would raise them again, before the lifespan has ended."""
        yield


def serve(settings: Settings) -> int:
    """Until SIGTERM or Ctrl-C; the exit code. What keeps it from starting is told in one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
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
    """Bound before anything else is opened, so that a port in use is found at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise Misconfigured(f"API_HOST: {host} is no address of this machine: {why}") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            name = "API_HOST" if error.errno == errno.EADDRNOTAVAIL else "API_PORT"
            raise Misconfigured(f"{name}: cannot listen on {host}:{port}: {error.strerror}") from None
        yield listener
