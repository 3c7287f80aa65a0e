"""Rescues rows with expired leases."""

from datetime import datetime, timedelta

from holdfast.domain.job import JobState
from holdfast.logs.records import get_logger
from holdfast.store.contract import Ended, Rescued
from holdfast.store.rescue import Rescue
from holdfast.store.rows.access import RowLocked, RowTable

log = get_logger("holdfast.rows")


class RowRescue(Rescue[str]):
    def __init__(self, table: RowTable) -> None:
        super().__init__()
        self._table = table

    async def rescue(
        self, limit: int, left_alone: list[str], only: list[str] | None, ended: Ended | None
    ) -> list[Rescued]:
        try:
            rows = await self._table.change(lambda sql: sql.rescue, limit, left_alone, only, *_parameters(ended))
        except RowLocked:
            # As with a row that is itself locked, it is not the row's fault.
            if only is None or len(only) > 1:
                raise
            return []
        return [Rescued(row["id"], JobState(row["state"])) for row in rows]

    async def expired(self, limit: int, left_alone: list[str], ended: Ended | None) -> list[str]:
        rows = await self._table.fetch(lambda sql: sql.expired_keys, limit, left_alone, None, *_parameters(ended))
        return [row["key"] for row in rows]

    def tell(self, key: str, error: Exception) -> None:
        log.error(
            "row cannot be rescued and stays locked; correct the mapping or the table",
            row=self._table.row(key),
            error=str(error),
        )


def _parameters(ended: Ended | None) -> tuple[datetime | None, timedelta | None]:
    return (None, None) if ended is None else ended
