"""Makes the request: one POST to addresses that were checked, and to nothing else.

It uses httpx's transport without its client, which would read proxies from the environment, follow redirects,
decompress responses, and log whole addresses.
"""

import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import httpx

from holdfast.domain.errors import InvalidInput
from holdfast.webhooks.headers import checked
from holdfast.webhooks.url import host_of

_MOST_TRIED = 3
"""How many addresses of one host are tried until one connects."""

_DEFAULTS = {"User-Agent": "Holdfast", "Content-Type": "application/json", "Accept": "*/*"}
_OURS = {"Accept-Encoding": "identity", "Connection": "close"}
_RESERVED = frozenset({"host", "content-length", "transfer-encoding", *map(str.lower, _OURS)})


def request_headers(headers: Mapping[str, str]) -> httpx.Headers:
    """The application's headers and ours."""
    for name in headers:
        if name.lower() in _RESERVED:
            raise InvalidInput(f"the HTTP header {name} is set by Holdfast")
    complete = httpx.Headers(_DEFAULTS)
    complete.update(checked(headers))
    complete.update(_OURS)
    return complete


class _Connection(Protocol):
    async def aclose(self) -> None: ...


_Trace = Callable[[str, Mapping[str, _Connection]], Awaitable[None]]
"""What httpcore calls at each step of a request."""


@contextlib.asynccontextmanager
async def posted(
    target: httpx.URL,
    addresses: Sequence[str],
    body: bytes,
    headers: httpx.Headers,
    *,
    tls: ssl.SSLContext | None,
    limit: timedelta,
) -> AsyncIterator[httpx.Response]:
    """Yield the response as soon as its headers have arrived. `limit` is shared by the attempts to connect."""
    tried = addresses[:_MOST_TRIED]
    connect = limit.total_seconds() / len(tried)
    async with _closing_connections() as trace, httpx.AsyncHTTPTransport(verify=tls or _trusted()) as transport:
        requests = [_request(target, address, body, headers, connect, trace) for address in tried]
        response = await _first_connected(transport, requests)
        try:
            yield response
        finally:
            await response.aclose()


@contextlib.asynccontextmanager
async def _closing_connections() -> AsyncIterator[_Trace]:
    """Close what httpcore forgets: a connection whose TLS handshake is canceled, as a deadline does."""
    opened: list[_Connection] = []

    async def trace(event: str, details: Mapping[str, _Connection]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(details["return_value"])

    try:
        yield trace
    finally:
        for connection in opened:
            await connection.aclose()


async def _first_connected(transport: httpx.AsyncHTTPTransport, requests: Sequence[httpx.Request]) -> httpx.Response:
    for request in requests[:-1]:
        # Without a connection nothing was sent, so the next address cannot cause a second delivery.
        with contextlib.suppress(httpx.ConnectError, httpx.ConnectTimeout):
            return await transport.handle_async_request(request)
    return await transport.handle_async_request(requests[-1])


def _request(
    target: httpx.URL, address: str, body: bytes, headers: httpx.Headers, connect: float, trace: _Trace
) -> httpx.Request:
    """The URL holds the checked address, so nothing resolves the name again.

    The name remains in the header Host and, for TLS, in the question for the server and the check of its certificate.
    """
    return httpx.Request(
        "POST",
        target.copy_with(host=address),
        headers=[(b"Host", target.netloc), *headers.raw],
        content=body,
        extensions={
            "trace": trace,
            "sni_hostname": host_of(target),
            "timeout": {"connect": connect, "read": None, "write": None, "pool": None},
        },
    )


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Shared by all webhooks of the process, because reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()
