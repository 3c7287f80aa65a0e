"""Runs the API as a process: its socket and its shutdown."""

import asyncio
import logging
import signal
import socket

import uvicorn
from fastapi import FastAPI

from apps.passports.api.app import create_api
from apps.passports.settings import Misconfigured, Settings
from holdfast.logs import setup_logging

_SHUTDOWN_SECONDS = 10
_INTERRUPTED = 130


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code."""
    api = create_api(settings)
    setup_logging(level="info")
    # It would log a warning for each damaged form that anyone sends.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    server = uvicorn.Server(
        uvicorn.Config(
            api,
            # The lifespan is entered outside, where its errors can be reported in one line.
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            access_log=False,
            log_config=None,
            server_header=False,
        )
    )
    try:
        with _listener(settings) as listener, asyncio.Runner() as runner:
            runner.run(_serve(api, server, listener))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


async def _serve(api: FastAPI, server: uvicorn.Server, listener: socket.socket) -> None:
    async with api.router.lifespan_context(api):
        # After its shutdown, uvicorn raises the signals that it received. They must not keep the lifespan from ending.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        logging.getLogger("passports.api").info("listening on http://%s:%d", *listener.getsockname()[:2])
        await server.serve(sockets=[listener])


def _listener(settings: Settings) -> socket.socket:
    """Bind the socket before opening anything else, so a port in use is reported at once."""
    address = settings.bpc_api_host, settings.bpc_api_port
    family = socket.AF_INET6 if ":" in settings.bpc_api_host else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid name"
        told = f"cannot listen on {address[0]}:{address[1]}: {why}"
        raise Misconfigured(f"BPC_API_HOST and BPC_API_PORT: {told}") from None
