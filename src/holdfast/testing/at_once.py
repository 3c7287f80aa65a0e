"""Stands in for a caller's transaction if the app is in memory: each verb does at once what a commit would do."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from unittest.mock import patch
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.domain.connections import check_color, is_of_known_library
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.event import NewEvent
from holdfast.domain.event_loop import finished
from holdfast.domain.job import NewJob
from holdfast.store.contract import Canceling, Deleting, Retrying
from holdfast.store.events import EventJob
from holdfast.store.opening import OpenStore

Value = TypeVar("Value")


@contextmanager
def at_once(app: Holdfast) -> Iterator[None]:
    with patch.object(app, "_stand_in", _MemoryTransactions(app.opened)):
        yield


@dataclass(frozen=True, slots=True)
class _AtOnce(Generic[Value]):
    """Accepts any object as a connection; one from a real library has to fit the verb, as in production."""

    work: Callable[[], Coroutine[Any, Any, Value]]

    async def execute_awaited(self, connection: object, verb: str) -> Value:
        if is_of_known_library(connection):
            check_color(connection, verb, awaits=True)
        return await self.work()

    def execute_blocking(self, connection: object, verb: str) -> Value:
        if is_of_known_library(connection):
            check_color(connection, verb, awaits=False)
        return finished(self.work())


@dataclass(frozen=True, slots=True)
class _MemoryTransactions:
    opened: OpenStore

    def enqueue(self, jobs: Sequence[NewJob]) -> _AtOnce[list[Enqueued]]:
        return _AtOnce(lambda: self.opened.store.enqueue(jobs))

    def publish(self, event: NewEvent) -> _AtOnce[list[EventJob]]:
        return _AtOnce(lambda: self.opened.events.publish(event))

    def cancel(self, ids: Sequence[UUID]) -> _AtOnce[list[Canceling]]:
        return _AtOnce(lambda: self.opened.store.cancel(ids))

    def retry(self, ids: Sequence[UUID]) -> _AtOnce[list[Retrying]]:
        return _AtOnce(lambda: self.opened.store.retry(ids))

    def delete(self, ids: Sequence[UUID]) -> _AtOnce[list[Deleting]]:
        return _AtOnce(lambda: self.opened.store.delete(ids))
