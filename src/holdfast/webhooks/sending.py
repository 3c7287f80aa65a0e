"""Sends one webhook within one deadline, and turns what happens into a response or a WebhookError."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import httpx

from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.webhooks.errors import HttpException, WebhookGone, WebhookNon2xx, WebhookTimeout
from holdfast.webhooks.policy import PUBLIC_HTTPS, Policy
from holdfast.webhooks.posting import posted, request_headers
from holdfast.webhooks.resolving import Resolve, checked_addresses, resolve
from holdfast.webhooks.response import Response
from holdfast.webhooks.retry_after import delay_of
from holdfast.webhooks.url import host_of, target_of

_TIMEOUT = timedelta(seconds=30)
_KEPT = 64 * 1024
_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class _Arriving:
    """The response so far. A timeout or a lost connection may end it at any time."""

    started: float
    head: httpx.Response | None = None
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False

    async def read(self, head: httpx.Response, keep: int) -> Response:
        self.head = head
        async for part in head.aiter_raw():
            self.body += part
            if len(self.body) > keep:
                del self.body[keep:]
                break
        else:
            self.is_complete = True
        return self._response(head)

    def so_far(self) -> Response | None:
        return None if self.head is None else self._response(self.head)

    def _response(self, head: httpx.Response) -> Response:
        duration = timedelta(seconds=time.monotonic() - self.started)
        return Response(head.status_code, dict(head.headers), bytes(self.body), self.is_complete, duration)


async def send(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    policy: Policy = PUBLIC_HTTPS,
    timeout: Duration = _TIMEOUT,
    keep: int = _KEPT,
    tls: ssl.SSLContext | None = None,
    resolve: Resolve = resolve,
) -> Response:
    """Send one POST. Return the response if its status is 2xx, and raise a WebhookError otherwise.

    `timeout` limits everything together: DNS, connecting, TLS, the request and the response. Of the response's body,
    `keep` bytes are kept and the rest is not read. `tls` replaces the context that verifies the receiver.
    """
    arriving = _Arriving(started=time.monotonic())
    limit = to_timedelta(timeout, "timeout")
    target, complete = target_of(url, policy), request_headers(headers)
    host, port = host_of(target), target.port or _PORTS[target.scheme]
    try:
        async with asyncio.timeout(limit.total_seconds()):
            addresses = await checked_addresses(host, port, policy, resolve)
            async with posted(target, addresses, body, complete, tls=tls, limit=limit) as head:
                response = await arriving.read(head, keep)
    except (TimeoutError, httpx.TimeoutException) as error:
        message = f"{host} did not answer completely within {to_text(limit)}"
        raise WebhookTimeout(message, arriving.so_far()) from error
    except (httpx.TransportError, OSError) as error:
        raise HttpException(f"{host}: {_reason(error)}", arriving.so_far()) from error
    return _delivered(host, response)


def _delivered(host: str, response: Response) -> Response:
    status = response.status
    if 200 <= status < 300:
        return response
    if status == 410:
        raise WebhookGone(f"{host} answered 410: it wants no more webhooks", response)
    note = "; redirects are not followed" if 300 <= status < 400 else ""
    raise WebhookNon2xx(f"{host} answered {status}{note}", response, delay_of(response.headers))


def _reason(error: Exception) -> str:
    """Why the network failed, without the address that was tried, because customers may see it."""
    match _root_of(error):
        case ssl.SSLCertVerificationError() as root:
            return f"TLS: {root.verify_message}"
        case ssl.SSLError() as root:
            return f"TLS: {(root.reason or 'no reason given').replace('_', ' ').lower()}"
        case socket.gaierror() as root:
            return root.strerror or "host not found"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__


def _root_of(error: BaseException) -> BaseException:
    # httpcore keeps the error of the operating system as an argument, but not as the cause.
    inner = error.__cause__ or next((each for each in error.args if isinstance(each, BaseException)), None)
    return error if inner is None else _root_of(inner)
