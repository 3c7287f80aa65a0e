"""Observes whole tables, and restores their contents before each run of the check."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.domain.errors import InvalidInput
from holdfast.domain.json_text import decode
from holdfast.store.postgres.driver import open_connection

if TYPE_CHECKING:
    import asyncpg

_SEQUENCES = """
SELECT sequence.oid AS id FROM pg_class AS sequence
JOIN pg_depend ON pg_depend.objid = sequence.oid AND pg_depend.deptype IN ('a', 'i')
WHERE sequence.relkind = 'S' AND pg_depend.refobjid = ANY ($1::regclass[]::oid[])
"""
# Sessions that lock these tables, with the last statement of each.
_HOLDERS = """
SELECT DISTINCT held.relation::regclass::text AS name, held.pid,
       concat(activity.state, ' after ', left(regexp_replace(activity.query, '[[:space:]]+', ' ', 'g'), 100)) AS doing
FROM pg_locks AS held JOIN pg_stat_activity AS activity ON activity.pid = held.pid
WHERE held.granted AND held.pid <> pg_backend_pid() AND held.relation = ANY ($1::regclass[]::oid[])
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LOCK_MILLISECONDS = 5000


class Tables:
    """`observe=Tables(url, "invoice", "payment")` observes the tables' contents and restores them before each run.

    Every run starts with the contents that the tables have when the check begins, and the check restores them at its
    end. In between, it truncates the tables many times, so use a test database. Name tables before the tables that
    refer to them, and name all of the latter.
    """

    def __init__(self, url: str, *names: str) -> None:
        if not names or not all(isinstance(name, str) and name for name in (url, *names)):
            raise InvalidInput('Tables: name a database and its tables, as in Tables(url, "invoice", "payment")')
        self._url = url
        self._names = names
        self._kept: list[tuple[str, bytes]] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    async def __call__(self) -> dict[str, list[object]]:
        async with self._connected() as connection:
            return {name: [decode(row["row"]) for row in await connection.fetch(_select(name))] for name in self._names}

    async def keep(self) -> None:
        """Save the tables' current contents."""
        async with self._connected() as connection:
            kept = []
            for name in self._names:
                content = io.BytesIO()
                schema, table = _parts(name)
                await connection.copy_from_table(table, schema_name=schema, output=content, format="binary")
                kept.append((name, content.getvalue()))
            self._kept = kept

    async def restore(self) -> None:
        """Restore exactly the saved contents. Sequences are not reset."""
        import asyncpg

        if self._kept is None:
            return
        async with self._connected() as connection, connection.transaction():
            try:
                await connection.execute(f"TRUNCATE {', '.join(map(_quoted, self._names))}")
            except asyncpg.FeatureNotSupportedError as error:
                raise InvalidInput(f"Tables: name the referring tables as well ({error.detail})") from error
            for name, content in self._kept:
                schema, table = _parts(name)
                source = io.BytesIO(content)
                await connection.copy_to_table(table, schema_name=schema, source=source, format="binary")

    async def skip_numbers(self) -> None:
        """Skip a number of each sequence. A crash leaves such gaps, and a second clean run then shows what depends on
        them."""
        async with self._connected() as connection:
            for sequence in await connection.fetch(_SEQUENCES, [_quoted(name) for name in self._names]):
                await connection.execute("SELECT nextval($1::oid::regclass)", sequence["id"])

    @asynccontextmanager
    async def _connected(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        import asyncpg

        connection = await open_connection(self._url)
        try:
            await connection.execute(f"SET lock_timeout = {_LOCK_MILLISECONDS}")
            yield connection
        except asyncpg.LockNotAvailableError as error:
            raise InvalidInput(f"Tables: {await self._holders(connection)}") from error
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
            raise InvalidInput(f"Tables: {error} in the database of this address") from error
        finally:
            await connection.close()

    async def _holders(self, connection: "asyncpg.Connection[asyncpg.Record]") -> str:
        rows = await connection.fetch(_HOLDERS, [_quoted(name) for name in self._names])
        held = "; ".join(f"{row['name']} by process {row['pid']}, {row['doing']}" for row in rows) or "no longer held"
        return (
            f"a transaction that does not end keeps them from being restored (held: {held}). End it, or close its "
            f"connection, in the handler, in setup= or before the check"
        )


def _parts(name: str) -> tuple[str | None, str]:
    schema, _, table = name.rpartition(".")
    return schema or None, table


def _quoted(name: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in _parts(name) if part is not None)


def _select(name: str) -> str:
    return f"SELECT to_jsonb(held)::text AS row FROM {_quoted(name)} AS held"  # noqa: S608 - identifiers, quoted
