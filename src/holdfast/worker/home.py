"""The event loop and app lifespan of a child process, kept from one attempt to the next."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from holdfast.worker.forks import end_forks_in_loop
from holdfast.worker.hooks import OpenState, lifespan_of
from holdfast.worker.lifespan import Lifespan


class Home:
    """Without a lifespan, nothing is kept: each async handler gets its own event loop."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._lifespan: Lifespan | None = None
        self._is_broken = False

    @property
    def state(self) -> Any:  # noqa: ANN401
        return None if self._lifespan is None else self._lifespan.state

    @property
    def is_broken(self) -> bool:
        """The lifespan could not be opened, or has ended."""
        return self._is_broken

    def enter(self, open_state: OpenState | None, kind: str) -> None:
        if open_state is None or self._lifespan is not None:
            return
        self._is_broken = True
        lifespan = lifespan_of(open_state, kind)
        self._runner = asyncio.Runner()
        self._runner.run(self._enter(lifespan))
        self._lifespan = lifespan

    async def _enter(self, lifespan: Lifespan) -> None:
        end_forks_in_loop()
        await lifespan.enter(asyncio.Event(), self._broken)
        self._is_broken = False

    def _broken(self) -> None:
        self._is_broken = True

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
        """Run the coroutine in the caller's context, in which the handler's job is set."""
        if self._runner is None:
            return asyncio.run(work)
        return self._runner.run(work, context=contextvars.copy_context())

    def leave(self) -> None:
        if self._runner is not None and self._lifespan is not None:
            self._runner.run(self._lifespan.leave())
            self._runner.close()
