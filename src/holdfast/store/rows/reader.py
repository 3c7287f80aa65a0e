"""Reads an application's rows as jobs. Counting them, or listing by anything but the key, reads the whole table.

The backlog reads only ready rows, by the index for the claim.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job, JobError, JobState, to_id
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.kinds import Kind
from holdfast.domain.limits import at_least
from holdfast.store.contract import MOST_DUE, Backlog, JobFilter
from holdfast.store.rows.access import RowRefused, RowTable
from holdfast.store.rows.item import readable
from holdfast.store.rows.sql import RowSql

if TYPE_CHECKING:
    import asyncpg


class RowReader:
    def __init__(self, table: RowTable) -> None:
        self._table = table

    async def get(self, id: UUID | str) -> Job | None:
        rows = await self._shown(show_one, to_id(id), by_index=True)
        return self._job(rows[0]) if rows else None

    async def find(self, kind: Kind | str, key: str, tenant: str = "") -> Job | None:  # noqa: ARG002 - the protocol's
        raise InvalidInput(
            f"rows {self._table.mapping.name!r}: rows have no keys; select the row, and get the job by its id"
        )

    async def list(self, filter: JobFilter, limit: int) -> "list[Job]":
        if filter.queue not in (None, self._table.mapping.queue):
            return []
        state = filter.state.value if filter.state else None
        rows = await self._shown(_list, state, filter.kind, filter.tenant, limit, by_index=False)
        return [self._job(row) for row in rows]

    async def list_ids(self, filter: JobFilter, limit: int) -> Sequence[UUID]:
        return [job.id for job in await self.list(filter, limit)]

    async def _shown(
        self, show: Callable[[RowSql, str], str], *arguments: object, by_index: bool
    ) -> "Sequence[asyncpg.Record]":
        """Show rows. If the payload of one cannot be read, show all without payloads rather than none."""
        try:
            return await self._table.fetch(lambda sql: show(sql, sql.item.payload), *arguments, by_index=by_index)
        except RowRefused:
            return await self._table.fetch(lambda sql: show(sql, "'null'"), *arguments, by_index=by_index)

    async def count(self) -> Mapping[JobState, int]:
        counts = dict.fromkeys(JobState, 0)
        for row in await self._table.fetch(_count, by_index=False):
            counts[JobState(row["state"])] += row["jobs"]
        return counts

    async def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        at_least("limit", limit, 0)
        (row,) = await self._table.fetch(_backlog)
        return [Backlog.of(self._table.mapping.queue, row["jobs"], row["oldest"], limit)] if row["jobs"] else []

    def _job(self, row: "asyncpg.Record") -> Job:
        values = dict(row)
        code, message, whole = (values.pop(name) for name in ("error_code", "error_message", "error"))
        return Job.read(
            **{
                **values,
                "state": JobState(values["state"]),
                "queue": self._table.mapping.queue,
                "key": None,
                "holder": _uuid(values["holder"]),
                "errors": _errors(code, message, whole),
            }
        )


def _errors(code: str | None, message: str | None, whole: str | None) -> tuple[Json, ...]:
    if whole is not None:
        return (_without_mark(whole),)
    if code is None and message is None:
        return ()
    return (encode(JobError(code=code or "", message=message or "").as_dict()),)


def _without_mark(whole: str) -> Json:
    """Remove the mark of a lost lease, which only serves to absolve it."""
    if '"lost"' not in whole:
        return Json(whole)
    error = decode(Json(whole))
    return encode({name: value for name, value in error.items() if name != "lost"})


def _uuid(text: str | None) -> UUID | None:
    """Parse a worker's name. An application that locks rows itself may use other names."""
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def _shown(sql: RowSql, payload: str) -> str:
    item, mapping = sql.item, sql.item.mapping
    live, final = "shown.state = 'running'", "shown.state NOT IN ('ready', 'running')"
    started = [item.readable_time(column) for column in (mapping.started_at, mapping.locked_at) if column is not None]
    kept_start = item.readable_time(mapping.started_at) if mapping.started_at else "NULL::timestamptz"
    finished = item.readable_time(mapping.completed_at) if mapping.completed_at else "NULL::timestamptz"
    return f"""
SELECT {item.job(payload=payload)}, shown.state,
       CASE WHEN NOT ({final}) THEN {readable(item.run_at_time)} END AS run_at,
       CASE WHEN {live} THEN coalesce({", ".join([*started, "NULL::timestamptz"])})
            WHEN {final} THEN {kept_start} END AS started_at,
       CASE WHEN {final} THEN {finished} END AS finished_at,
       CASE WHEN {item.at(mapping.claim)} IS NOT NULL THEN {item.at(mapping.fence)} END AS fence,
       CASE WHEN {live} THEN {item.text(mapping.locked_by)} END AS holder,
       CASE WHEN {live} THEN {item.readable_time(mapping.locked_until)} END AS lease_until,
       {live} AND {item.cancel_requested} AS cancel_requested,
       CASE WHEN {final} THEN 0 ELSE {item.suspicion} END AS suspicion,
       CASE WHEN {final} THEN {item.text(mapping.result)} END AS result,
       {item.text(mapping.error_code)} AS error_code, {item.text(mapping.error_message)} AS error_message,
       {item.text(mapping.error)} AS error
FROM {item.table} AS item CROSS JOIN LATERAL (SELECT {item.state} AS state) AS shown
WHERE shown.state IS NOT NULL"""


def show_one(sql: RowSql, payload: str) -> str:
    """$1 id"""
    return f"{_shown(sql, payload)} AND {sql.item.has_id('$1::uuid')}"


def _list(sql: RowSql, payload: str) -> str:
    """$1 state or null, $2 kind or null, $3 tenant or null, $4 at most"""
    item = sql.item
    tenant = f"coalesce({item.text(item.mapping.tenant)}, '')"
    return f"""{_shown(sql, payload)}
  AND ($1::text IS NULL OR shown.state = $1) AND ($2::text IS NULL OR {item.kind} = $2)
  AND ($3::text IS NULL OR {tenant} = $3)
ORDER BY {item.key} DESC LIMIT $4"""


def _count(sql: RowSql) -> str:
    return f"""
SELECT {sql.item.state} AS state, count(*) AS jobs FROM {sql.item.table} AS item
WHERE {sql.item.state} IS NOT NULL GROUP BY 1"""


def _backlog(sql: RowSql) -> str:
    item = sql.item
    return f"""
WITH {sql.moment}
SELECT count(*) AS jobs, (SELECT moment.now FROM moment) - {readable(f"min({item.run_at_time})")} AS oldest
FROM {item.table} AS item
WHERE {item.ready} AND {item.run_at} <= (SELECT {item.moment("moment.now")} FROM moment)"""
