"""Empties a database after one test and hands it to another.

Creating a database copies hundreds of files and dropping it removes them, which takes half a second on a busy machine;
deleting its rows takes ten milliseconds. So the rows are deleted, and the files they leave are emptied, because the
next test may measure costs or read a table without an order. Any other change by a test is detected, not undone, and a
database with such a change is not reused.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

_USED = """
SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema') AND pg_relation_size(pg_class.oid) > 0
ORDER BY nspname, relname
"""
_AT_FIRST = """
UPDATE holdfast.clock SET moved = '0', frozen_at = NULL WHERE moved <> '0' OR frozen_at IS NOT NULL;
SELECT setval(seqrelid, seqstart, false) FROM pg_sequence
"""
# Every change of an object writes a row here, and a new row's xmin is above all others. The statistics show that a
# table was analyzed.
_CATALOGUES = (
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_constraint",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_proc",
    "pg_statistic",
    "pg_trigger",
    "pg_type",
)
_CHANGES = " UNION ALL ".join(
    f"SELECT '{name}', count(*), max(xmin::text::bigint) FROM pg_catalog.{name}" for name in _CATALOGUES
)
_SETTINGS = """
SELECT setrole::text, setconfig::text FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase
WHERE datname = current_database()
"""

Connection = psycopg.Connection[TupleRow]
Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Original:
    """The original state of a database: the tables that had rows, their rows, and everything that is not a row."""

    rows: dict[Table, list[TupleRow]]
    rest: list[TupleRow]

    @classmethod
    def of(cls, connection: Connection) -> "Original":
        return cls(_rows(connection, _used_tables(connection)), _rest(connection))

    def restored(self, connection: Connection) -> bool:
        """Delete the rows of tables that were originally empty; return False if anything else differs."""
        if _rest(connection) != self.rest:
            return False
        tables = [Identifier(*table) for table in _used_tables(connection) if table not in self.rows]
        deletes = [SQL("DELETE FROM {}").format(table) for table in tables]
        connection.execute(SQL("; ").join([*deletes, SQL(_AT_FIRST)]))
        if tables:
            connection.execute(SQL("VACUUM {}").format(SQL(", ").join(tables)))
        return _rows(connection, self.rows) == self.rows


def _used_tables(connection: Connection) -> list[Table]:
    return [(schema, table) for schema, table in connection.execute(_USED).fetchall()]


def _rows(connection: Connection, tables: Iterable[Table]) -> dict[Table, list[TupleRow]]:
    query = SQL("SELECT each::text FROM {} AS each ORDER BY 1")
    return {table: connection.execute(query.format(Identifier(*table))).fetchall() for table in tables}


def _rest(connection: Connection) -> list[TupleRow]:
    return [row for query in (_CHANGES, _SETTINGS) for row in connection.execute(query.encode()).fetchall()]
