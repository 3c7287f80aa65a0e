"""The edge to aio-pika: the broker's address, connecting and closing in bounded time, and errors in plain words."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event_loop import is_being_canceled
from holdfast.logs.records import get_logger
from holdfast.wake.link import LinkLost

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

log = get_logger("holdfast.wake")

CONNECT_SECONDS = 5.0
LONGEST_NAME_BYTES = 255
_HEARTBEAT_SECONDS = 10
_CLOSE_SECONDS = 1.0
_OURS: ContextVar[bool] = ContextVar("holdfast_rabbitmq", default=False)


@dataclass(frozen=True, slots=True)
class Broker:
    """Where wake-ups go. `exchange` is a durable topic exchange, declared by the first process that uses it."""

    url: str = field(repr=False)
    exchange: str = "holdfast"
    routing_key: str = "jobs.trigger"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_usable = parts.scheme in ("amqp", "amqps") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            is_usable = False
        if not is_usable:
            # Do not quote the address: it may contain a password.
            raise InvalidInput("rabbitmq_url: write amqp://user:password@host:port/virtual-host, or amqps://…")
        for name in ("exchange", "routing_key"):
            if not 0 < len(getattr(self, name).encode()) <= LONGEST_NAME_BYTES:
                raise InvalidInput(f"rabbitmq_{name}: give 1 to {LONGEST_NAME_BYTES} bytes")
        _require_aio_pika()

    async def connect(self) -> "AbstractConnection":
        import aio_pika

        # aio-pika's own timeout connects in a task, and if that fails while being canceled, its error is never read.
        async with asyncio.timeout(CONNECT_SECONDS):
            return await aio_pika.connect(self.url, heartbeat=_HEARTBEAT_SECONDS)

    async def declare(self, channel: "AbstractChannel") -> "AbstractExchange":
        import aio_pika

        return await channel.declare_exchange(self.exchange, aio_pika.ExchangeType.TOPIC, durable=True)


@contextlib.asynccontextmanager
async def closing(connection: "AbstractConnection") -> AsyncIterator[None]:
    try:
        yield
    finally:
        await close(connection)


async def close(connection: "AbstractConnection") -> None:
    """Close in bounded time: closing asks the broker, which may not answer."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()
    except (Exception, asyncio.CancelledError) as error:
        if is_being_canceled():
            raise
        log.debug("closing the connection to RabbitMQ failed", error=str(error))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise aio-pika's errors as LinkLost with a helpful line."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if is_being_canceled():
            raise
        lost = as_lost(error, "no answer in time")
        if lost is error:
            raise
        raise lost from error


def as_lost(error: BaseException, when_late: str) -> BaseException:
    from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError

    match error:
        case TimeoutError():
            return LinkLost(when_late)
        case ProbableAuthenticationError():
            return LinkLost("login refused; check user and password")
        case InvalidFrameError() if "Connection.OpenOk" in str(error):
            return LinkLost("virtual host refused; check its name")
        case InvalidFrameError():
            return LinkLost("the answer is not from RabbitMQ; check host and port")
        case AMQPError() | OSError() | asyncio.CancelledError():
            # aiormq copies the arguments of the underlying error into its own error, and loses the type.
            cause = error.__cause__
            return LinkLost(_reason(cause if isinstance(cause, OSError | EOFError) else error))
        case _:
            return error


def _reason(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"TLS error: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS error: {(error.reason or 'no reason given').replace('_', ' ').lower()}"
        case socket.gaierror():
            return "host not found"
        case ConnectionResetError() | BrokenPipeError() | EOFError():
            return "the broker closed the connection"
        # A host with several addresses gives one error for all of them, which has only text.
        case OSError() if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
            return "connection refused"
        case _:
            return ", ".join(part for part in error.args if isinstance(part, str)) or type(error).__name__


def _require_aio_pika() -> None:
    try:
        import aio_pika  # noqa: F401
    except ImportError as error:
        raise InvalidInput("RabbitMQ needs aio-pika; run: pip install aio-pika") from error
    for name in ("aiormq.connection", "aiormq.channel", "aio_pika.connection", "aio_pika.channel", "aio_pika.queue"):
        logging.getLogger(name).addFilter(_not_ours)
    logging.getLogger("asyncio").addFilter(_no_write_of_ours)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence what the libraries log about Holdfast's connections; Holdfast logs each outage itself, once.

    The libraries' tasks inherit this context. Tasks of an application that uses the same libraries do not.
    """
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


def _not_ours(record: logging.LogRecord) -> bool:  # noqa: ARG001
    return not _OURS.get()


def _no_write_of_ours(record: logging.LogRecord) -> bool:
    return not (_OURS.get() and str(record.msg).startswith("socket.send()"))
