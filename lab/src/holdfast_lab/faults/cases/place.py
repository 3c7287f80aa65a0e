"""What the cases of bad input need from the laboratory, and a separate schema.

They need their own schema because the judge does not know their jobs and would report each one as unexpected.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Protocol
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.domain.job import JobState
from holdfast.runtime.process import Process
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection, translated
from holdfast.store.postgres.sql_files import quoted

_TURN_SECONDS = 0.05
_STOP_SECONDS = 30.0


class Lab(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def schema(self) -> str: ...

    @property
    def random(self) -> Random: ...

    @property
    def size(self) -> Mapping[str, float]: ...

    @property
    def progress(self) -> Callable[[str], None]: ...

    def violation(self, kind: str, text: str, job: UUID | None = None) -> None: ...

    def note(self, name: str, value: float, unit: str = "") -> None: ...


@asynccontextmanager
async def schema_of_its_own(lab: Lab, name: str) -> AsyncIterator[str]:
    """Create and migrate a schema, and drop it afterwards. An existing one belongs to others and is left alone."""
    await _execute(lab.url, f"CREATE SCHEMA {quoted(name)}")
    try:
        await migrate(lab.url, name)
        yield name
    finally:
        await _execute(lab.url, f"DROP SCHEMA {quoted(name)} CASCADE")


async def _execute(url: str, sql: str) -> None:
    connection = await open_connection(url)
    try:
        with translated():
            await connection.execute(sql)
    finally:
        await connection.close()


@asynccontextmanager
async def working(lab: Lab, app: Holdfast) -> AsyncIterator[Process]:
    """A worker in this process. Ending before it is stopped is a violation."""
    settings = app.worker_settings(concurrency=8, poll=timedelta(milliseconds=50), shutdown=timedelta(seconds=10))
    process = app.worker(settings)
    running = asyncio.create_task(process.run())
    try:
        yield process
        if running.done():
            lab.violation("worker ended", f"the worker ended by itself: {running.exception()!r}")
    finally:
        process.stop()
        done, _ = await asyncio.wait([running], timeout=_STOP_SECONDS)
        if not done:
            lab.violation("stuck", f"the worker did not stop within {_STOP_SECONDS:g} s")
            running.cancel()
        elif running.exception() is None and running.result():
            lab.violation("worker ended", "handlers that could not be stopped still hold half of the worker's slots")


async def drained(lab: Lab, app: Holdfast, seconds: float) -> bool:
    """Return whether all jobs became final in time; if they did not, report a violation."""
    patience = time.monotonic() + seconds
    while True:
        counts = await app.jobs.count()
        left = counts[JobState.READY] + counts[JobState.RUNNING]
        if not left:
            return True
        if time.monotonic() > patience:
            lab.violation("stuck", f"{left} jobs are not final after {seconds:g} s: {dict(counts)}")
            return False
        await asyncio.sleep(_TURN_SECONDS)
