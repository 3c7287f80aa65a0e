"""Jobs that the store leased to this worker and the worker never heard of, because the answer to a claim was lost.

Left to run out, such leases would count as lost, and a job that has never run would end dead after a few lost answers.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.claim import new_claim
from holdfast.domain.errors import HoldfastError
from holdfast.domain.lease_clock import lease_now
from holdfast.log import get_logger
from holdfast.store.contract import Store
from holdfast.worker.loop import Loop

log = get_logger("holdfast.worker")

_LOOK_SECONDS = 1.0
_LATEST_SECONDS = 5.0
"""How late the server does a claim at most (the lock timeout of claim.sql)."""
_CLOSE_SECONDS = 1.0


class _Lost(NamedTuple):
    """All claims between two names, of which the worker knows nothing."""

    after: UUID
    before: UUID
    until: float


class Unheard:
    """Looks for them once a second, until a whole lease has passed since the server can have done the claim.

    Not only once, because it may do a claim after its client has given it up.
    """

    def __init__(self, store: Store, holder: UUID) -> None:
        self._store = store
        self._holder = holder
        self._lost: list[_Lost] = []
        self._loop = Loop("unheard", self._look)

    def next_name(self) -> UUID:
        """None of a claim's: it tells those before from those after it."""
        return new_claim(self._holder)

    def lost(self, after: UUID, lease: float) -> None:
        """The answers to all claims since then, which lease jobs for so many seconds at most."""
        self._lost.append(_Lost(after, self.next_name(), lease_now() + _LATEST_SECONDS + lease))
        self._loop.wake()

    async def run(self) -> None:
        """Until `stop`."""
        await self._loop.run()

    def stop(self) -> None:
        self._loop.stop()

    async def close(self) -> None:
        """A last look, if the store answers."""
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
        unheard = [lease for lease in leases if any(lost.after < lease.claim < lost.before for lost in self._lost)]
        if unheard:
            await self._store.release(unheard)
            log.warning("gave back jobs of a claim whose answer was lost", count=len(unheard))
