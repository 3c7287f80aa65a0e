"""The verbs inside a caller's transaction, as the producer uses them.

Two implementations: the statements of a store, and the stand-in of holdfast.testing for an app in memory.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.event import NewEvent
from holdfast.domain.job import NewJob
from holdfast.store.contract import Canceling, Deleting, Retrying
from holdfast.store.events import EventJob

Answer = TypeVar("Answer", covariant=True)


class Change(Protocol[Answer]):
    """One verb with its arguments. `verb` is for the error when an async and a blocking connection are mixed up."""

    async def execute_awaited(self, connection: object, verb: str) -> Answer: ...

    def execute_blocking(self, connection: object, verb: str) -> Answer: ...


class Transactions(Protocol):
    def enqueue(self, jobs: Sequence[NewJob]) -> Change[list[Enqueued]]: ...

    def publish(self, event: NewEvent) -> Change[list[EventJob]]: ...

    def cancel(self, ids: Sequence[UUID]) -> Change[list[Canceling]]: ...

    def retry(self, ids: Sequence[UUID]) -> Change[list[Retrying]]: ...

    def delete(self, ids: Sequence[UUID]) -> Change[list[Deleting]]: ...
