"""A connection that reconnects by itself, and logs each outage once. Both sources of wake-ups are built on it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from holdfast.domain.errors import HoldfastError
from holdfast.domain.event_loop import any_done, is_being_canceled
from holdfast.domain.retry import Backoff
from holdfast.logs.records import get_logger

log = get_logger("holdfast.wake")

Answer = TypeVar("Answer")

# A session that ends sooner does not reset the backoff. Otherwise a server that accepts a connection and drops it at
# once would be asked again without a pause.
_STEADY_SECONDS = 2.0


class LinkLost(HoldfastError):
    """The other side cannot be reached, does not answer, or hung up."""


class Stopped(HoldfastError):
    """The link was stopped while it waited."""


class Outage:
    """Logs the start and the end of an outage, once each and at the same level, so no log shows only the start."""

    def __init__(
        self, source: str, *, begins: str = "no wake-ups; polling continues", ends: str = "wake-ups are back"
    ) -> None:
        self._source = source
        self._begins = begins
        self._ends = ends
        self._goes_on = False

    def goes_on(self, error: BaseException) -> None:
        if not self._goes_on:
            self._goes_on = True
            trace = None if isinstance(error, HoldfastError) else error
            log.warning(self._begins, source=self._source, error=_line(error), exc_info=trace)

    def is_over(self) -> None:
        if self._goes_on:
            self._goes_on = False
            log.warning(self._ends, source=self._source)


class Link:
    """Runs `session` again and again until it is stopped.

    A session connects, calls `up`, serves until `stopping` is set, and raises when the connection is no longer usable.
    The first retry comes at once, later ones after the backoff.
    """

    def __init__(self, source: str, session: Callable[[], Awaitable[None]], backoff: Backoff) -> None:
        self.stopping = asyncio.Event()
        self._outage = Outage(source)
        self._session = session
        self._backoff = backoff
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._up_since: float | None = None

    @property
    def is_up(self) -> bool:
        return self._up_since is not None

    def up(self) -> None:
        self._up_since = time.monotonic()
        self._outage.is_over()

    def stop(self) -> None:
        self.stopping.set()

    async def run(self) -> None:
        failures = 0
        while not self.stopping.is_set():
            try:
                await self._session()
            except Stopped:
                break
            except (Exception, asyncio.CancelledError) as error:
                if is_being_canceled():
                    raise
                lasted = 0.0 if self._up_since is None else time.monotonic() - self._up_since
                failures = 1 if lasted >= _STEADY_SECONDS else failures + 1
                self._outage.goes_on(error)
            finally:
                self._up_since = None
            if failures > 1 and not self.stopping.is_set():
                await self.pause(self._backoff.delay(failures - 1, self._random).total_seconds())

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the link is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return

    async def within(self, seconds: float, attempt: Awaitable[Answer]) -> Answer:
        """Return the attempt's result. Raise LinkLost if it takes too long, and Stopped if the link is stopped."""
        task = asyncio.ensure_future(attempt)
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await any_done([task, stopping], seconds)
            if task.done():
                return task.result()
            if stopping.done():
                raise Stopped("stopped")
            raise LinkLost(f"no answer within {seconds:g} s")
        finally:
            for each in (task, stopping):
                each.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
