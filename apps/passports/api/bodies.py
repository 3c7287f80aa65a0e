"""Limits the size of request bodies, whether or not their size is announced."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BoundedBodies:
    """`limit` returns the most bytes of a body for a path. A larger one is a 413 when an endpoint reads it."""

    def __init__(self, app: ASGIApp, limit: Callable[[str], int]) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _bounded(receive, self._limit(scope["path"]), Headers(scope=scope).get("content-length", ""))
        await self._app(scope, receive, send)


def _bounded(receive: Receive, most: int, announced: str) -> Receive:
    # More digits than anyone can send are cut off before they are converted.
    read, announced_bytes = 0, int(announced[:20]) if announced.isdecimal() else 0

    async def bounded() -> Message:
        nonlocal read
        if announced_bytes > most:
            raise _too_large(most)
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise _too_large(most)
        return message

    return bounded


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body has more than {most:,} bytes")
