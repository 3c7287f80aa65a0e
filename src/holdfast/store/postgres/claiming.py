"""The verbs that read the queue: which lanes a claim asks for, and what is learned from its answer."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import Lease, LeasedJob
from holdfast.log import get_logger
from holdfast.store.contract import ClaimRequest, KindClaim, Shard
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes, Starts, Survey
from holdfast.store.postgres.sql_files import Fetch

if TYPE_CHECKING:
    import asyncpg


log = get_logger("holdfast.store")

_NOBODY = UUID(int=0)


class Claiming:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._round_trip = 0.0
        self._is_open = False
        self._lanes: dict[Shard | None, Lanes] = {}
        """What one shard has claimed tells nothing about the others."""
        self._surveys: set[asyncio.Task[None]] = set()
        self._last_calls: dict[bool, tuple[tuple[ClaimRequest, Ask], tuple[Any, ...]]] = {}

    def open(self, round_trip: float) -> None:
        """`round_trip`: the seconds that any question takes."""
        self._is_open, self._round_trip = True, round_trip
        self._lanes.clear()

    def close(self) -> None:
        """Surveys end now, or else with their connection."""
        self._is_open = False
        for survey in self._surveys:
            survey.cancel()

    async def closed(self, seconds: float) -> None:
        """None is left, if they end in time."""
        if self._surveys:
            await asyncio.wait(self._surveys, timeout=seconds)

    def forget(self) -> None:
        """Jobs came back to where they stood: the next claim looks at everything."""
        for lanes in self._lanes.values():
            lanes.forget()

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        if request.limit <= 0 or not request.kinds or not request.queues:
            return []
        lanes = self._lanes_of(request.shard)
        if request.suspects:
            ask = lanes.all_lanes(request)
            return _leased(await self._run_ask(request, ask), request.holder)
        if request.is_glance:
            glance = lanes.glance(request)
            return [] if glance is None else await self._ask(request, glance)
        jobs = await self._claim(request, lanes)
        if lanes.is_dear:
            self._survey_if_due(lanes, request.shard, is_idle=not jobs)
        return jobs

    async def _claim(self, request: ClaimRequest, lanes: Lanes) -> list[LeasedJob]:
        ask = lanes.first_ask(request, time.monotonic())
        jobs = await self._ask(request, ask)
        if not ask.has_shares or len(jobs) >= request.limit:
            return jobs
        rest = _still_wanted(request, jobs)
        claimed = [Lane(job.queue, job.priority, job.kind) for job in jobs]
        next_ask = lanes.next_ask(rest, ask, claimed)
        if next_ask is not None:
            # What the first ask has leased is ours to run.
            with suppress(StoreUnavailable):
                jobs += await self._ask(rest, next_ask)
        return jobs

    async def _ask(self, request: ClaimRequest, ask: Ask) -> list[LeasedJob]:
        lanes = self._lanes_of(request.shard)
        started, generation = time.monotonic(), lanes.generation
        rows = await self._run_ask(request, ask)
        if rows and not ask.teaches:
            return _leased(rows, request.holder)
        last_of_lane = {row[2:5]: row for row in rows}
        last = {Lane(row[3], row[4], row[2]): Floor(row[13], row[0]) for row in last_of_lane.values()}
        lanes.learn(ask, last, len(rows), started, time.monotonic(), generation)
        return _leased(rows, request.holder)

    async def _run_ask(self, request: ClaimRequest, ask: Ask) -> "list[asyncpg.Record]":
        # An idle worker asks for the same again and again, and whoever has just been woken is to ask soon.
        asked, call = self._last_calls.get(request.is_glance, (None, ()))
        if asked is None or asked[0] is not request or asked[1] is not ask:
            call = _claim_call(request, ask)
            self._last_calls[request.is_glance] = (request, ask), call
        return await self._fetch(*call)

    async def next_due(
        self, queues: Sequence[str], kinds: Sequence[str], *, suspects: bool, shard: Shard | None
    ) -> timedelta | None:
        lanes = self._lanes_of(shard)
        if lanes.is_dear and not suspects:
            wanted = ClaimRequest(_NOBODY, 1, tuple(queues), dict.fromkeys(kinds, KindClaim(timedelta(0), 1)))
            ask = lanes.idle_ask(wanted, time.monotonic())
            if ask is not None:
                return await self._next_due_from_floors(ask, lanes, shard)
        (row,) = await self._fetch("next_due", list(queues), list(kinds), suspects, *_shard(shard))
        due: timedelta | None = row["due_in"]
        return None if due is None else max(timedelta(0), due)

    async def _next_due_from_floors(self, ask: Ask, lanes: Lanes, shard: Shard | None) -> timedelta:
        """No later than the next survey, because it may find what lies behind them."""
        rows = await self._fetch("first_of_lanes", False, *_shard(shard), *ask.starts)
        due: list[timedelta] = [
            max(timedelta(0), row["run_at"] - row["moment"]) for row in rows if row["run_at"] is not None
        ]
        self._survey_if_due(lanes, shard, is_idle=True)
        return min([*due, timedelta(seconds=lanes.until_survey(time.monotonic()))])

    def _survey_if_due(self, lanes: Lanes, shard: Shard | None, *, is_idle: bool) -> None:
        starts = lanes.start_survey(time.monotonic(), is_idle=is_idle) if self._is_open else None
        if starts is not None:
            survey = asyncio.create_task(self._survey(lanes, shard, starts))
            self._surveys.add(survey)
            survey.add_done_callback(lambda _: self._survey_is_over(survey, lanes))

    async def _survey(self, lanes: Lanes, shard: Shard | None, starts: Starts) -> None:
        """Beside the claims: past many deleted rows it takes a while, and nobody waits for it."""
        generation = lanes.generation
        rows = await self._fetch("first_of_lanes", True, *_shard(shard), *starts)
        firsts = {Lane(row[0], row[1], row[2]): Floor(row[3], row[4]) if row[3] else None for row in rows}
        seconds = max(row[6] for row in rows).total_seconds()
        lanes.surveyed(Survey(firsts, rows[0][5], seconds), time.monotonic(), generation)

    def _survey_is_over(self, survey: "asyncio.Task[None]", lanes: Lanes) -> None:
        self._surveys.discard(survey)
        error = None if survey.cancelled() else survey.exception()
        if survey.cancelled() or error is not None:
            is_news = lanes.not_surveyed(time.monotonic())
            if is_news and self._is_open:
                text = "cancelled" if error is None else str(error)
                log.warning("cannot look past the deleted rows: jobs that were committed late may wait", error=text)

    def _lanes_of(self, shard: Shard | None) -> Lanes:
        lanes = self._lanes.get(shard)
        if lanes is None:
            lanes = self._lanes[shard] = Lanes(self._round_trip)
        return lanes


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
    kinds = ask.starts.kinds
    columns = (*ask.starts, ask.fetches)
    leases = [request.kinds[kind].lease for kind in kinds]
    shard = _shard(request.shard)
    if not request.suspects and all(claim.limit >= ask.limit for claim in request.kinds.values()):
        return ("claim_usual", request.holder, ask.limit, *shard, *columns, leases, ask.learns_floors)
    lanes = Counter(kinds)
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
        [limits[kind] for kind in kinds],
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
