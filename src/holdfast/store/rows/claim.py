"""Claims rows and reads their payloads. A row that its table refuses to change, or whose payload cannot be read, does
not keep other rows from being claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.domain.job import JobError
from holdfast.domain.limits import CLAIM_BYTES
from holdfast.logs.records import get_logger
from holdfast.store.rows.access import AS_PLANNED, RowLocked, RowRefused, RowTable
from holdfast.store.rows.sql import RowSql

if TYPE_CHECKING:
    import asyncpg

    from holdfast.store.rows.access import Connection

log = get_logger("holdfast.rows")

_LEFT_ALONE_SECONDS = 60.0
_LOCKED_SECONDS = 1.0
_MOST_REFUSALS = 100
_PAYLOADS_AT_ONCE = 32
_LOCK_SUSPECTS = "SELECT pg_try_advisory_xact_lock(hashtextextended('holdfast.suspects ' || $1::text, 0))"


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    row: "asyncpg.Record"
    payload: str | JobError | None
    """Or the reason why it cannot be read. None: it is too large for this claim."""


class RowClaim:
    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._refused: dict[str, float] = {}
        self._most_bytes = CLAIM_BYTES

    @property
    def left_alone(self) -> list[str]:
        """Keys of rows that were refused recently."""
        if self._refused:
            now = monotonic()
            self._refused = {key: until for key, until in self._refused.items() if until > now}
        return list(self._refused)

    async def __call__(self, *arguments: object, suspects: bool, most_bytes: int) -> list[ClaimedRow]:
        """Claim with the arguments of the claim's statement. Raises RowRefused if every row is refused."""
        self._most_bytes = most_bytes
        try:
            return await self._take(arguments, self.left_alone, suspects=suspects)
        except RowRefused:
            return await self._take_past_refused(arguments, suspects=suspects)

    async def _take(
        self,
        arguments: tuple[object, ...],
        left_alone: Sequence[str],
        only: Sequence[str] | None = None,
        *,
        suspects: bool,
    ) -> list[ClaimedRow]:
        past = bool(left_alone) or only is not None
        async with self._table.changing() as (connection, sql):
            if suspects and not await self._may_take_suspects(connection, sql):
                return []
            claim = sql.claim(suspects=suspects, past=past)
            rows = await connection.fetch(claim, *arguments, *((left_alone, only) if past else ()))
            left_out = [row["key"] for row in rows if row["payload"] is None]
            if not left_out:
                return [ClaimedRow(row, row["payload"]) for row in rows]
            await connection.execute(AS_PLANNED)
            left = self._most_bytes - sum(len(row["payload"].encode()) for row in rows if row["payload"] is not None)
            payloads = await self._payloads_up_to(left, connection, sql, left_out)
            for key, payload in payloads.items():
                if isinstance(payload, JobError):
                    log.error("row fails because its payload cannot be read", row=self._table.row(key))
            return [ClaimedRow(row, payloads.get(row["key"], row["payload"])) for row in rows]

    async def _payloads_up_to(
        self, most_bytes: int, connection: "Connection", sql: RowSql, keys: Sequence[str]
    ) -> dict[str, str | JobError]:
        """Read the first of these payloads, at least one. The claim itself leaves out only large payloads."""
        at_once = _PAYLOADS_AT_ONCE if self._table.mapping.payload_query else 1
        read: dict[str, str | JobError] = {}
        for first in range(0, len(keys), at_once):
            if read and most_bytes <= 0:
                break
            some = await self._payloads(connection, sql, keys[first : first + at_once])
            most_bytes -= sum(len(payload.encode()) for payload in some.values() if isinstance(payload, str))
            read |= some
        return read

    async def _may_take_suspects(self, connection: "Connection", sql: RowSql) -> bool:
        """True if no other claim holds or takes suspects, because only one worker at a time pauses its other work."""
        is_ours = await connection.fetchval(_LOCK_SUSPECTS, self._table.mapping.name)
        # A separate statement, because it must see what the last owner of the lock did.
        return bool(is_ours) and not await connection.fetchval(sql.has_leased_suspects)

    async def _payloads(self, connection: "Connection", sql: RowSql, keys: Sequence[str]) -> dict[str, str | JobError]:
        """Read payloads. If one cannot be read, split them into halves until it is found."""
        try:
            with self._table.translated():
                async with connection.transaction():
                    rows = await connection.fetch(sql.payloads, keys)
        except RowRefused as error:
            if len(keys) == 1:
                return {keys[0]: JobError(code="PAYLOAD_UNREADABLE", type="PayloadUnreadable", message=error.reason)}
            first, second = [await self._payloads(connection, sql, half) for half in _halves(keys)]
            return first | second
        return {row["key"]: row["payload"] for row in rows}

    async def _take_past_refused(self, arguments: tuple[object, ...], *, suspects: bool) -> list[ClaimedRow]:
        """Skip rows at the front that cannot be claimed until one can."""
        refusals: list[RowRefused] = []
        while len(refusals) < _MOST_REFUSALS:
            found = await self._table.fetch(
                lambda sql: sql.claimable_keys(suspects=suspects), *arguments, self.left_alone, None
            )
            if not found:
                break
            keys = [row["key"] for row in found]
            if claimed := await self._take_each(arguments, keys, refusals, suspects=suspects):
                return claimed
        if any(not isinstance(refusal, RowLocked) for refusal in refusals):
            raise refusals[-1]
        return []

    async def _take_each(
        self, arguments: tuple[object, ...], keys: Sequence[str], refusals: list[RowRefused], *, suspects: bool
    ) -> list[ClaimedRow]:
        """Split into halves until the bad rows are found, because very few are to blame."""
        try:
            return await self._take(arguments, [], keys, suspects=suspects)
        except RowRefused as error:
            if len(keys) == 1:
                refusals.append(error)
                self._leave_alone(keys[0], error)
                return []
        claimed: list[ClaimedRow] = []
        for half in _halves(keys):
            claimed += await self._take_each(arguments, half, refusals, suspects=suspects)
        return claimed

    def _leave_alone(self, key: str, error: RowRefused) -> None:
        if isinstance(error, RowLocked):
            self._refused[key] = monotonic() + _LOCKED_SECONDS
            return
        self._refused[key] = monotonic() + _LEFT_ALONE_SECONDS
        log.error(
            "row cannot be claimed and is left alone; correct the row or the table",
            row=self._table.row(key),
            error=str(error),
        )


def _halves(keys: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    return keys[: len(keys) // 2], keys[len(keys) // 2 :]
