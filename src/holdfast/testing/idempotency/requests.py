"""Intercepts HTTP requests at the lowest level of each client."""

import hashlib
import http.client
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.testing.idempotency.patches import Patch, installed
from holdfast.testing.idempotency.trace import Request, refuse_if_crashed, step

_KEY_HEADER = "idempotency-key"
# The boundary between the parts of a form is generated anew for each request.
_BOUNDARY = re.compile(r"multipart/.*boundary=\"?([^\";,]+)", re.IGNORECASE)


def of_httpx() -> Iterator[Patch]:
    """Wrap the client, which also covers a transport that a test provides."""
    httpx = installed("httpx")
    if httpx is None:
        return

    def request_of(request: Any) -> AbstractContextManager[None]:  # noqa: ANN401
        try:
            body = request.content
        except httpx.RequestNotRead:
            body = None
        return _request(request.method, str(request.url), request.headers, body)

    original, original_async = httpx.Client.send, httpx.AsyncClient.send

    @wraps(original)
    def send(client: object, request: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with request_of(request):
            return original(client, request, *arguments, **options)

    @wraps(original_async)
    async def send_async(client: object, request: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with request_of(request):
            return await original_async(client, request, *arguments, **options)

    yield httpx.Client, "send", send
    yield httpx.AsyncClient, "send", send_async


def of_webhooks() -> Iterator[Patch]:
    """`holdfast.webhooks` uses httpx's transport without its client."""
    if installed("httpx") is None:
        return
    sending = import_module("holdfast.webhooks.sending")
    original = sending.posted

    @asynccontextmanager
    async def posted(url: Any, addresses: Any, body: bytes, headers: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        # Receivers recognize a repeated delivery by its ID.
        ids = [value for name, value in headers.items() if name == "webhook-id" or name.endswith("-delivery-id")]
        keyed = {**headers, **({_KEY_HEADER: ids[0]} if ids else {})}
        with _request("POST", str(url), keyed, body):
            async with original(url, addresses, body, headers, **options) as response:
                yield response

    yield sending, "posted", posted


def of_requests() -> Iterator[Patch]:
    """Wrap the session, which also covers an adapter that a test provides. urllib3's work inside is the same step."""
    requests = installed("requests")
    if requests is None:
        return
    original = requests.Session.send

    @wraps(original)
    def send(session: object, request: Any, **options: Any) -> Any:  # noqa: ANN401
        with _request(request.method, request.url, request.headers, request.body or b""):
            return original(session, request, **options)

    yield requests.Session, "send", send


class _Begun:
    """A request whose response has not been read yet."""

    def __init__(self, method: str, url: str) -> None:
        self.method = method
        self.url = url
        self.headers: dict[str, str] = {}
        self.head_is_sent = False
        self.body: bytes | None = b""

    def sent(self, part: Any) -> None:  # noqa: ANN401
        """The first part is the head. A body that is not sent as bytes cannot be read a second time."""
        if self.head_is_sent:
            is_bytes = isinstance(part, bytes | bytearray | memoryview)
            self.body = None if self.body is None or not is_bytes else self.body + part


def of_http_client() -> Iterator[Patch]:
    """urllib and urllib3 send through this class of the standard library."""
    begun: WeakKeyDictionary[http.client.HTTPConnection, _Begun] = WeakKeyDictionary()
    base = http.client.HTTPConnection
    put_request, put_header, send_part, get_response = base.putrequest, base.putheader, base.send, base.getresponse

    @wraps(put_request)
    def begin(connection: http.client.HTTPConnection, method: str, url: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        refuse_if_crashed()
        begun[connection] = _Begun(method, _full_url(connection, url))
        put_request(connection, method, url, *arguments, **options)

    @wraps(put_header)
    def header(connection: http.client.HTTPConnection, name: str | bytes, *values: Any) -> None:  # noqa: ANN401
        if connection in begun:
            begun[connection].headers.setdefault(_text(name).lower(), _text(values[0]))
        put_header(connection, name, *values)

    @wraps(send_part)
    def send(connection: http.client.HTTPConnection, part: Any) -> None:  # noqa: ANN401
        request = begun.get(connection)
        if request is not None:
            request.sent(part)
        send_part(connection, part)
        # Only now, because sending the head may open the connection, which can mean sending something to a proxy.
        if request is not None:
            request.head_is_sent = True

    @wraps(get_response)
    def answer(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        request = begun.pop(connection, None) or _Begun("GET", _full_url(connection, ""))
        with _request(request.method, request.url, request.headers, request.body):
            return get_response(connection)

    yield base, "putrequest", begin
    yield base, "putheader", header
    yield base, "send", send
    yield base, "getresponse", answer


def _full_url(connection: http.client.HTTPConnection, url: str) -> str:
    if "://" in url:
        return url
    scheme = "https" if isinstance(connection, http.client.HTTPSConnection) else "http"
    return f"{scheme}://{connection.host}:{connection.port}{url}"


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _digest(body: object, content_type: str) -> str | None:
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes):
        return None
    boundary = _BOUNDARY.match(content_type)
    if boundary is not None:
        body = body.replace(boundary[1].encode(), b"")
    return hashlib.sha256(body).hexdigest()


@contextmanager
def _request(method: str, url: str, headers: Mapping[str, str | bytes], body: object) -> Iterator[None]:
    """Take the step of one request. `headers` are looked up by lowercase names."""
    key = headers.get(_KEY_HEADER)
    digest = _digest(body, _text(headers.get("content-type", "")))
    request = Request(method.upper(), url, None if key is None else _text(key), digest)
    with step(str(request), effect=request):
        yield
