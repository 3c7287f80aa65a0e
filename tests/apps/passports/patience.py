"""Wait for a condition that another process or task brings about."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE = 60
"""In seconds: long enough for a busy machine."""


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = is_so()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.03)
