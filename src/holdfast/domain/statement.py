"""One SQL statement, its parameters and the meaning of its rows: a value that any library's connection can execute.

Written with numbered parameters ($1 … $n), as PostgreSQL takes them; connections.py has the other forms. The connection
decides whether the answer has to be awaited, so there are no sync and async twins.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, Self, TypeVar, overload

from holdfast.domain.connections import AwaitedConnection, Parameters, Rows, rows_of
from holdfast.domain.errors import StaleLease

STALE_LEASE_SQLSTATE = "HF001"

Answer = TypeVar("Answer")


def nothing(_: Rows) -> None:
    """For a statement whose rows say nothing."""


@dataclass(frozen=True, slots=True)
class Statement(Generic[Answer]):
    """Execute `sql` with `parameters` in any way you like, and `read` tells what the rows mean.

    There are always rows, if only empty ones: a SELECT, or a change with RETURNING. `source` is the call that gives
    such a statement to whoever has to execute it by hand.
    """

    sql: str
    parameters: Parameters
    read: Callable[[Rows], Answer] = field(compare=False)
    source: str = field(default="", compare=False)

    @classmethod
    def in_text(cls, sql: str, parameters: Parameters, read: Callable[[Rows], Answer], source: str = "") -> Self:
        """With ids, durations and times as text, for a connection that may have been taught other types for them.

        `sql` says the type of each: `$1::uuid`, or `$1::uuid[]` for a list.
        """
        in_text, spellings = _in_text(sql)
        given = list(parameters)
        for number, spell in spellings.items():
            value = given[number - 1]
            if isinstance(value, list):
                given[number - 1] = [None if each is None else spell(each) for each in value]
            elif value is not None:
                given[number - 1] = spell(value)
        return cls(in_text, tuple(given), read, source)

    @overload
    def execute_on(self, connection: AwaitedConnection) -> Awaitable[Answer]: ...

    @overload
    def execute_on(self, connection: object) -> Answer | Awaitable[Answer]: ...

    def execute_on(self, connection: object) -> Answer | Awaitable[Answer]:
        """Run on a connection, session or cursor of a library that connections.py knows, inside its transaction.

        With an async one the result must be awaited; with a blocking one it is the answer.
        """
        try:
            rows = rows_of(connection, self.sql, self.parameters, self.source)
        except Exception as error:
            _raise_if_stale(error)
            raise
        return self._awaited(rows) if isinstance(rows, Awaitable) else self.read(rows)

    async def _awaited(self, rows: Awaitable[Rows]) -> Answer:
        try:
            return self.read(await rows)
        except Exception as error:
            _raise_if_stale(error)
            raise


def _interval(duration: timedelta) -> str:
    """In hours: PostgreSQL counts days by the session's time zone, where one may have 23."""
    hours, rest = divmod(duration, timedelta(hours=1))
    return f"{hours} hours {rest.total_seconds():.6f} seconds"


_TYPED = re.compile(r"\$(\d+)::(uuid|interval|timestamptz)\b(\[\])?")
_SPELLINGS: Mapping[str, Callable[[Any], str]] = {
    "uuid": str,
    "interval": _interval,
    "timestamptz": datetime.isoformat,
}


@cache
def _in_text(sql: str) -> tuple[str, Mapping[int, Callable[[Any], str]]]:
    spellings = {int(number): _SPELLINGS[type] for number, type, _ in _TYPED.findall(sql)}
    return _TYPED.sub(r"$\1::text\3::\2\3", sql), spellings


def _raise_if_stale(error: Exception) -> None:
    """The libraries above a driver raise errors of their own, with the driver's as their cause."""
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
    # The second is psycopg2's name for it.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
