"""What an app asks of a framework that has a connection for each thread, such as Django.

Neighbors: holdfast.django implements it, the app holds it, and worker/hooks.py wraps handlers with it.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from holdfast.domain.connections import BlockingConnection
from holdfast.domain.errors import Retryable

Answered = tuple[Sequence[str], Iterable[Sequence[object]]]
"""The names of the columns, and the rows."""

_LEFT_OPEN = "the handler left a transaction open; its writes were rolled back"


class TransactionLeftOpen(Retryable):
    """Raised in place of what the handler returned: its job must not be `succeeded` without its writes."""

    def __init__(self, message: str = _LEFT_OPEN) -> None:
        super().__init__(message, code="TRANSACTION_OPEN")


class Framework(Protocol):
    """Can be pickled: the processes of handlers with isolation="process" get a copy."""

    def store_url(self, current: str) -> str:
        """The current address of the store. `current` is the app's, which may have been set to something else."""

    def is_followed(self, store: str) -> bool:
        """Whether this is the address of the framework's database, not of another one that someone chose."""

    def check_use(self) -> None:
        """Raise if a test may not use the database. Called before the app uses its own connection."""

    def connection(self) -> BlockingConnection:
        """The calling thread's connection, for a verb of `app.sync` without `conn`."""

    def answered(self, sql: str, parameters: Sequence[str | None]) -> Answered:
        """Run a statement, with %s for each parameter, on that connection."""

    def is_in_transaction(self) -> bool:
        """Whether that connection is in a transaction, so that no one else can see its jobs yet."""

    def set_up(self) -> None:
        """Called in a handler's process before it imports the application."""

    def tidy(self) -> "Future[bool]":
        """Called before and after each attempt, in its thread or on its event loop.

        Closes what a broken or unfinished attempt would leave to the next one. The result is whether this rolled back
        writes that were not committed.
        """

    def leave(self) -> None:
        """Called at the end of each thread for handlers, and of the worker."""
