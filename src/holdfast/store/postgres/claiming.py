"""Claiming: statements over lanes. `store/claims.py` decides where they start."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.domain.job import Lease, LeasedJob
from holdfast.store.claims import Claims, Taken
from holdfast.store.contract import ClaimRequest, Shard
from holdfast.store.floors import MARGIN, First, Lane, Position, Starts
from holdfast.store.postgres.connected import ConnectedStore

if TYPE_CHECKING:
    import asyncpg

_FLOOR = 13


class Claiming(Claims, ConnectedStore):
    _asked_floors_at = 0.0
    _last: tuple[ClaimRequest, Starts, tuple[Any, ...]] | None = None

    async def open(self) -> None:
        await super().open()
        self.forget_floors()

    async def claim_from(self, request: ClaimRequest, starts: Starts, claim: UUID) -> Taken:
        now = time.monotonic()
        # Decoding a timestamp for each job makes a drain a tenth slower, and floors stay behind by a margin anyway.
        wants_floors = now - self._asked_floors_at >= MARGIN.total_seconds()
        rows = await self.fetch("claim", claim, MARGIN if wants_floors else None, *self._arguments(request, starts))
        if not wants_floors or not rows:
            return Taken(_leased(rows, claim), {})
        self._asked_floors_at = now
        last = {Lane(row[3], request.suspects, row[4], row[2]): Position(row[_FLOOR], row[0]) for row in rows}
        return Taken(_leased(rows, claim), last)

    def _arguments(self, request: ClaimRequest, starts: Starts) -> tuple[Any, ...]:
        """The same tuple for the same question, which an idle worker asks again and again."""
        if self._last is None or self._last[0] is not request or self._last[1] is not starts:
            self._last = request, starts, _arguments(request, starts)
        return self._last[2]

    async def firsts(self, queues: Sequence[str], shard: Shard | None) -> tuple[list[First], datetime]:
        rows = await self.fetch("look", queues, *_shard(shard))
        new = tuple.__new__
        firsts = [new(First, (new(Lane, row[:4]), new(Position, row[4:]))) for row in rows[:-1]]
        moment: datetime = rows[-1][4]
        return firsts, moment


def _arguments(request: ClaimRequest, starts: Starts) -> tuple[Any, ...]:
    kinds = [lane.kind for lane in starts.lanes]
    limits = [min(request.kinds[kind].limit, request.limit) for kind in kinds]
    lanes_of = Counter(kinds)
    # One lane of a kind cannot exceed the kind's limit by itself.
    is_limited = any(limit < request.limit and lanes_of[kind] > 1 for kind, limit in zip(kinds, limits, strict=True))
    return (
        request.limit,
        request.suspects,
        is_limited,
        *_shard(request.shard),
        *starts.columns,
        [min(starts.share, limit) for limit in limits],
        limits,
        [request.kinds[kind].lease for kind in kinds],
    )


def _shard(shard: Shard | None) -> tuple[int | None, int | None]:
    return (None, None) if shard is None else (shard.index, shard.count)


def _leased(rows: "Iterable[asyncpg.Record]", claim: UUID) -> list[LeasedJob]:
    """By position, and without the Python code of a named tuple's own constructor, because of the numbers.

    schema/functions/claim.sql has the order of the columns.
    """
    new = tuple.__new__
    return [new(LeasedJob, (new(Lease, (row[0], row[1], claim)), *row[2:13], None)) for row in rows]
