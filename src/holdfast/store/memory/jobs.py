"""What the memory store keeps for a job and a key, and how jobs enter. store.py has the other verbs."""

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob
from holdfast.domain.job import IfExists, JobState, Lease, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.keys import KeyName


@dataclass(slots=True)
class Record:
    new: NewJob
    created_at: datetime
    run_at: datetime
    state: JobState = JobState.READY
    attempt: int = 0
    losses: int = 0
    suspicion: int = 0
    crash_limit: int = 0
    """For a job that runs alone."""
    counted: set[Lease] = field(default_factory=set)
    """Lost leases that raised the suspicion and may be absolved."""
    lease: Lease | None = None
    until: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    fence: int = 0
    """The latest fence, whatever happened to its claim."""
    final_claim: UUID | None = None
    cancel_requested: bool = False
    result: Json | None = None
    progress: Json | None = None
    errors: list[Json] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HeldKey:
    """`until` None: the key is held while the job is kept."""

    job_id: UUID
    until: datetime | None = None


class Entrance:
    """Jobs that enter together. None of them is in the store before `admit`."""

    def __init__(
        self, jobs: MutableMapping[UUID, Record], keys: MutableMapping[KeyName, HeldKey], now: datetime
    ) -> None:
        self._jobs = ChainMap[UUID, Record]({}, jobs)
        self._keys = ChainMap[KeyName, HeldKey]({}, keys)
        self._now = now

    def take(self, new: NewJob) -> Enqueued:
        held = self._held(new)
        holder = None if held is None else self._jobs.get(held.job_id)
        if held is not None and (held.job_id == new.id or _is_kept(holder, new.if_exists)):
            return Enqueued(held.job_id, is_new=False)
        if self._is_repeated(new):
            return Enqueued(new.id, is_new=False)
        if holder is not None and holder.state is JobState.READY:
            self._jobs[holder.new.id] = self._replaced(holder, new)
            return Enqueued(holder.new.id, is_new=False, replaced=True)
        if new.id in self._jobs:
            raise DuplicateJob(f"job {new.id} exists already; use a new id, or a key if it is the same work")
        if new.key is not None:
            until = None if new.window is None else self._now + new.window
            self._keys[KeyName(new.tenant, new.kind, new.key)] = HeldKey(new.id, until)
        self._jobs[new.id] = Record(new, created_at=self._now, run_at=self._run_at(new))
        return Enqueued(new.id, is_new=True)

    def admit(self) -> None:
        self._jobs.parents.update(self._jobs.maps[0])
        self._keys.parents.update(self._keys.maps[0])

    def _held(self, new: NewJob) -> HeldKey | None:
        """Return the holder of the key, unless the key has expired."""
        held = None if new.key is None else self._keys.get(KeyName(new.tenant, new.kind, new.key))
        if held is None:
            return None
        until = held.until
        if until is None and new.window is not None:
            until = self._jobs[held.job_id].created_at + new.window
        return None if until is not None and until <= self._now else held

    def _is_repeated(self, new: NewJob) -> bool:
        """Whether the job with this id came with this key, no matter which job holds it now."""
        record = None if new.key is None else self._jobs.get(new.id)
        if record is None:
            return False
        return (record.new.tenant, record.new.kind, record.new.key) == (new.tenant, new.kind, new.key)

    def _replaced(self, record: Record, new: NewJob) -> Record:
        has_correlation = new.correlation_id != str(new.id)
        correlation_id = new.correlation_id if has_correlation else record.new.correlation_id
        return replace(
            record,
            new=replace(new, id=record.new.id, correlation_id=correlation_id),
            run_at=self._run_at(new),
            attempt=0,
            losses=0,
            # The suspicion stays, because the kind, or what both payloads have in common, may have killed workers.
        )

    def _run_at(self, new: NewJob) -> datetime:
        return max(self._now, new.run_at) if new.run_at else self._now + (new.delay or timedelta(0))


def _is_kept(holder: Record | None, if_exists: IfExists) -> bool:
    """`holder` has the key. None: the job is gone, but its window is not over."""
    is_live = holder is not None and not holder.state.is_final
    return if_exists is IfExists.KEEP or (if_exists is IfExists.KEEP_LIVE and is_live)
