"""Whole tables as the end state, put back to what they were before each run of the check."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.json_text import decode
from holdfast.store.postgres.driver import open_connection

if TYPE_CHECKING:
    import asyncpg

_SEQUENCES = """
SELECT sequence.oid AS id FROM pg_class AS sequence
JOIN pg_depend ON pg_depend.objid = sequence.oid AND pg_depend.deptype IN ('a', 'i')
WHERE sequence.relkind = 'S' AND pg_depend.refobjid = ANY ($1::regclass[]::oid[])
"""


class Tables:
    """`observe=Tables(url, "invoice", "payment")`: the tables' contents, which the check restores before each run.

    What the tables hold when the check begins is what every run finds, and what they hold again when it ends. Name
    tables before those that refer to them, and all of those.
    """

    def __init__(self, url: str, *names: str) -> None:
        if not names:
            raise InvalidInput("Tables: name at least one table after the address of the database")
        self._url = url
        self._names = names
        self._kept: list[tuple[str, bytes]] | None = None

    async def __call__(self) -> dict[str, list[object]]:
        async with self._connected() as connection:
            return {name: [decode(row["row"]) for row in await connection.fetch(_select(name))] for name in self._names}

    async def keep(self) -> None:
        """Remember what the tables hold now."""
        async with self._connected() as connection:
            kept = []
            for name in self._names:
                content = io.BytesIO()
                schema, table = _parts(name)
                await connection.copy_from_table(table, schema_name=schema, output=content, format="binary")
                kept.append((name, content.getvalue()))
            self._kept = kept

    async def restore(self) -> None:
        """Make the tables hold what was kept, and nothing else; sequences go on counting."""
        import asyncpg

        async with self._connected() as connection, connection.transaction():
            try:
                await connection.execute(f"TRUNCATE {', '.join(map(_quoted, self._names))}")
            except asyncpg.FeatureNotSupportedError as error:
                raise InvalidInput(f"Tables: name the referring tables as well ({error.detail})") from error
            for name, content in self._kept or ():
                schema, table = _parts(name)
                source = io.BytesIO(content)
                await connection.copy_to_table(table, schema_name=schema, source=source, format="binary")

    async def skip_numbers(self) -> None:
        """A crash leaves a gap in a sequence. Skipping a number between two clean runs shows what depends on it."""
        async with self._connected() as connection:
            for sequence in await connection.fetch(_SEQUENCES, [_quoted(name) for name in self._names]):
                await connection.execute("SELECT nextval($1::oid::regclass)", sequence["id"])

    @asynccontextmanager
    async def _connected(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        connection = await open_connection(self._url)
        try:
            yield connection
        finally:
            await connection.close()


def _parts(name: str) -> tuple[str | None, str]:
    schema, _, table = name.rpartition(".")
    return schema or None, table


def _quoted(name: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in _parts(name) if part is not None)


def _select(name: str) -> str:
    return f"SELECT to_jsonb(held)::text AS row FROM {_quoted(name)} AS held"  # noqa: S608 - identifiers, quoted
