"""Rescues rows whose lease ran out. One that its table refuses to change is told once and left alone for a while, so
that it keeps no other from being rescued."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.domain.job import JobState
from holdfast.log import get_logger
from holdfast.store.contract import Rescued
from holdfast.store.rows.access import RowRefused, RowTable

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.rows")

_FIRST_SECONDS = 5.0
_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    times: int
    not_before: float


class RowRescue:
    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._refused: dict[str, _Refusal] = {}

    async def __call__(self, limit: int, ended_by: datetime | None) -> list[Rescued]:
        now = monotonic()
        waiting = {key: refusal for key, refusal in self._refused.items() if refusal.not_before > now}
        try:
            rows = await self._table.fetch(lambda sql: sql.rescue, limit, list(waiting), None, ended_by)
        except RowRefused:
            expired = await self._table.fetch(lambda sql: sql.expired_keys, limit, list(waiting), None, ended_by)
            rows = await self._each([row["key"] for row in expired], ended_by)
        else:
            self._refused = waiting
        return [Rescued(row["id"], JobState(row["state"])) for row in rows]

    async def _each(self, keys: Sequence[str], ended_by: datetime | None) -> "list[asyncpg.Record]":
        """Half by half, because hardly any of them is to blame."""
        if not keys:
            return []
        try:
            rows = await self._table.fetch(lambda sql: sql.rescue, len(keys), [], keys, ended_by)
        except RowRefused as error:
            if len(keys) == 1:
                self._leave_alone(keys[0], error)
                return []
            half = len(keys) // 2
            return [*await self._each(keys[:half], ended_by), *await self._each(keys[half:], ended_by)]
        for key in keys:
            self._refused.pop(key, None)
        return rows

    def _leave_alone(self, key: str, error: RowRefused) -> None:
        before = self._refused.get(key)
        times = 1 if before is None else before.times + 1
        seconds = min(_FIRST_SECONDS * 2 ** (times - 1), _LONGEST_SECONDS)
        self._refused[key] = _Refusal(times, monotonic() + seconds)
        if before is None:
            log.error(
                "row cannot be rescued and stays locked; correct the mapping or the table",
                row=self._table.row(key),
                error=str(error),
            )
