"""Drains in the thread of the test, one attempt at a time, for jobs that only the test's own connection can see.

Neighbor: store/postgres/connection_store.py, the store on that connection.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Self

from holdfast.app import Holdfast
from holdfast.domain.handlers import Handler
from holdfast.domain.job import Job
from holdfast.testing.attempt import attempted, claimed, write
from holdfast.testing.drain import Drain


class OneByOne(Drain):
    """There is no worker. `here` makes a handler run in the thread of the test, and `apart` is around each attempt."""

    def __init__(
        self,
        app: Holdfast,
        most: int,
        here: Callable[[Handler], Handler],
        apart: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        super().__init__(app, most)
        self._here = here
        self._apart = apart

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # The connections of this thread are the test's own, and stay as they are.
        self._hooks = replace(self._hooks, framework=None)
        return self

    def _has_children(self) -> bool:
        return False

    async def run_due(self) -> None:
        while jobs := await self._due(handled=True):
            self._left()
            await self._run(min(jobs, key=lambda job: (job.priority, job.run_at, job.id)))

    async def _run(self, job: Job) -> None:
        opened = self._app.opened
        leased = await claimed(opened, job.id)
        self._claims[job.id] += 1
        self._kinds[job.kind] += 1
        handler = self._here(self._app.handlers[job.kind])
        async with self._apart():
            ended = await attempted(leased, handler, self._failures, opened.finish_in, self._hooks)
        move = await write(opened, ended)
        if move is not None:
            self._endings[move] += 1
