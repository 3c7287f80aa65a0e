"""Records the queue's work as runs: one row per minute with work, so that an idle queue writes nothing."""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.json_text import encode
from holdfast.logs.records import get_logger
from holdfast.store.schedules import NewRun, RunStore

log = get_logger("holdfast.worker")

_MINUTE = 60.0


class QueueRuns:
    def __init__(self, runs: RunStore, name: str, replica: str) -> None:
        self._runs = runs
        self._run = NewRun(name, replica)
        self._counts: Counter[str] = Counter()
        self._since: float | None = None
        self._not_before = 0.0

    def begin(self) -> None:
        """Work was claimed: start a minute now, unless one has already started."""
        if self._since is None:
            self._since = time.monotonic()

    def add(self, counts: Mapping[str, int]) -> None:
        if counts:
            self.begin()
            self._counts.update(counts)

    async def write(self, *, at_once: bool = False) -> None:
        """Write the row when its minute is over. An outage merges several minutes into one; a killed process does not
        record its last minute."""
        if not self._counts or self._since is None:
            return
        if not at_once and time.monotonic() < max(self._since + _MINUTE, self._not_before):
            return
        counts, since = self._counts, self._since
        self._counts, self._since = Counter(), None
        try:
            ago = timedelta(seconds=time.monotonic() - since)
            await self._runs.record(self._run, ago, encode(dict(counts)), None)
        except StoreUnavailable as error:
            log.info("could not record what the queue did", error=str(error))
            self._counts.update(counts)
            self._since = since
            self._not_before = time.monotonic() + _MINUTE
