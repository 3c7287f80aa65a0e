"""What waiting for jobs needs of a store. Nothing here changes a job.

Neighbors: waits/waits.py does the waiting, wake/final.py hears the rings of PostgreSQL.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from holdfast.domain.job import Job

Heard = Callable[[Collection[UUID] | None], None]
"""Called with the ids of jobs that became final, or with None when some may have been missed."""


class Rings(Protocol):
    """Calls `heard` on the event loop that runs it, at once with None when it begins to hear. A ring is only a hint."""

    @property
    def is_listening(self) -> bool: ...

    async def run(self) -> None:
        """Returns only after `stop`."""

    def stop(self) -> None: ...


class WaiterStore(Protocol):
    async def not_live(self, ids: Collection[UUID]) -> list[UUID]:
        """Those that are neither ready nor running: they are final, or not there."""

    async def read(self, ids: Collection[UUID]) -> list[Job]:
        """Those that are there, in no particular order."""

    async def register(self, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        """Have the holder told, for that long at most, when one of these jobs becomes final."""

    async def remove(self, holder: UUID, ids: Collection[UUID]) -> None:
        """The holder waits for these no more."""

    async def forget_expired(self) -> None:
        """Remove what processes that died have left."""

    def rings(self, heard: Heard) -> Rings | None:
        """What hears the rings inside this process; None if they come from a server."""
