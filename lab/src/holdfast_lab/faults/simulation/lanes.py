"""The memory store with lanes: claims see only the jobs past their floors, as on PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import JobState, NewJob
from holdfast.domain.lifecycle import SUSPECT
from holdfast.store.claims import Taken
from holdfast.store.contract import ClaimRequest, Shard
from holdfast.store.floors import MARGIN, First, Lane, Position, Starts
from holdfast.store.memory.jobs import Entrance, Record
from holdfast.store.memory.store import MemoryStore


class LanedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self._starts: Starts | None = None

    def enqueue_late(self, jobs: Sequence[NewJob], began: datetime) -> list[Enqueued]:
        """Enqueue with the time at which the transaction began."""
        entrance = Entrance(self._jobs, self._keys, began)
        enqueued = [entrance.take(new) for new in jobs]
        entrance.admit()
        return enqueued

    def lost_before(self, id: UUID, losses: int) -> None:
        """Make a new job look as if it had already lost leases alongside other jobs."""
        record = self._jobs[id]
        record.attempt = record.losses = record.suspicion = losses

    async def claim_from(self, request: ClaimRequest, starts: Starts, claim: UUID) -> Taken:
        before = {record.new.id: _position(record) for record in self._jobs.values()}
        self._starts = starts
        try:
            jobs = self._claim(request, claim)
        finally:
            self._starts = None
        recent = Position(self.clock.read() - MARGIN, UUID(int=0))
        floors = {
            Lane(job.queue, request.suspects, job.priority, job.kind): min(before[job.lease.id], recent) for job in jobs
        }
        return Taken(jobs, floors)

    async def firsts(self, queues: Sequence[str], shard: Shard | None) -> tuple[list[First], datetime]:
        firsts: dict[Lane, Position] = {}
        for record in self._jobs.values():
            is_ours = shard is None or shard.has(record.new.id)
            if is_ours and record.state is JobState.READY and record.new.queue in queues:
                lane, position = _lane(record), _position(record)
                firsts[lane] = min(position, firsts.get(lane, position))
        return [First(*each) for each in firsts.items()], self.clock.read()

    def _due(self, request: ClaimRequest, now: datetime) -> list[Record]:
        due = super()._due(request, now)
        if self._starts is None:
            return due
        floors = dict(zip(self._starts.lanes, self._starts.floors, strict=True))
        past = [each for each in due if _lane(each) in floors and _position(each) > floors[_lane(each)]]
        past.sort(key=_position)
        shares = dict.fromkeys(floors, self._starts.share)
        taken = []
        for record in past:
            if shares[_lane(record)]:
                shares[_lane(record)] -= 1
                taken.append(record)
        return taken


def _lane(record: Record) -> Lane:
    return Lane(record.new.queue, record.suspicion >= SUSPECT, record.new.priority, record.new.kind)


def _position(record: Record) -> Position:
    return Position(record.run_at, record.new.id)
