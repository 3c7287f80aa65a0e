"""What Holdfast asks of Django: the connection of a thread, where its database is, and tidy connections afterward."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast
from zoneinfo import ZoneInfo

import django
from asgiref.sync import SyncToAsync
from django.apps import apps
from django.core import mail
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from holdfast.django.configuration import url_of
from holdfast.domain.address import MaskedAddress
from holdfast.domain.connections import BlockingConnection
from holdfast.domain.event_loop import running_loop
from holdfast.domain.framework import Answered
from holdfast.logs.records import get_logger
from holdfast.store.postgres.connection_store import answered

log = get_logger("holdfast.django")

# The transaction status of libpq, as psycopg and psycopg2 have it.
_IDLE, _UNKNOWN = 0, 4


@dataclass
class DjangoFramework:
    alias: str
    _last_url: str = field(default="", repr=False)
    """Has the password, and Django's debug page shows the variables of each frame."""
    _has_async: bool = False

    def __getstate__(self) -> tuple[str, dict[str, str]]:
        """A handler's process imports the settings again, and uses the databases that a test may have put in place."""
        return self.alias, {alias: connections.settings[alias]["NAME"] for alias in connections}

    def __setstate__(self, state: tuple[str, dict[str, str]]) -> None:
        self.alias, self._names = state

    def store_url(self, current: str) -> str:
        """Follow Django's database, unless `--store` or a test has chosen another store."""
        if self._last_url and current != self._last_url:
            return current
        self._last_url = MaskedAddress(url_of(self.alias))
        return self._last_url

    def is_followed(self, store: str) -> bool:
        return store == self._last_url

    def check_use(self) -> None:
        """Ask the guards of Django's and pytest-django's tests, which replace this method of the class."""
        if hasattr(mail, "outbox"):
            probe = connections.create_connection(self.alias)
            # Nothing connects if there are no guards, or if they permit it.
            probe.connect = _do_nothing
            with suppress(SynchronousOnlyOperation):
                probe.ensure_connection()

    def connection(self) -> BlockingConnection:
        return cast(BlockingConnection, connections[self.alias])

    def answered(self, sql: str, parameters: Sequence[str | None]) -> Answered:
        connection = connections[self.alias]
        # Times have no zone in a project with USE_TZ = False.
        return answered(connection.cursor, ZoneInfo(connection.timezone_name), sql, parameters)

    def is_in_transaction(self) -> bool:
        return bool(connections[self.alias].in_atomic_block)

    def set_up(self) -> None:
        if not apps.ready:
            django.setup()
            for alias, name in self._names.items():
                connections.settings[alias]["NAME"] = name

    def tidy(self) -> "Future[bool]":
        if running_loop() is None:
            tidied: Future[bool] = Future()
            tidied.set_result(tidy_thread())
            return tidied
        # The thread in which sync_to_async runs what async handlers call. Its next call comes after this one.
        self._has_async = True
        return SyncToAsync.single_thread_executor.submit(tidy_thread)

    def leave(self) -> None:
        if running_loop() is None:
            connections.close_all()
        if self._has_async:
            SyncToAsync.single_thread_executor.submit(connections.close_all)


def _do_nothing() -> None:
    pass


def tidy_thread() -> bool:
    """Close this thread's connections that are broken, too old, or in a transaction that was left open.

    Return whether such a transaction had written something.
    """
    return True in [tidy_connection(each) for each in connections.all(initialized_only=True)]


def tidy_connection(connection: Any) -> bool:  # noqa: ANN401
    had_written = False
    try:
        is_open, had_written = _transaction_of(connection)
        if connection.in_atomic_block:
            # Django would stay in this atomic block, and every later one would be a savepoint that never commits.
            del connections[connection.alias]
            connection.close()
        elif is_open:
            connection.close()
        else:
            # Drops the connection if autocommit was left off.
            connection.close_if_unusable_or_obsolete()
    except Exception as error:  # noqa: BLE001 - must neither hide nor change how the attempt ended
        log.warning("a connection could not be closed and is dropped", alias=connection.alias, error=str(error))
        if hasattr(connections._connections, connection.alias):
            del connections[connection.alias]
    return had_written


def _transaction_of(connection: Any) -> tuple[bool, bool]:  # noqa: ANN401
    """Whether the connection is in a transaction, and whether that transaction has written something."""
    if connection.connection is None or connection.vendor != "postgresql":
        return connection.in_atomic_block, connection.in_atomic_block and connection.connection is not None
    status = connection.connection.info.transaction_status
    if status == _IDLE:
        return False, False
    if status == _UNKNOWN:
        # The connection is lost.
        return connection.in_atomic_block, connection.in_atomic_block
    try:
        with connection.connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            return True, bool(cursor.fetchone()[0])
    except Exception:  # noqa: BLE001 - an earlier error ended the transaction, and what it had written is unknown
        return True, True
