"""Which kinds this process cannot start now, for reasons that are not their jobs': no thread or process can be created,
or the handler's process cannot import the app, open its lifespan or stay alive until the handler begins.

Such a kind rests: none of its jobs are claimed, and then one at a time until one starts. It rests alone, because one
handler that cannot be imported must not hold up the others.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from holdfast.domain.handlers import Handler, Isolation
from holdfast.domain.job import JobError
from holdfast.domain.retry import exponential
from holdfast.logs.records import get_logger

log = get_logger("holdfast.worker")

_REST = exponential(base="1s", max="30s", jitter="1s")
_HOPELESS_SECONDS = 300.0
"""A restart helps against leaked descriptors and a release that was copied while the worker ran. If it does not help,
one in five minutes does little harm to the handlers that can start."""
_STALE_SECONDS = 60.0
_SAY_AGAIN_SECONDS = 60.0
"""A worker that can start some handlers, but not as many as it has slots, changes its mind every second."""


@dataclass(slots=True)
class _Trouble:
    error: JobError
    failures: int = 0
    rests_until: float = -math.inf
    is_told: bool = False


class Starts:
    """Times are monotonic seconds."""

    def __init__(
        self, recovered: Callable[[], None] = lambda: None, hopeless: Callable[[], None] = lambda: None
    ) -> None:
        """`recovered` is called when a kind can be claimed as usual again; `hopeless` when no handler of an isolation
        could be started for a long time."""
        self.has_trouble = False
        """Whether some kind cannot be started. Not a property, because it is read for each job in a thread."""
        self._recovered = recovered
        self._hopeless = hopeless
        self._random = Random()  # noqa: S311 - spreads tries, guards nothing
        self._troubles: dict[str, _Trouble] = {}
        self._told: dict[str, float] = {}
        self._failing_since: dict[Isolation, float] = {}

    @property
    def trouble(self) -> str | None:
        """Why some kind cannot be started."""
        return next((f"{kind}: {trouble.error.summary}" for kind, trouble in self._troubles.items()), None)

    def failed(self, handler: Handler, error: JobError) -> None:
        now = time.monotonic()
        failing_since = self._failing_since.setdefault(handler.isolation, now)
        trouble = self._troubles.setdefault(handler.kind, _Trouble(error))
        self.has_trouble = True
        if now < trouble.rests_until:
            # It was claimed together with the one that failed first.
            return
        trouble.failures += 1
        rest = _REST.delay(trouble.failures, self._random).total_seconds()
        trouble.rests_until = now + rest
        if not trouble.is_told and now >= self._told.get(handler.kind, -math.inf) + _SAY_AGAIN_SECONDS:
            trouble.is_told, self._told[handler.kind] = True, now
            log.failure(
                logging.ERROR,
                "handlers of this kind cannot be started; its jobs are given back at no cost, and it rests",
                error.traceback,
                kind=handler.kind,
                isolation=handler.isolation,
                again_in=round(rest, 1),
                error=error.summary,
            )
        if now >= failing_since + _HOPELESS_SECONDS:
            log.error(
                "no handler of this isolation could be started for too long; draining for a restart",
                isolation=handler.isolation,
                error=error.summary,
            )
            self._hopeless()

    def began(self, handler: Handler) -> None:
        """Call this if `has_trouble` and a handler has begun."""
        self._failing_since.pop(handler.isolation, None)
        trouble = self._end(handler.kind)
        if trouble is not None:
            if trouble.is_told:
                log.warning("handlers of this kind start again", kind=handler.kind, after_failures=trouble.failures)
            self._recovered()

    def _end(self, kind: str) -> _Trouble | None:
        trouble = self._troubles.pop(kind, None)
        self.has_trouble = bool(self._troubles)
        if not self._troubles:
            self._failing_since.clear()
        return trouble

    def most(self, kind: str) -> float:
        """How many more jobs of this kind may be claimed. One is enough to find out whether it can be started again."""
        trouble = self._troubles.get(kind)
        if trouble is None:
            return math.inf
        now = time.monotonic()
        if now >= trouble.rests_until + _STALE_SECONDS:
            # Other workers took its jobs, so it was not tried again, and nothing is known about it anymore.
            self._end(kind)
            return math.inf
        return 0 if now < trouble.rests_until else 1

    @property
    def more_in(self) -> float:
        """Seconds until a kind that rests may be tried; infinite if none rests."""
        now = time.monotonic()
        rests = (trouble.rests_until - now for trouble in self._troubles.values())
        return min((rest for rest in rests if rest > 0), default=math.inf)
