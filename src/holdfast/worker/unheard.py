"""Jobs that the store leased to this worker without its knowledge, because the answer to a claim was lost.

If such leases expired, they would count as lost, and a job that never ran would end `dead` after a few lost answers.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.claim import new_number, number_of
from holdfast.domain.errors import HoldfastError
from holdfast.domain.lease_clock import lease_now
from holdfast.logs.records import get_logger
from holdfast.store.contract import Store
from holdfast.worker.loop import Loop

log = get_logger("holdfast.worker")

_LOOK_SECONDS = 1.0
_LATEST_SECONDS = 5.0
"""The latest that the server can execute a claim (the limit in claim.sql)."""
_CLOSE_SECONDS = 1.0


class _Lost(NamedTuple):
    """All claims with numbers between two others, whose results the worker does not know."""

    after: int
    before: int
    until: float


class Unheard:
    """Looks for such jobs once a second, until a full lease has passed since the server could have executed the claim.

    One look is not enough, because the server may execute a claim after its client has given up.
    """

    def __init__(self, store: Store, holder: UUID) -> None:
        self._store = store
        self._holder = holder
        self._lost: list[_Lost] = []
        self._loop = Loop("unheard", self._look)

    def lost(self, after: int, lease: float) -> None:
        """The answers to all claims since `after` were lost. These claims lease jobs for at most `lease` seconds."""
        self._lost.append(_Lost(after, new_number(), lease_now() + _LATEST_SECONDS + lease))
        self._loop.wake()

    async def run(self) -> None:
        """Until `stop`."""
        await self._loop.run()

    def stop(self) -> None:
        self._loop.stop()

    async def close(self) -> None:
        """Take a last look, if the store answers."""
        if self._lost:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._give_back()

    async def _look(self) -> float | None:
        if not self._lost:
            return None
        began = lease_now()
        await self._give_back()
        self._lost = [lost for lost in self._lost if lost.until > began]
        return _LOOK_SECONDS if self._lost else None

    async def _give_back(self) -> None:
        leases = await self._store.leases_of(self._holder)
        unheard = [lease for lease in leases if self._is_lost(number_of(lease.claim))]
        if unheard:
            await self._store.release(unheard)
            log.warning("gave back jobs of a claim whose answer was lost", count=len(unheard))

    def _is_lost(self, number: int) -> bool:
        return any(lost.after < number < lost.before for lost in self._lost)
