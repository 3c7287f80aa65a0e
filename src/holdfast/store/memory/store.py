"""The reference store: the simplest implementation of the contract, and the oracle for the others.

One dictionary of jobs behind one lock (the lease keeper renews from its own thread), and a clock that tests move.
Nothing survives the process; it is for unit tests.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.domain.claim import claims_of, holder_of, length_of, new_claim
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import Job, JobError, JobState, Lease, LeasedJob, NewJob, to_id
from holdfast.domain.json_text import Json, encode
from holdfast.domain.keys import KeyName
from holdfast.domain.kinds import Kind
from holdfast.domain.lifecycle import (
    KEPT_ERRORS,
    MOST_LOSSES,
    SUSPECT,
    Move,
    Transition,
    after_cancel_request,
    after_loss,
    suspicion_after_loss,
)
from holdfast.domain.limits import at_least
from holdfast.store.contract import (
    MOST_DUE,
    Backlog,
    Canceling,
    ClaimRequest,
    Deleting,
    Ended,
    Fenced,
    Finish,
    JobFilter,
    Looked,
    Renewal,
    Renewed,
    Rescued,
    Retrying,
    Shard,
)
from holdfast.store.memory.jobs import Entrance, HeldKey, Record

_READY = JobState.READY
"""Kept in a variable, because every look compares all jobs with it and access to an enum member is slow."""


class MemoryClock:
    """The machine's time, either moved by a test or frozen."""

    def __init__(self) -> None:
        self._frozen: datetime | None = None
        self._moved = timedelta(0)

    def read(self) -> datetime:
        return self._frozen or datetime.now(UTC) + self._moved

    async def now(self) -> datetime:
        return self.read()

    async def freeze(self, at: datetime) -> None:
        self._frozen = at

    async def advance(self, by: timedelta) -> None:
        if self._frozen is None:
            self._moved += by
        else:
            self._frozen += by


class MemoryStore:
    """Store and reader in one object, with the clock as an attribute, for convenience in tests."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self._jobs: dict[UUID, Record] = {}
        self._keys: dict[KeyName, HeldKey] = {}
        self._fence = 0
        self._lock = threading.RLock()
        self._on_final: list[Callable[[UUID], None]] = []
        self.on_death: list[Callable[[Job, Json], None]] = []
        """Called with each job that has just failed or died and its payload, on the thread that ended the job."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self.enqueue_now(jobs)

    def enqueue_now(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._lock:
            entrance = Entrance(self._jobs, self._keys, self.clock.read())
            enqueued = [entrance.take(new) for new in jobs]
            entrance.admit()
            return enqueued

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        return self._claim(request, new_claim(request.holder, request.seconds))

    def _claim(self, request: ClaimRequest, claim: UUID) -> list[LeasedJob]:
        with self._lock:
            now = self.clock.read()
            if request.suspects and self._has_leased_suspects(request.queues, now):
                return []
            wanted = {kind: each.limit for kind, each in request.kinds.items()}
            claimed: list[LeasedJob] = []
            bytes_claimed = 0
            for record in sorted(self._due(request, now), key=_claim_order):
                if len(claimed) >= request.limit or bytes_claimed >= request.most_bytes:
                    break
                if wanted[record.new.kind] <= 0:
                    continue
                wanted[record.new.kind] -= 1
                bytes_claimed += len(record.new.payload.encode()) + len((record.new.headers or "").encode())
                claimed.append(self._lease(record, request, claim, now))
            return claimed

    def _due(self, request: ClaimRequest, now: datetime) -> list[Record]:
        return [
            record
            for record in self._jobs.values()
            if record.state is _READY
            and record.run_at <= now
            and _is_of(record, request.queues, request.kinds, request.shard)
            and (record.suspicion >= SUSPECT) is request.suspects
        ]

    def _has_leased_suspects(self, queues: Collection[str], now: datetime) -> bool:
        return any(
            record.until is not None and record.until > now and record.suspicion >= SUSPECT
            for record in self._jobs.values()
            if record.new.queue in queues
        )

    def _lease(self, record: Record, request: ClaimRequest, claim: UUID, now: datetime) -> LeasedJob:
        self._fence += 1
        record.fence = self._fence
        record.state = JobState.RUNNING
        record.attempt += 1
        record.lease = Lease(record.new.id, record.fence, claim)
        record.until = now + request.kinds[record.new.kind].lease
        record.started_at = now
        return LeasedJob(
            lease=record.lease,
            kind=record.new.kind,
            queue=record.new.queue,
            priority=record.new.priority,
            payload=record.new.payload,
            headers=record.new.headers,
            tenant=record.new.tenant,
            correlation_id=record.new.correlation_id,
            attempt=record.attempt,
            losses=record.losses,
            max_attempts=record.new.max_attempts,
            created_at=record.created_at,
        )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        with self._lock:
            now = self.clock.read()
            renewed = []
            for renewal in renewals:
                record = self._held(renewal.lease)
                if record is None:
                    renewed.append(Renewed(renewal.lease, self._not_held(renewal.lease)))
                    continue
                record.until = now + renewal.extend
                if renewal.progress is not None:
                    record.progress = renewal.progress
                renewed.append(Renewed(renewal.lease, Fenced.DONE, record.cancel_requested))
            return renewed

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        with self._lock:
            return [self._finish(finish.lease, finish.transition) for finish in finishes]

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        with self._lock:
            return [self._finish(lease, Transition(Move.RELEASE)) for lease in leases]

    def _finish(self, lease: Lease, transition: Transition) -> Fenced:
        record = self._held(lease)
        if record is None:
            return self._not_held(lease)
        self._write(record, transition)
        self._publish_death(record)
        return Fenced.DONE

    async def leases_of(self, holder: UUID) -> list[Lease]:
        with self._lock:
            lowest, highest = claims_of(holder)
            leases = [record.lease for record in self._jobs.values() if record.lease is not None]
            return [lease for lease in leases if lowest <= lease.claim <= highest]

    async def now(self) -> datetime:
        return self.clock.read()

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        with self._lock:
            now = self.clock.read()
            by = now if ended is None else min(now, ended.by)
            longest = None if ended is None else ended.longest
            expired = [
                record
                for record in self._jobs.values()
                if record.until is not None and record.until <= by and _is_at_most(record, longest)
            ]
            expired.sort(key=lambda record: (record.until, record.new.id))
            for record in expired[:limit]:
                self._lose(record)
            return [Rescued(record.new.id, record.state) for record in expired[:limit]]

    def _lose(self, record: Record) -> None:
        before, crash_limit, lease = record.suspicion, record.crash_limit, record.lease
        record.suspicion = suspicion_after_loss(before, crash_limit)
        if lease is not None and record.suspicion > before:
            record.counted.add(lease)
        self._write(record, after_loss(record.suspicion, crash_limit))
        if record.losses < MOST_LOSSES:
            record.losses += 1
        else:
            record.attempt -= 1
        self._publish_death(record)

    def _publish_death(self, record: Record) -> None:
        if record.state.is_dead_letter:
            for publish in self.on_death:
                publish(_shown(record), record.new.payload)

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        with self._lock:
            record = self._held(lease)
            if record is None:
                return self._not_held(lease)
            record.crash_limit = crash_limit
            return Fenced.DONE

    async def absolve(self, leases: Sequence[Lease]) -> None:
        with self._lock:
            for lease in leases:
                record = self._jobs.get(lease.id)
                if record is not None and lease in record.counted:
                    record.counted.remove(lease)
                    if not record.state.is_final:
                        record.suspicion = max(0, record.suspicion - 1)

    def _write(self, record: Record, transition: Transition) -> None:
        now = self.clock.read()
        lost = transition.move in (Move.RESCUE, Move.BURY)
        if record.cancel_requested:
            transition = after_cancel_request(transition)
        claim = record.lease.claim if record.lease and not lost else None
        if transition.error is not None:
            record.errors.append(_stored_error(transition.error, record.attempt, now))
            del record.errors[:-KEPT_ERRORS]
        record.attempt -= transition.gives_attempt_back
        record.lease = record.until = None
        record.crash_limit = 0
        record.cancel_requested = False
        record.state = transition.state
        if transition.state is JobState.READY:
            record.started_at = None
            if transition.move is not Move.RELEASE:
                record.run_at = max(now, transition.at) if transition.at else now + transition.delay
        else:
            record.result = transition.result
            record.final_claim = claim
            record.finished_at = now
            self._ring(record)

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        with self._lock:
            answers = {id: self._cancel(self._jobs.get(id)) for id in dict.fromkeys(ids)}
            return [answers[id] for id in ids]

    def _cancel(self, record: Record | None) -> Canceling:
        if record is None:
            return Canceling.UNKNOWN
        if record.state is JobState.RUNNING:
            record.cancel_requested = True
            return Canceling.REQUESTED
        if record.state in (JobState.SUCCEEDED, JobState.CANCELED):
            return Canceling.FINAL
        record.state = JobState.CANCELED
        record.final_claim = None
        record.finished_at = self.clock.read()
        self._ring(record)
        return Canceling.CANCELED

    @contextmanager
    def ringing(self, ring: Callable[[UUID], None]) -> Iterator[None]:
        """Inside the block, call `ring` with the id of each job that becomes final, on the thread that ends it."""
        with self._lock:
            self._on_final.append(ring)
        try:
            yield
        finally:
            with self._lock:
                self._on_final.remove(ring)

    def _ring(self, record: Record) -> None:
        for ring in self._on_final:
            ring(record.new.id)

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        with self._lock:
            answers = {id: self._revive(self._jobs.get(id)) for id in dict.fromkeys(ids)}
            return [answers[id] for id in ids]

    def _revive(self, record: Record | None) -> Retrying:
        if record is None:
            return Retrying.UNKNOWN
        if not record.state.is_final:
            return Retrying.LIVE
        record.state = JobState.READY
        record.attempt = record.losses = record.suspicion = 0
        record.counted.clear()
        record.run_at = self.clock.read()
        record.started_at = record.finished_at = record.final_claim = record.result = None
        return Retrying.READY

    async def delete(self, ids: Sequence[UUID]) -> list[Deleting]:
        with self._lock:
            answers = {id: self._delete(id) for id in dict.fromkeys(ids)}
            return [answers[id] for id in ids]

    def _delete(self, id: UUID) -> Deleting:
        record = self._jobs.get(id)
        if record is None:
            return Deleting.UNKNOWN
        if not record.state.is_final:
            return Deleting.LIVE
        del self._jobs[id]
        self._keys = {key: held for key, held in self._keys.items() if held.job_id != id}
        return Deleting.DELETED

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        with self._lock:
            now = self.clock.read()
            first: dict[bool, datetime] = {}
            for record in self._jobs.values():
                if record.state is _READY and _is_of(record, queues, kinds, shard):
                    is_suspect = record.suspicion >= SUSPECT
                    first[is_suspect] = min(record.run_at, first.get(is_suspect, record.run_at))
            in_time = {is_suspect: max(timedelta(0), run_at - now) for is_suspect, run_at in first.items()}
            return Looked(in_time.get(False), in_time.get(True))

    async def get(self, id: UUID | str) -> Job | None:
        with self._lock:
            record = self._jobs.get(to_id(id))
            return _shown(record) if record else None

    async def find(self, kind: Kind | str, key: str, tenant: str = "") -> Job | None:
        id = self.holder_of(KeyName.of(kind, key, tenant))
        return None if id is None else await self.get(id)

    def holder_of(self, key: KeyName) -> UUID | None:
        """Return the job that holds the key. The job may have been removed."""
        with self._lock:
            held = self._keys.get(key)
            is_over = held is not None and held.until is not None and held.until <= self.clock.read()
            return None if held is None or is_over else held.job_id

    async def list(self, filter: JobFilter, limit: int) -> "list[Job]":
        with self._lock:
            shown = [_shown(record) for record in self._jobs.values() if _matches(record, filter)]
            return sorted(shown, key=lambda job: job.id, reverse=True)[:limit]

    async def list_ids(self, filter: JobFilter, limit: int) -> Sequence[UUID]:
        return [job.id for job in await self.list(filter, limit)]

    async def count(self) -> Mapping[JobState, int]:
        with self._lock:
            states = [record.state for record in self._jobs.values()]
            return {state: states.count(state) for state in JobState}

    async def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        at_least("limit", limit, 0)
        with self._lock:
            now = self.clock.read()
            due: defaultdict[str, list[datetime]] = defaultdict(list)
            for record in self._jobs.values():
                if record.state is JobState.READY and record.run_at <= now:
                    due[record.new.queue].append(record.run_at)
            return [Backlog.of(queue, len(times), now - min(times), limit) for queue, times in sorted(due.items())]

    def remove_final(self, states: Collection[JobState], retention: timedelta) -> int:
        """Forget jobs that have been in one of these final states for longer than the retention, for maintenance."""
        with self._lock:
            now = self.clock.read()
            before = now - retention
            old = [
                id
                for id, record in self._jobs.items()
                if record.state in states and record.finished_at is not None and record.finished_at < before
            ]
            for id in old:
                del self._jobs[id]
            self._keys = {
                key: held
                for key, held in self._keys.items()
                if (held.job_id in self._jobs if held.until is None else held.until > now)
            }
            return len(old)

    def _held(self, lease: Lease) -> Record | None:
        record = self._jobs.get(lease.id)
        is_held = record is not None and record.lease is not None and record.lease.claim == lease.claim
        return record if is_held else None

    def _not_held(self, lease: Lease) -> Fenced:
        record = self._jobs.get(lease.id)
        return Fenced.ALREADY if record is not None and record.final_claim == lease.claim else Fenced.STALE


def _is_at_most(record: Record, longest: timedelta | None) -> bool:
    return longest is None or record.lease is None or length_of(record.lease.claim) <= longest


def _claim_order(record: Record) -> tuple[int, datetime, UUID]:
    return record.new.priority, record.run_at, record.new.id


def _is_of(record: Record, queues: Collection[str], kinds: Collection[str], shard: Shard | None) -> bool:
    return record.new.queue in queues and record.new.kind in kinds and (shard is None or shard.has(record.new.id))


def _matches(record: Record, filter: JobFilter) -> bool:
    return (
        filter.state in (None, record.state)
        and filter.queue in (None, record.new.queue)
        and filter.kind in (None, record.new.kind)
        and filter.tenant in (None, record.new.tenant)
    )


def _stored_error(error: JobError, attempt: int, now: datetime) -> Json:
    at = now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return encode({**error.as_dict(), "attempt": attempt, "at": at})


def _shown(record: Record) -> Job:
    running = record.state is JobState.RUNNING
    return Job.read(
        id=record.new.id,
        kind=record.new.kind,
        queue=record.new.queue,
        priority=record.new.priority,
        state=record.state,
        payload=record.new.payload,
        headers=record.new.headers,
        tenant=record.new.tenant,
        correlation_id=record.new.correlation_id,
        key=record.new.key,
        attempt=record.attempt,
        losses=record.losses,
        max_attempts=record.new.max_attempts,
        created_at=record.created_at,
        run_at=None if record.state.is_final else record.run_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        fence=record.fence if record.lease or record.final_claim else None,
        holder=holder_of(record.lease.claim) if record.lease else None,
        lease_until=record.until if running else None,
        cancel_requested=record.cancel_requested,
        result=record.result,
        progress=record.progress,
        errors=tuple(record.errors),
        suspicion=0 if record.state.is_final else record.suspicion,
    )
