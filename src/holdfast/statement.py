"""One SQL statement and its parameters as a value that any PostgreSQL driver's connection can execute.

Written with numbered parameters ($1 … $n, each used once, in order), which is what asyncpg takes; psycopg's form is
derived. The connection decides whether the result has to be awaited, so there are no sync and async twins.
"""

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, cast

from holdfast.errors import InvalidInput, StaleLease

STALE_LEASE_SQLSTATE = "HF001"

_NUMBERED = re.compile(r"\$\d+")


class _Executes(Protocol):
    def execute(self, query: str, *arguments: object) -> object: ...


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    parameters: tuple[object, ...]

    def execute_on(self, connection: object) -> Awaitable[None] | None:
        """Run on an asyncpg or psycopg connection, inside whatever transaction it has.

        With an async connection the result must be awaited; with a blocking one the work is done on return.
        """
        package = type(connection).__module__.partition(".")[0]
        executes = cast(_Executes, connection)
        match package:
            case "asyncpg":
                return _awaited(cast(Awaitable[object], executes.execute(self.sql, *self.parameters)))
            case "psycopg":
                sql = _NUMBERED.sub("%s", self.sql.replace("%", "%%"))
                try:
                    result = executes.execute(sql, self.parameters)
                except Exception as error:
                    _raise_if_stale(error)
                    raise
                return _awaited(result) if isinstance(result, Awaitable) else None
            case _:
                raise InvalidInput(
                    f"a connection of {package} is not known here; pass an asyncpg or psycopg connection, or execute "
                    f"the statement's `sql` with its `parameters` yourself"
                )


async def _awaited(result: Awaitable[object]) -> None:
    try:
        await result
    except Exception as error:
        _raise_if_stale(error)
        raise


def _raise_if_stale(error: Exception) -> None:
    if getattr(error, "sqlstate", None) == STALE_LEASE_SQLSTATE:
        raise StaleLease(str(error).splitlines()[0]) from error
