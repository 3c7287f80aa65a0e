"""Finds what keeps an application's table from being a good queue: misfits, missing indexes, rows left by others."""

import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows.access import Choose, RowTable
from holdfast.store.rows.columns import Columns, table_name
from holdfast.store.rows.fit import RowFinding, misfits
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.migration import index_name, index_statements
from holdfast.store.rows.quoting import identifier, literal
from holdfast.store.rows.reader import show_one
from holdfast.store.rows.sql import RowSql

if TYPE_CHECKING:
    import asyncpg

_INDEXES = """
SELECT relname AS name, indpred IS NOT NULL AS is_partial, indisvalid AS is_valid
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass($1)
"""
_INDEX_SCANS = frozenset({"Index Scan", "Index Only Scan"})
_MOST_COUNTED = 1000


async def check_rows(store: PostgresStore, mapping: Rows) -> list[RowFinding]:
    """Return no findings if the worker can drain the table and no claim reads more of it than it takes."""
    if findings := await misfits(store, mapping):
        return findings
    table = RowTable(store, mapping)
    indexes = {row["name"]: row for row in await table.fetch(lambda _: _INDEXES, table_name(mapping))}
    columns = (await table.sql()).item.columns
    statements = index_statements(mapping, columns)
    made = {_purpose(sql): " ".join(sql.split()) for sql in statements}
    partial = {name for name, index in indexes.items() if index["is_partial"]}
    unserved = [each async for each in _unserved(table, made, partial)]
    found = [(line, _step(mapping, purpose, made, indexes)) for line, purpose in unserved]
    found += _never_claimed(mapping, columns)
    found += [each async for each in _left_running(table)]
    return [RowFinding(mapping.name, *each) for each in found]


def _step(mapping: Rows, purpose: str, made: Mapping[str, str], indexes: "Mapping[str, asyncpg.Record]") -> str:
    name = index_name(mapping, purpose)
    if name not in indexes:
        return f"create one: {made[purpose]}"
    if not indexes[name]["is_valid"]:
        return f"{name} was not built completely: drop it, then create it again: {made[purpose]}"
    analyze = f"run ANALYZE {table_name(mapping)}; if that does not help, drop it and create it again: {made[purpose]}"
    return f"{name} exists, but PostgreSQL does not use it: {analyze}"


def _never_claimed(mapping: Rows, columns: Columns) -> Iterator[tuple[str, str]]:
    """Columns that may be null and must not be. A row without a key or a time raises no error, and waits forever."""
    if not columns[mapping.key].not_null:
        yield f"column {mapping.key!r} (key) may be null, and such a row is never claimed", "make it NOT NULL"
    if not any(columns[name].not_null for name in mapping.run_at_columns):
        last = mapping.run_at_columns[-1]
        step = "make it NOT NULL, or add a column that is NOT NULL after it in run_at"
        yield f"column {last!r} (run_at) may be null, and such a row is never claimed", step


async def _left_running(table: RowTable) -> AsyncIterator[tuple[str, str]]:
    """Rows that another worker left marked as running: no worker holds them, and none would ever claim them."""
    mapping, states = table.mapping, table.mapping.states
    if states is None or states.running is None:
        return
    status, until = identifier(states.column), identifier(mapping.locked_until)
    where = f"{status} = {literal(states.running)} AND {until} IS NULL"
    counted = (
        f"SELECT count(*) AS rows FROM (SELECT FROM {table_name(mapping)} WHERE {where} LIMIT {_MOST_COUNTED}) AS one"
    )
    (row,) = await table.fetch(lambda _: counted, by_index=False)
    if number := row["rows"]:
        shown = f"{_MOST_COUNTED} or more" if number == _MOST_COUNTED else str(number)
        back = f"UPDATE {table_name(mapping)} SET {status} = {literal(states.claimable[0])} WHERE {where}"
        line = f"{shown} rows are {states.running!r} without a lock, left by another worker; none would ever be claimed"
        yield line, f"stop that worker, then set them back: {back}"


async def _unserved(
    table: RowTable, index: Mapping[str, str], partial: Collection[str]
) -> AsyncIterator[tuple[str, str]]:
    """Which statements no index serves, and which of our indexes would."""
    mapping, kinds, second = table.mapping, [table.mapping.kind or "kind"], timedelta(seconds=1)
    claim = await _plan(table, lambda sql: sql.claim(suspects=False), kinds, [1], [second], 1, None, "", None, None)
    if not _reads_in_order(claim, mapping, partial):
        yield "no index serves the claim: each claim would read and sort all ready rows", "claim"
    due = await _plan(table, lambda sql: sql.look(), kinds, None, None)
    if not _reads_in_order(due, table.mapping, partial):
        yield "no index finds when the next row is due", "due" if "due" in index else "claim"
    rescue = await _plan(table, lambda sql: sql.rescue, 1, [], None, None, None)
    if not _reads_by(rescue, mapping, mapping.locked_until):
        yield "no index serves the rescue: each rescue would read the whole table", "locks"
    if "ids" in index:
        shown = await _plan(table, lambda sql: show_one(sql, "'null'"), UUID(int=0))
        if not _reads_by(shown, mapping, "md5"):
            yield "no index finds a row by its job id: each change of a row would read the whole table", "ids"


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


def _reads_in_order(plan: dict[str, Any], mapping: Rows, partial: Collection[str]) -> bool:
    """Whether an index in the claim's order, without the finished rows, feeds the LIMIT over the table."""
    for node in _nodes(plan):
        below = list(_nodes(node))[1:]
        types = {inner["Node Type"] for inner in below}
        scans = [inner for inner in below if inner.get("Relation Name") == mapping.place[-1]]
        if node["Node Type"] == "Limit" and "Limit" not in types and scans:
            by_index = all(scan["Node Type"] in _INDEX_SCANS for scan in scans)
            return by_index and "Sort" not in types and all(_skips_final_rows(scan, mapping, partial) for scan in scans)
    return False


def _skips_final_rows(scan: dict[str, Any], mapping: Rows, partial: Collection[str]) -> bool:
    """A partial index contains only ready rows. A full index must have the state among its conditions."""
    column = mapping.states.column if mapping.states else mapping.completed_at or ""
    return scan.get("Index Name") in partial or column in scan.get("Index Cond", "")


def _reads_by(plan: dict[str, Any], mapping: Rows, wanted: str) -> bool:
    scans = [node for node in _nodes(plan) if node.get("Relation Name") == mapping.place[-1]]
    found = [scan.get("Index Cond", "") for scan in scans if scan["Node Type"] in _INDEX_SCANS]
    return any(wanted.replace('"', '""') in condition for condition in found)
