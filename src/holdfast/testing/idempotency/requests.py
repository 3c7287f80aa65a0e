"""HTTP requests, at the narrowest place of each client."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.testing.idempotency.patches import Patch, installed
from holdfast.testing.idempotency.trace import Request, refuse_if_crashed, step

_KEY_HEADER = "idempotency-key"


def of_httpx() -> Iterator[Patch]:
    """At the client, so that a transport of a test's own is seen as well."""
    httpx = installed("httpx")
    if httpx is None:
        return
    original, original_async = httpx.Client.send, httpx.AsyncClient.send

    @wraps(original)
    def send(client: object, request: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with _request(request.method, str(request.url), request.headers.get(_KEY_HEADER)):
            return original(client, request, *arguments, **options)

    @wraps(original_async)
    async def send_async(client: object, request: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with _request(request.method, str(request.url), request.headers.get(_KEY_HEADER)):
            return await original_async(client, request, *arguments, **options)

    yield httpx.Client, "send", send
    yield httpx.AsyncClient, "send", send_async


def of_http_client() -> Iterator[Patch]:
    """urllib, urllib3 and requests send through this class of the standard library."""
    begun: WeakKeyDictionary[http.client.HTTPConnection, tuple[str, str, list[str]]] = WeakKeyDictionary()
    base = http.client.HTTPConnection
    put_request, put_header, get_response = base.putrequest, base.putheader, base.getresponse

    @wraps(put_request)
    def begin(connection: http.client.HTTPConnection, method: str, url: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        refuse_if_crashed()
        begun[connection] = (method, _full_url(connection, url), [])
        put_request(connection, method, url, *arguments, **options)

    @wraps(put_header)
    def header(connection: http.client.HTTPConnection, name: str | bytes, *values: Any) -> None:  # noqa: ANN401
        if _text(name).lower() == _KEY_HEADER and connection in begun:
            begun[connection][2].append(_text(values[0]))
        put_header(connection, name, *values)

    @wraps(get_response)
    def answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        method, url, keys = begun.pop(connection, ("GET", _full_url(connection, ""), []))
        with _request(method, url, keys[0] if keys else None):
            return get_response(connection)

    yield base, "putrequest", begin
    yield base, "putheader", header
    yield base, "getresponse", answer


def _full_url(connection: http.client.HTTPConnection, url: str) -> str:
    if "://" in url:
        return url
    scheme = "https" if isinstance(connection, http.client.HTTPSConnection) else "http"
    return f"{scheme}://{connection.host}:{connection.port}{url}"


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


@contextmanager
def _request(method: str, url: str, key: str | None) -> Iterator[None]:
    request = Request(method.upper(), url, key)
    with step(str(request), effect=request):
        yield
