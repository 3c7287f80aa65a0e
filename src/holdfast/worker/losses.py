"""Reports leases that this worker lost while it stayed alive: it did not crash, so none of the jobs is to blame."""

import asyncio
from contextlib import suppress

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Lease
from holdfast.logs.records import get_logger
from holdfast.store.contract import Store
from holdfast.worker.loop import Loop

log = get_logger("holdfast.worker")

_LAST_SECONDS = 1.0


class Losses:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._unreported: list[Lease] = []
        self._reporting = Loop("report losses", self._report)

    async def run(self) -> None:
        """Until `stop`."""
        await self._reporting.run()

    def stop(self) -> None:
        self._reporting.stop()

    def note(self, lease: Lease) -> None:
        self._unreported.append(lease)
        self._reporting.wake()

    async def close(self) -> None:
        """Make one last, brief try, because losses that are not reported count against the jobs."""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._report()

    async def _report(self) -> None:
        if self._unreported:
            reported = list(self._unreported)
            await self._store.absolve(reported)
            # Losses noted in the meantime stay for the next report.
            del self._unreported[: len(reported)]
            log.info("reported leases that were lost although this worker is alive", count=len(reported))
            if self._unreported:
                self._reporting.wake()
