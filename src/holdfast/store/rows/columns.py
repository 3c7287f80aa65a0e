"""The table as PostgreSQL has it: its columns and their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import identifier

if TYPE_CHECKING:
    import asyncpg

INTEGERS = frozenset({"bigint", "integer", "smallint"})
LOCAL_TIME = "timestamp without time zone"
TIMES = frozenset({LOCAL_TIME, "timestamp with time zone"})
TEXTS = frozenset({"text", "character varying", "bpchar"})

_COLUMNS = """
SELECT attname AS name, CASE atttypid WHEN 'bpchar'::regtype THEN 'bpchar' ELSE format_type(atttypid, NULL) END AS type,
       format_type(atttypid, atttypmod) AS whole_type, attnotnull AS not_null,
       EXISTS (SELECT FROM pg_index
               WHERE indrelid = attrelid AND indisunique AND indisvalid AND indpred IS NULL AND indnkeyatts = 1
                 AND indkey[0] = attnum) AS is_unique,
       EXISTS (SELECT FROM pg_type WHERE pg_type.oid = atttypid AND typtype = 'e') AS is_enum
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


_SORT = """
SELECT CASE relkind WHEN 'p' THEN 'a partitioned table' WHEN 'f' THEN 'a foreign table' ELSE 'a view' END
FROM pg_class WHERE oid = to_regclass($1) AND relkind <> 'r'
"""


@dataclass(frozen=True, slots=True)
class Column:
    """`type` is the bare type. `whole_type` includes the length or precision, to which a cast truncates longer values.

    The bare type of a `character(n)` is `bpchar`, because `character` alone means one character.
    """

    type: str
    whole_type: str
    not_null: bool = False
    is_unique: bool = False
    """By itself and in every row: one column of a longer key identifies nothing."""
    is_enum: bool = False


Columns = Mapping[str, Column]


def table_name(mapping: Rows) -> str:
    return ".".join(map(identifier, mapping.place))


async def read_sort(connection: "asyncpg.Connection[asyncpg.Record]", mapping: Rows) -> str | None:
    """Return what exists in place of an ordinary table, or None if it is one or there is nothing."""
    sort: str | None = await connection.fetchval(_SORT, table_name(mapping))
    return sort


async def read_columns(connection: "asyncpg.Connection[asyncpg.Record]", mapping: Rows) -> Columns:
    """Return no columns if the table does not exist."""
    found = await connection.fetch(_COLUMNS, table_name(mapping))
    return {row["name"]: Column(*tuple(row)[1:]) for row in found}
