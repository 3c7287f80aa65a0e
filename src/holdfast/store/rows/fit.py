"""Whether a mapping and its table fit together: columns, types, values of the state, and SQL that runs."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from holdfast.domain.errors import InvalidInput, SchemaMismatch
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows.access import Choose, RowRefused, RowTable
from holdfast.store.rows.columns import INTEGERS, TEXTS, TIMES, Columns, read_columns, read_sort, table_name
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.migration import addable, emptied
from holdfast.store.rows.quoting import identifier
from holdfast.store.rows.rare_sql import cancel, retry
from holdfast.store.rows.sql import RowSql

_JSON = frozenset({"json", "jsonb", "text"})
_TYPES: dict[str, frozenset[str]] = {
    "key": INTEGERS | TEXTS | {"uuid"},
    "claim": frozenset({"uuid"}),
    "fence": frozenset({"bigint"}),
    "locked_by": TEXTS | {"uuid"},
    "attempt": INTEGERS,
    "losses": INTEGERS,
    "suspicion": INTEGERS,
    "crash_limit": INTEGERS,
    "priority": INTEGERS,
    "max_attempts": INTEGERS,
    "cancel_requested": frozenset({"boolean"}),
    "payload": _JSON,
    "headers": _JSON,
    "result": _JSON,
    "error": _JSON,
    "error_code": TEXTS,
    "error_message": TEXTS,
    **dict.fromkeys(("locked_until", "locked_at", "started_at", "completed_at", "updated_at", "created_at"), TIMES),
}
_ANY_TYPE = ("kind_column", "tenant", "correlation_id")
_MIGRATION = "run what `holdfast rows migration` prints"
_CERTAINLY_OURS = ("claim", "fence", "locked_until")
_MOST_NAMED = 8
_HOLDER_CHARACTERS = 36
_LENGTH = re.compile(r"^character(?: varying)?\((\d+)\)")
# Only constraints on the one column can be tried: the other columns of a constraint are unknown before a row is
# written. to_jsonb, because before PostgreSQL 18 all constraints are enforced and no column says so.
_CHECKS = """
SELECT conname AS name, pg_get_expr(conbin, conrelid) AS condition
FROM pg_constraint
JOIN pg_attribute ON attrelid = conrelid AND attname = $2 AND conkey = ARRAY[attnum]
WHERE conrelid = to_regclass($1) AND contype = 'c'
  AND coalesce((to_jsonb(pg_constraint) ->> 'conenforced')::boolean, true)
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class RowFinding:
    """One thing that is missing or wrong, and what to do about it."""

    rows: str
    line: str
    next_step: str

    def as_dict(self) -> dict[str, str]:
        return {"rows": self.rows, "line": self.line, "next_step": self.next_step}


Said = tuple[str, str]


async def ensure_fits(store: PostgresStore, mapping: Rows) -> None:
    """Raise a one-line SchemaMismatch unless the worker can use the table. A missing index makes it slow, not unfit."""
    if findings := await misfits(store, mapping):
        first, *more = findings
        others = f" (and {len(more)} more: run `holdfast rows check`)" if more else ""
        raise SchemaMismatch(f"rows {mapping.name!r}: {first.line} → {first.next_step}{others}")


def ensure_addable(mapping: Rows, columns: Columns) -> None:
    """Raise SchemaMismatch if the table lacks something only the application can add, so no migration would help."""
    if not columns:
        raise SchemaMismatch(
            f"rows {mapping.name!r}: {_no_table(mapping)}; create it, or correct `table` in the mapping"
        )
    for role, name, types in _mapped(mapping):
        if name not in columns and name not in addable(mapping):
            step = _step_for_missing(mapping, role, name, types, columns)
            raise SchemaMismatch(f"rows {mapping.name!r}: column {name!r} ({role}) is missing → {step}")


def _no_table(mapping: Rows) -> str:
    return f"there is no table {'.'.join(mapping.place)!r}"


async def misfits(store: PostgresStore, mapping: Rows) -> list[RowFinding]:
    """Return findings about columns; if there are none, about values; if there are none either, about SQL."""
    async with store.acquired() as connection:
        columns = await read_columns(connection, mapping)
        sort = await read_sort(connection, mapping)
    if sort is not None:
        line = f"{'.'.join(mapping.place)!r} is {sort}, which is not supported"
        return [RowFinding(mapping.name, line, "name an ordinary table in the mapping")]
    if not columns:
        return [RowFinding(mapping.name, _no_table(mapping), "create it, or correct `table` in the mapping")]
    table = RowTable(store, mapping)
    said = list(_column_findings(mapping, columns))
    said = said or [each async for each in _value_findings(table, columns)]
    said = said or [each async for each in _statement_findings(table)]
    return [RowFinding(mapping.name, *each) for each in said]


def _column_findings(mapping: Rows, columns: Columns) -> Iterator[Said]:
    for role, name, types in _mapped(mapping):
        if name not in columns:
            yield f"column {name!r} ({role}) is missing", _step_for_missing(mapping, role, name, types, columns)
        elif types and columns[name].type not in types:
            wanted = ", ".join(sorted(types))
            yield f"column {name!r} ({role}) is {columns[name].type}; it must be one of {wanted}", "change its type"
    if mapping.key in columns and not columns[mapping.key].is_unique:
        line = f"column {mapping.key!r} (key) is not unique by itself"
        yield line, "name a column with a unique index on that column alone"
    for name in emptied(mapping):
        if name in columns and columns[name].not_null:
            yield f"column {name!r} must allow null", _MIGRATION
    holder = columns.get(mapping.locked_by)
    length = None if holder is None else _LENGTH.match(holder.whole_type)
    if length is not None and int(length[1]) < _HOLDER_CHARACTERS:
        line = f"column {mapping.locked_by!r} (locked_by) has room for {length[1]} characters"
        yield line, f"give it {_HOLDER_CHARACTERS}, the length of a worker's name"


def _step_for_missing(mapping: Rows, role: str, name: str, types: frozenset[str], columns: Columns) -> str:
    """Suggest a correction first: if a counter's name was misspelled, adding a second counter would not help."""
    if role in _CERTAINLY_OURS:
        return _MIGRATION
    mapped = {mapped for _, mapped, _ in _mapped(mapping)}
    others = [other for other in columns if other not in mapped and (not types or columns[other].type in types)]
    shown = ", ".join(others[:_MOST_NAMED]) + (", …" if len(others) > _MOST_NAMED else "")
    corrected = f"correct `{role}` in the mapping" + (f" (the table has: {shown})" if others else "")
    return f"{corrected}, or {_MIGRATION if name in addable(mapping) else 'add the column in a migration of your own'}"


def _mapped(mapping: Rows) -> Iterator[tuple[str, str, frozenset[str]]]:
    for role in (*_TYPES, *_ANY_TYPE):
        name = getattr(mapping, role)
        if name is not None:
            yield role, name, _TYPES.get(role, frozenset())
    for name in mapping.run_at_columns:
        yield "run_at", name, TIMES
    for name in mapping.order:
        yield "order", name.removeprefix("-"), frozenset()
    for name in mapping.payload_columns:
        yield "payload_columns", name, frozenset()
    if mapping.states is not None:
        yield "states", mapping.states.column, frozenset()


async def _value_findings(table: RowTable, columns: Columns) -> AsyncIterator[Said]:
    """Try each state value that the mapping names on the column's type and on its CHECK constraints."""
    states = table.mapping.states
    if states is None:
        return
    kind = columns[states.column].whole_type
    checks = await table.fetch(lambda _: _CHECKS, table_name(table.mapping), states.column)
    for value in states.values:
        said = await _refusal(table, states.column, kind, value, [tuple(check) for check in checks])
        if said is not None:
            yield said, f"correct `states` in the mapping, or allow {value!r} in column {states.column!r}"


async def _refusal(
    table: RowTable, column: str, kind: str, value: str, checks: Sequence[tuple[str, str]]
) -> str | None:
    """Return why the column cannot hold the value, or None."""
    cast = f"$1::text::{kind}"
    try:
        (kept,) = await table.fetch(lambda _: f"SELECT {cast}::text AS value", value)
        if kept["value"] != value:
            return f"column {column!r} (states) is {kind} and would store {kept['value']!r} instead of {value!r}"
        for name, condition in checks:
            (tried,) = await table.fetch(
                lambda _, condition=condition: (  # type: ignore[misc]
                    f"SELECT ({condition}) IS FALSE AS refused FROM (SELECT {cast} AS {identifier(column)}) AS item"
                ),
                value,
            )
            if tried["refused"]:
                return f"constraint {name!r} does not allow {value!r} in column {column!r} (states)"
    except RowRefused as error:
        return f"column {column!r} (states) cannot be {value!r}: {_bare(error)}"
    return None


async def _statement_findings(table: RowTable) -> AsyncIterator[Said]:
    """Report what PostgreSQL says about the mapping's own SQL and the names in the statements."""
    second, none = timedelta(seconds=1), list[object]()
    leases = ([None], [None])
    statements: list[tuple[Choose, tuple[object, ...]]] = [
        (lambda sql: sql.claim(suspects=False), (none, none, none, 1, None, "", None, None)),
        (lambda sql: sql.payloads, (none,)),
        (lambda sql: sql.look(), (none, None, None)),
        (lambda sql: sql.renew, (*leases, [second])),
        (lambda sql: sql.finish, (*leases, *([None] for _ in range(10)))),
        (lambda sql: sql.rescue, (1, none, None, None, None)),
        (cancel, (none,)),
        (retry, (none,)),
    ]
    for choose, arguments in statements:
        try:
            await table.fetch(lambda sql, choose=choose: _explain(choose, sql), *arguments)  # type: ignore[misc]
        except InvalidInput as error:
            yield _bare(error), "correct the mapping"
            return


def _explain(choose: Choose, sql: RowSql) -> str:
    return f"EXPLAIN {choose(sql)}"


def _bare(error: InvalidInput) -> str:
    said = str(error).partition(": ")[2].partition("; run `holdfast rows check`")[0]
    return said.removeprefix("the table refused the change: ")
