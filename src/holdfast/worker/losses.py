"""Reports the leases that this worker has lost: it is alive, so it was no crash, and no job of them is to blame."""

import asyncio
from contextlib import suppress

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Lease
from holdfast.log import get_logger
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
        """What was not reported counts against the jobs, so the store is asked once more, for a moment."""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._report()

    async def _report(self) -> None:
        if self._unreported:
            reported = list(self._unreported)
            await self._store.absolve(reported)
            # A loss that was noted meanwhile stays for the next report.
            del self._unreported[: len(reported)]
            log.info("reported leases that were lost although this worker lives", count=len(reported))
            if self._unreported:
                self._reporting.wake()
