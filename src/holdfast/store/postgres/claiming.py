"""The verbs that read the queue: which lanes a claim asks for, and what is learned from its answer."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.errors import StoreUnavailable
from holdfast.job import Lease, LeasedJob
from holdfast.store.contract import ClaimRequest, KindClaim, Shard
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes
from holdfast.store.postgres.sql_files import Fetch

if TYPE_CHECKING:
    import asyncpg


class Claiming:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lanes = Lanes()
        self._last_calls: dict[bool, tuple[tuple[ClaimRequest, Ask], tuple[Any, ...]]] = {}

    def forget(self) -> None:
        """Jobs came back to where they stood: the next claim looks at everything."""
        self._lanes.forget()

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        if request.limit <= 0 or not request.kinds or not request.queues:
            return []
        if request.suspects:
            ask = self._lanes.all_lanes(request)
            return _leased(await self._run_ask(request, ask), request.holder)
        if request.is_glance:
            glance = self._lanes.glance(request)
            return [] if glance is None else await self._ask(request, glance)
        ask = self._lanes.first_ask(request, time.monotonic())
        jobs = await self._ask(request, ask)
        if len(jobs) >= request.limit or (jobs and not ask.has_shares):
            return jobs
        rest = _still_wanted(request, jobs)
        claimed = [Lane(job.queue, job.priority, job.kind) for job in jobs]
        next_ask = self._lanes.next_ask(rest, ask, claimed, time.monotonic())
        if next_ask is not None:
            try:
                jobs += await self._ask(rest, next_ask)
            except StoreUnavailable:
                # What the first ask leased is ours to run; with nothing to show for it, the outage is the caller's.
                if not jobs:
                    raise
        return jobs

    async def _ask(self, request: ClaimRequest, ask: Ask) -> list[LeasedJob]:
        started, generation = time.monotonic(), self._lanes.generation
        rows = await self._run_ask(request, ask)
        if rows and not ask.teaches:
            return _leased(rows, request.holder)
        last_of_lane = {row[2:5]: row for row in rows}
        last = {Lane(row[3], row[4], row[2]): Floor(row[13], row[0]) for row in last_of_lane.values()}
        self._lanes.learn(ask, last, len(rows), started, time.monotonic(), generation)
        return _leased(rows, request.holder)

    async def _run_ask(self, request: ClaimRequest, ask: Ask) -> "list[asyncpg.Record]":
        # An idle worker asks for the same again and again, and whoever has just been woken is to ask soon.
        asked, call = self._last_calls.get(request.is_glance, (None, ()))
        if asked is None or asked[0] is not request or asked[1] is not ask:
            call = _claim_call(request, ask)
            self._last_calls[request.is_glance] = (request, ask), call
        return await self._fetch(*call)

    async def next_due(
        self, queues: Sequence[str], kinds: Sequence[str], *, suspects: bool = False, shard: Shard | None = None
    ) -> timedelta | None:
        (row,) = await self._fetch("next_due", list(queues), list(kinds), suspects, *_shard(shard))
        due: timedelta | None = row["due_in"]
        return None if due is None else max(timedelta(0), due)


def _shard(shard: Shard | None) -> tuple[int | None, int | None]:
    return (None, None) if shard is None else (shard.index, shard.count)


def _leased(rows: "Iterable[asyncpg.Record]", holder: UUID) -> list[LeasedJob]:
    """By position, and without the Python code of a named tuple's own constructor, because of the numbers.

    sql/claim.sql has the order of the fields.
    """
    new = tuple.__new__
    return [new(LeasedJob, (new(Lease, (row[0], row[1], holder)), *row[2:13], None)) for row in rows]


def _claim_call(request: ClaimRequest, ask: Ask) -> tuple[Any, ...]:
    """The verb and its arguments."""
    columns = ask.columns
    leases = [request.kinds[kind].lease for kind in columns.kinds]
    shard = _shard(request.shard)
    if not request.suspects and all(claim.limit >= ask.limit for claim in request.kinds.values()):
        return ("claim_usual", request.holder, ask.limit, *shard, *columns, leases, ask.learns_floors)
    lanes = Counter(columns.kinds)
    limits = {kind: claim.limit for kind, claim in request.kinds.items()}
    # A limited kind may show up in several lanes, each with its whole limit; read enough to make up for them.
    spare = sum(limits[kind] * (count - 1) for kind, count in lanes.items() if limits[kind] < ask.limit)
    return (
        "claim",
        request.holder,
        ask.limit,
        request.suspects,
        ask.limit + spare,
        any(limits[kind] < ask.limit for kind in lanes),
        *shard,
        *columns,
        [limits[kind] for kind in columns.kinds],
        leases,
        ask.learns_floors,
    )


def _still_wanted(request: ClaimRequest, claimed: list[LeasedJob]) -> ClaimRequest:
    taken = Counter(job.kind for job in claimed)
    kinds = {
        kind: KindClaim(claim.lease, claim.limit - taken[kind])
        for kind, claim in request.kinds.items()
        if claim.limit > taken[kind]
    }
    return replace(request, limit=request.limit - len(claimed) if kinds else 0, kinds=kinds)
