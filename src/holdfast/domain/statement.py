"""One SQL statement with its parameters and a reader for its rows: a value that any library's connection can execute.

Parameters are numbered ($1 … $n), as in PostgreSQL itself; connections.py converts them to other styles.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, Self, TypeVar, cast, overload

from holdfast.domain.connections import AwaitedConnection, Parameters, Rows, check_color, rows_of
from holdfast.domain.errors import StaleLease

STALE_LEASE_SQLSTATE = "HF001"
_SERIALIZATION_FAILURE = "40001"
# A schema, table or function is missing.
_MISSING_SCHEMA = ("3F000", "42P01", "42883")
_MIGRATE = (
    "the database has no matching Holdfast schema; run `holdfast migrate`, or `manage.py migrate` in a Django project"
)

Answer = TypeVar("Answer")


def nothing(_: Rows) -> None:
    """The reader for a statement whose rows have no meaning."""


@dataclass(frozen=True, slots=True)
class Statement(Generic[Answer]):
    """Execute `sql` with `parameters` in any way you like, then pass the rows to `read` for the answer.

    The statement always returns rows, even if they are empty: it is a SELECT, or a change with RETURNING. `source` is
    the call that returns such a statement for execution by hand. `conflict` is a note added to serialization errors.
    """

    sql: str
    parameters: Parameters
    read: Callable[[Rows], Answer] = field(compare=False)
    source: str = field(default="", compare=False)
    conflict: str = field(default="", compare=False)

    @classmethod
    def in_text(
        cls, sql: str, parameters: Parameters, read: Callable[[Rows], Answer], source: str = "", conflict: str = ""
    ) -> Self:
        """Pass ids, durations and times as text, because the connection may have custom types registered for them.

        `sql` declares the type of each one: `$1::uuid`, or `$1::uuid[]` for a list.
        """
        in_text, spellings = _in_text(sql)
        given = list(parameters)
        for number, spell in spellings.items():
            value = given[number - 1]
            if isinstance(value, list):
                given[number - 1] = [None if each is None else spell(each) for each in value]
            elif value is not None:
                given[number - 1] = spell(value)
        return cls(in_text, tuple(given), read, source, conflict)

    @overload
    def execute_on(self, connection: AwaitedConnection) -> Awaitable[Answer]: ...

    @overload
    def execute_on(self, connection: object) -> Answer | Awaitable[Answer]: ...

    def execute_on(self, connection: object) -> Answer | Awaitable[Answer]:
        """Run on a connection, session or cursor of a library that connections.py supports, inside its transaction.

        With an async library, await the result; with a blocking one, the result is the answer.
        """
        try:
            rows = rows_of(connection, self.sql, self.parameters, self.source)
        except Exception as error:
            self._explain(error)
            raise
        return self._awaited(rows) if isinstance(rows, Awaitable) else self.read(rows)

    async def execute_awaited(self, connection: object, verb: str) -> Answer:
        """Like `execute_on`, but only for async connections; a blocking one is rejected before anything is sent."""
        check_color(connection, verb, self.source, awaits=True)
        return await cast(Awaitable[Answer], self.execute_on(connection))

    def execute_blocking(self, connection: object, verb: str) -> Answer:
        """Like `execute_on`, but only for blocking connections; an async one is rejected before anything is sent."""
        check_color(connection, verb, self.source, awaits=False)
        return cast(Answer, self.execute_on(connection))

    async def _awaited(self, rows: Awaitable[Rows]) -> Answer:
        try:
            return self.read(await rows)
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        _raise_if_stale(error)
        if any(_sqlstate(each) in _MISSING_SCHEMA for each in _causes(error)):
            error.add_note(_MIGRATE)
        if self.conflict and any(_sqlstate(each) == _SERIALIZATION_FAILURE for each in _causes(error)):
            error.add_note(self.conflict)


def interval_text(duration: timedelta) -> str:
    """An interval in hours: PostgreSQL counts days in the session's time zone, where a day may have 23 hours."""
    hours, rest = divmod(duration, timedelta(hours=1))
    return f"{hours} hours {rest.total_seconds():.6f} seconds"


_TYPED = re.compile(r"\$(\d+)::(uuid|interval|timestamptz)\b(\[\])?")
_SPELLINGS: Mapping[str, Callable[[Any], str]] = {
    "uuid": str,
    "interval": interval_text,
    "timestamptz": datetime.isoformat,
}


@cache
def _in_text(sql: str) -> tuple[str, Mapping[int, Callable[[Any], str]]]:
    spellings = {int(number): _SPELLINGS[type] for number, type, _ in _TYPED.findall(sql)}
    return _TYPED.sub(r"$\1::text\3::\2\3", sql), spellings


def _raise_if_stale(error: Exception) -> None:
    """Check the causes too: libraries on top of a driver raise their own errors and chain the driver's."""
    stale = [each for each in _causes(error) if _sqlstate(each) == STALE_LEASE_SQLSTATE]
    if stale:
        line = str(stale[-1]).splitlines()[0]
        raise StaleLease(f"{line} (or the connection is not to the database that the job lives in)") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _sqlstate(error: BaseException) -> object:
    # psycopg2 calls it pgcode.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
