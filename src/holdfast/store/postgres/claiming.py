"""Claims jobs with statements over lanes. `store/claims.py` decides where they start."""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.domain.job import Lease, LeasedJob
from holdfast.store.claims import Claims, Taken
from holdfast.store.contract import ClaimRequest, Fenced, Shard
from holdfast.store.floors import MARGIN, First, Lane, Position, Starts
from holdfast.store.postgres.connected import ConnectedStore

if TYPE_CHECKING:
    import asyncpg

_PAYLOAD, _FLOOR = 5, 13
_LARGEST = 1 << 30
"""PostgreSQL has no larger values."""


class Claiming(Claims, ConnectedStore):
    _asked_floors_at = 0.0
    _last: tuple[ClaimRequest, Starts, tuple[Any, ...]] | None = None

    async def open(self) -> None:
        await super().open()
        self.forget_floors()

    async def claim_from(self, request: ClaimRequest, starts: Starts, claim: UUID) -> Taken:
        now = time.monotonic()
        # Decoding a timestamp per job makes a drain a tenth slower, and floors stay behind by a margin anyway.
        wants_floors = now - self._asked_floors_at >= MARGIN.total_seconds()
        arguments = (claim, MARGIN if wants_floors else None, *self._arguments(request, starts))
        if request.suspects:
            rows = await self.fetch("claim_suspects", list(request.queues), *arguments)
        else:
            rows = await self.fetch("claim", *arguments)
        floors: dict[Lane, Position] = {}
        if wants_floors and rows:
            self._asked_floors_at = now
            floors = {Lane(row[3], request.suspects, row[4], row[2]): Position(row[_FLOOR], row[0]) for row in rows}
        jobs = _leased(rows, claim)
        large = [number for number, row in enumerate(rows) if row[_PAYLOAD] is None]
        if large:
            return await self._with_contents(jobs, large, request.most_bytes)
        return Taken(jobs, floors)

    async def _with_contents(self, jobs: list[LeasedJob], large: list[int], most_bytes: int) -> Taken:
        """Fetch as many large payloads and headers as the answer may bring, and release the remaining jobs.

        Returns no floors, because a floor would hide the released jobs.
        """
        small = set(range(len(jobs))).difference(large)
        left = most_bytes - sum(_size(jobs[number]) for number in small)
        rows = await self.fetch("contents", [jobs[number].id for number in large], left)
        for number, (payload, headers) in zip(large, rows, strict=False):
            jobs[number] = jobs[number]._replace(payload=payload, headers=headers)
        beyond = [jobs[number].lease for number in large[len(rows) :]]
        if beyond:
            await self.release(beyond)
        kept = sorted(small.union(large[: len(rows)]))
        return Taken([jobs[number] for number in kept], {}, is_cut=bool(beyond))

    @abstractmethod
    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        """Part of the store contract; implemented in leasing.py."""

    def _arguments(self, request: ClaimRequest, starts: Starts) -> tuple[Any, ...]:
        """Return the same tuple for the same question, because an idle worker asks it again and again."""
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
    # A kind with a single lane cannot exceed its limit.
    is_limited = any(limit < request.limit and lanes_of[kind] > 1 for kind, limit in zip(kinds, limits, strict=True))
    return (
        request.limit,
        max(1, min(request.most_bytes // request.limit, _LARGEST)),
        request.suspects,
        is_limited,
        *_shard(request.shard),
        *starts.columns,
        [min(starts.share, limit) for limit in limits],
        limits,
        [request.kinds[kind].lease for kind in kinds],
    )


def _size(job: LeasedJob) -> int:
    return len(job.payload.encode()) + (0 if job.headers is None else len(job.headers.encode()))


def _shard(shard: Shard | None) -> tuple[int | None, int | None]:
    return (None, None) if shard is None else (shard.index, shard.count)


def _leased(rows: "Iterable[asyncpg.Record]", claim: UUID) -> list[LeasedJob]:
    """Build the jobs by column position and without the named tuple's own constructor, because there are so many.

    schema/functions/claim.sql defines the order of the columns.
    """
    new = tuple.__new__
    return [new(LeasedJob, (new(Lease, (row[0], row[1], claim)), *row[2:13], None)) for row in rows]
