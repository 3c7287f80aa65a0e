"""What an application's table needs to be a queue: the columns it may lack, and the indexes for claim and rescue.

The SQL is printed, never run: the table and its migrations belong to the application.
"""

from hashlib import md5

from holdfast.store.rows.columns import LOCAL_TIME, TEXTS, TIMES, Columns, table_name
from holdfast.store.rows.item import Item
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import identifier

# Of 63 bytes; "holdfast_" and the longest purpose need the rest.
_LONGEST_BYTES = 40
_COUNT = "integer NOT NULL DEFAULT 0"
# Columns that the application certainly has (its key, kind, payload, state) are not listed.
_ADDED = {
    "claim": "uuid",
    "fence": "bigint",
    "locked_by": "text",
    "locked_until": "time",
    "locked_at": "time",
    "started_at": "time",
    "completed_at": "time",
    "updated_at": "time",
    "attempt": _COUNT,
    "losses": _COUNT,
    "suspicion": _COUNT,
    "crash_limit": _COUNT,
    "priority": "smallint NOT NULL DEFAULT 5",
    "max_attempts": "integer",
    "headers": "jsonb",
    "result": "jsonb",
    "cancel_requested": "boolean NOT NULL DEFAULT false",
    "error": "jsonb",
    "error_code": "text",
    "error_message": "text",
}


def addable(mapping: Rows) -> dict[str, str]:
    """Return the columns that Holdfast maintains, with their types. By default, a new row is due at once."""
    added = {getattr(mapping, role): kind for role, kind in _ADDED.items() if getattr(mapping, role) is not None}
    added[mapping.run_at_columns[0]] = "time" if len(mapping.run_at_columns) > 1 else "due time"
    return added


def emptied(mapping: Rows) -> list[str]:
    """Return the columns that are set to null."""
    always = (
        mapping.claim,
        mapping.locked_by,
        mapping.locked_until,
        mapping.locked_at,
        mapping.started_at,
        mapping.completed_at,
    )
    first = mapping.run_at_columns[:1] if len(mapping.run_at_columns) > 1 else ()
    # Without states, an empty error_code means success.
    code = mapping.error_code if mapping.states is None else None
    return [column for column in (*always, mapping.result, code, *first) if column is not None]


def migration_sql(mapping: Rows, columns: Columns | None = None) -> str:
    """If the table's columns are known, add only the missing ones. Indexes are always included, with `IF NOT EXISTS`.

    The ANALYZE is there because PostgreSQL would not use the indexes without statistics for the new columns.
    """
    known = columns or {}
    statements = [
        *_column_statements(mapping, known),
        *index_statements(mapping, known),
        f"ANALYZE {table_name(mapping)}",
    ]
    return "\n".join(["-- Outside a transaction, because of CONCURRENTLY.", *(f"{each};" for each in statements)])


def _column_statements(mapping: Rows, known: Columns) -> list[str]:
    times = {column.type for column in known.values()} & TIMES
    time, now = ("timestamp", "(now() AT TIME ZONE 'UTC')") if times == {LOCAL_TIME} else ("timestamptz", "now()")
    types = {"time": time, "due time": f"{time} NOT NULL DEFAULT {now}"}
    added = [
        f"ADD COLUMN IF NOT EXISTS {identifier(name)} {types.get(kind, kind)}"
        for name, kind in addable(mapping).items()
        if name not in known
    ]
    freed = [
        f"ALTER COLUMN {identifier(name)} DROP NOT NULL"
        for name in emptied(mapping)
        if name in known and known[name].not_null
    ]
    changes = ",\n    ".join([*added, *freed])
    return [f"ALTER TABLE {table_name(mapping)}\n    {changes}"] if changes else []


def index_statements(mapping: Rows, columns: Columns) -> list[str]:
    """The indexes for the claim, the next due row (if it needs another one), suspects, locks and ids."""
    item = Item(mapping, columns, "holdfast", prefix="")
    kind = [identifier(mapping.kind_column)] if mapping.kind_column else []
    ordered = [*kind, *(f"({expression}){direction}" for expression, direction in item.order)]
    statements = [_index(mapping, "claim", ordered, item.ready)]
    if item.order[0][0] != item.run_at:
        statements.append(_index(mapping, "due", [*kind, f"({item.run_at})"], item.ready))
    if mapping.suspicion is not None:
        statements.append(_index(mapping, "suspect", ordered, f"{item.ready} AND {item.suspects(wanted=True)}"))
    until = identifier(mapping.locked_until)
    statements.append(_index(mapping, "locks", [until], f"{until} IS NOT NULL"))
    if item.key_type in TEXTS and mapping.key in columns:
        statements.append(_index(mapping, "ids", [f"({item.id})"]))
    return statements


def index_name(mapping: Rows, purpose: str) -> str:
    """Return an index's name. Mappings of one table share the index on its locks."""
    whose = mapping.place[-1] if purpose == "locks" else mapping.name
    if len(whose.encode()) > _LONGEST_BYTES:
        told_apart = md5(whose.encode(), usedforsecurity=False).hexdigest()[:8]
        whose = f"{whose.encode()[: _LONGEST_BYTES - 9].decode(errors='ignore')}_{told_apart}"
    return f"holdfast_{whose}_{purpose}"


def _index(mapping: Rows, purpose: str, columns: list[str], where: str = "") -> str:
    name = identifier(index_name(mapping, purpose))
    condition = f"\n    WHERE {where}" if where else ""
    return f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table_name(mapping)} ({', '.join(columns)}){condition}"
