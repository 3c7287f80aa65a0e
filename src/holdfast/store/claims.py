"""Claims and looks through floors, for any store that can read lanes: PostgreSQL, or the simulation's store."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.claim import new_claim
from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest, KindClaim, Looked, Shard
from holdfast.store.floors import First, Floors, Lane, Position, Starts, looked


class Taken(NamedTuple):
    """The jobs of one claim, and where it left its lanes if that was requested.

    `is_cut`: their payloads fill the claim's size limit.
    """

    jobs: list[LeasedJob]
    floors: Mapping[Lane, Position]
    is_cut: bool = False


class Claims(ABC):
    """`claim` and `look` of the store contract, for stores that read lane by lane."""

    @abstractmethod
    async def claim_from(self, request: ClaimRequest, starts: Starts, claim: UUID) -> Taken:
        """Claim only from these lanes, past their floors, under this claim name."""

    @abstractmethod
    async def firsts(self, queues: Sequence[str], shard: Shard | None) -> tuple[list[First], datetime]:
        """Return the first job of every lane of these queues, due or not, and the store's time just before."""

    @cached_property
    def _floors(self) -> dict[Shard | None, Floors]:
        """One per shard, because the claims of one shard say nothing about the others."""
        return {}

    def forget_floors(self) -> None:
        """Forget all floors after jobs came back behind them. The next claim looks first."""
        for floors in self._floors.values():
            floors.forget()

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        if request.limit <= 0 or not request.kinds or not request.queues:
            return []
        floors = self._floors_of(request.shard)
        if not floors.has_looked(request.queues):
            await self.look(request.queues, list(request.kinds), shard=request.shard)
        jobs: list[LeasedJob] = []
        while True:
            starts = floors.starts(request)
            if not starts.lanes:
                return jobs
            taken = await self.claim_from(request, starts, new_claim(request.holder, request.seconds))
            jobs = jobs + taken.jobs if jobs else taken.jobs
            if taken.floors:
                floors.left(starts, taken.floors)
            if taken.is_cut or len(taken.jobs) >= request.limit:
                return jobs
            if not floors.claimed(starts, _by_lane(taken.jobs, request), request):
                return jobs
            request = _rest_of(request, taken.jobs)

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        floors = self._floors_of(shard)
        generation, wanted = floors.generation, sorted(set(queues))
        firsts, moment = await self.firsts(wanted, shard)
        floors.looked(wanted, firsts, moment, generation)
        return looked(firsts, kinds, moment)

    def _floors_of(self, shard: Shard | None) -> Floors:
        floors = self._floors.get(shard)
        if floors is None:
            floors = self._floors[shard] = Floors()
        return floors


def _by_lane(jobs: list[LeasedJob], request: ClaimRequest) -> dict[Lane, int]:
    # Not a Counter: its constructor alone takes as long as the rest of a one-job claim.
    counts: dict[Lane, int] = {}
    for job in jobs:
        lane = Lane(job.queue, request.suspects, job.priority, job.kind)
        counts[lane] = counts.get(lane, 0) + 1
    return counts


def _rest_of(request: ClaimRequest, jobs: list[LeasedJob]) -> ClaimRequest:
    taken = Counter(job.kind for job in jobs)
    kinds = {
        kind: KindClaim(claim.lease, claim.limit - taken[kind])
        for kind, claim in request.kinds.items()
        if claim.limit > taken[kind]
    }
    return replace(request, limit=request.limit - len(jobs), kinds=kinds)
