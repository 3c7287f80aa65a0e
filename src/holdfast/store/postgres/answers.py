"""Waits for answers from a server that may have gone silent: an answer in time, or the connection is dropped."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.event_loop import any_done
from holdfast.store.postgres.driver import translated

if TYPE_CHECKING:
    import asyncpg

Answer = TypeVar("Answer")


async def answered(
    connection: "asyncpg.Connection[asyncpg.Record]", request: Coroutine[Any, Any, Answer], seconds: float
) -> Answer:
    """Avoids asyncpg's own timeout, which sends a cancel request over a second connection that may hang too."""
    task = asyncio.ensure_future(request)
    try:
        await any_done([task], seconds)
        if not task.done():
            raise StoreUnavailable(f"PostgreSQL did not answer within {seconds:g} s")
        with translated():
            return task.result()
    finally:
        if not task.done():
            connection.terminate()
            await asyncio.gather(task, return_exceptions=True)
