"""What a store provides for waiting on jobs. Nothing here changes a job.

Neighbors: waits/waits.py does the waiting, wake/final.py hears the rings of PostgreSQL.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName

Heard = Callable[[Collection[UUID] | None], None]
"""Called with the ids of jobs that became final, or with None when some may have been missed."""


class Rings(Protocol):
    """Calls `heard` on the event loop that runs it, first with None as soon as it listens. A ring is only a hint."""

    @property
    def is_listening(self) -> bool: ...

    async def run(self) -> None:
        """Return only after `stop`."""

    def stop(self) -> None: ...


class WaiterStore(Protocol):
    async def not_live(self, ids: Collection[UUID]) -> list[UUID]:
        """Return the ids that are neither ready nor running: final jobs, and jobs that do not exist."""

    async def read(self, ids: Collection[UUID]) -> list[Job]:
        """Return the jobs that exist, in no particular order."""

    async def find(self, keys: Collection[KeyName]) -> Mapping[KeyName, UUID]:
        """Return the jobs that hold these keys, without unheld keys. Some of the jobs may already have been removed."""

    async def register(self, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        """Notify the holder when one of these jobs becomes final, for at most the given times."""

    async def remove(self, holder: UUID, ids: Collection[UUID]) -> None:
        """Stop notifying the holder of these jobs."""

    async def forget_expired(self) -> None:
        """Remove the registrations of processes that died."""

    def rings(self, heard: Heard) -> Rings | None:
        """Return the listener for rings inside this process, or None if rings come from a server."""
