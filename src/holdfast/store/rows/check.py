"""What keeps an application's table from being a queue: columns, types and indexes, by plans of the real statements."""

import json
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast.errors import InvalidInput
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows.access import Choose, RowTable
from holdfast.store.rows.columns import INTEGERS, TEXTS, TIMES, Columns, read_columns, table_name
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.migration import addable, emptied, index_statements
from holdfast.store.rows.rare_sql import keys_of_ids
from holdfast.store.rows.sql import RowSql

_JSON = frozenset({"json", "jsonb", "text"})
_TYPES: dict[str, frozenset[str]] = {
    "key": INTEGERS | TEXTS | {"uuid"},
    "fence": frozenset({"bigint"}),
    "locked_by": TEXTS | {"uuid"},
    "attempt": INTEGERS,
    "losses": INTEGERS,
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
_PARTIAL_INDEXES = """
SELECT relname AS name FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass($1) AND indpred IS NOT NULL
"""
_INDEX_SCANS = frozenset({"Index Scan", "Index Only Scan"})
_IN_ORDER = _INDEX_SCANS | {"LockRows", "Result", "Incremental Sort", "Subquery Scan", "CTE Scan"}


@dataclass(frozen=True, slots=True)
class RowFinding:
    """One thing that is missing or wrong, and what to do about it."""

    rows: str
    line: str
    next_step: str

    def as_dict(self) -> dict[str, str]:
        return {"rows": self.rows, "line": self.line, "next_step": self.next_step}


async def check_rows(store: PostgresStore, rows: Rows) -> list[RowFinding]:
    """Empty: the worker can drain the table, and no claim reads more of it than it takes."""
    async with store.acquired() as connection:
        columns = await read_columns(connection, rows)
    if not columns:
        table = ".".join(rows.place)
        return [RowFinding(rows.name, f"there is no table {table!r}", "create it, or correct `table` in the mapping")]
    findings = [RowFinding(rows.name, *said) for said in _column_findings(rows, columns)]
    return findings or await _plan_findings(RowTable(store, rows), columns)


def _column_findings(rows: Rows, columns: Columns) -> Iterator[tuple[str, str]]:
    added = addable(rows)
    for role, name, types in _mapped(rows):
        if name not in columns:
            step = _MIGRATION if name in added else "correct the mapping, or add the column in a migration of your own"
            yield f"column {name!r} ({role}) is missing", step
        elif types and columns[name].type not in types:
            wanted = ", ".join(sorted(types))
            yield f"column {name!r} ({role}) is {columns[name].type}; it must be one of {wanted}", "change its type"
    for name in emptied(rows):
        if name in columns and columns[name].not_null:
            yield f"column {name!r} must allow null", _MIGRATION


def _mapped(rows: Rows) -> Iterator[tuple[str, str, frozenset[str]]]:
    for role in (*_TYPES, *_ANY_TYPE):
        name = getattr(rows, role)
        if name is not None:
            yield role, name, _TYPES.get(role, frozenset())
    for name in rows.run_at_columns:
        yield "run_at", name, TIMES
    for name in rows.order:
        yield "order", name.removeprefix("-"), frozenset()
    for name in rows.payload_columns:
        yield "payload_columns", name, frozenset()
    if rows.states is not None:
        yield "states", rows.states.column, frozenset()


async def _plan_findings(table: RowTable, columns: Columns) -> list[RowFinding]:
    rows = table.rows
    index = {_purpose(sql): " ".join(sql.split()) for sql in index_statements(rows, columns)}
    try:
        found = [(line, f"create one: {index[purpose]}") async for line, purpose in _unserved(table, index)]
    except InvalidInput as error:
        said = str(error).removeprefix(f"rows {rows.name!r}: ").partition("; run `holdfast rows check`")[0]
        found = [(said, "correct the mapping")]
    return [RowFinding(rows.name, *each) for each in found]


async def _unserved(table: RowTable, index: dict[str, str]) -> AsyncIterator[tuple[str, str]]:
    """What no index serves, and which of ours would."""
    rows, kinds, second = table.rows, [table.rows.kind or "kind"], timedelta(seconds=1)
    partial = {row["name"] for row in await table.fetch(lambda _: _PARTIAL_INDEXES, table_name(rows))}
    claim = await _plan(table, lambda sql: sql.claim(suspects=False), kinds, [1], [second], 1, "", None, None)
    if not _reads_in_order(claim, rows, partial):
        yield "no index serves the claim: each one would read and sort all that is ready", "claim"
    due = await _plan(table, lambda sql: sql.next_due(suspects=False), kinds, None, None)
    if not _reads_in_order(due, rows, partial):
        yield "no index tells when the next row is due", "due" if "due" in index else "claim"
    if not _reads_by(await _plan(table, lambda sql: sql.rescue, 1, [], None), rows, rows.locked_until):
        yield "no index serves the rescue: each one would read the whole table", "locks"
    if "ids" in index and not _reads_by(await _plan(table, keys_of_ids, [UUID(int=0)]), rows, "md5"):
        yield "no index finds a row by its job id, as people's verbs do", "ids"


def _purpose(sql: str) -> str:
    return sql.partition(" ON ")[0].rpartition("_")[2].rstrip('"')


async def _plan(table: RowTable, choose: Choose, *arguments: object) -> dict[str, Any]:
    def explain(sql: RowSql) -> str:
        return f"EXPLAIN (FORMAT JSON) {choose(sql)}"

    (row,) = await table.fetch(explain, *arguments)
    (explained,) = json.loads(row[0])
    plan: dict[str, Any] = explained["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _reads_in_order(plan: dict[str, Any], rows: Rows, partial: Collection[str]) -> bool:
    """Whether the LIMIT over the table is fed by an index in its order, and one without the rows that are over."""
    for node in _nodes(plan):
        below = list(_nodes(node))[1:]
        types = {inner["Node Type"] for inner in below}
        scans = [inner for inner in below if inner.get("Relation Name") == rows.place[-1]]
        if node["Node Type"] == "Limit" and "Limit" not in types and scans:
            return types <= _IN_ORDER and all(_skips_final_rows(scan, rows, partial) for scan in scans)
    return False


def _skips_final_rows(scan: dict[str, Any], rows: Rows, partial: Collection[str]) -> bool:
    """A partial index has only what is ready; a whole one must have the state among its conditions."""
    column = rows.states.column if rows.states else rows.completed_at or ""
    return scan.get("Index Name") in partial or column in scan.get("Index Cond", "")


def _reads_by(plan: dict[str, Any], rows: Rows, wanted: str) -> bool:
    scans = [node for node in _nodes(plan) if node.get("Relation Name") == rows.place[-1]]
    found = [scan.get("Index Cond", "") for scan in scans if scan["Node Type"] in _INDEX_SCANS]
    return any(wanted.replace('"', '""') in condition for condition in found)
