"""The store contract: what every store promises, in the verbs of the domain.

Each verb takes many jobs at once and is atomic per job. The store keeps the time: no verb uses the caller's clock.
`tests/store_contract/` tests this contract, and `memory/store.py` is its simplest implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import md5
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from holdfast.domain.claim import seconds_of
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.kinds import Kind
from holdfast.domain.lifecycle import Transition
from holdfast.domain.limits import CLAIM_BYTES

MOST_DUE = 10_000
"""How many due jobs per queue are counted by default: an exact number beyond that is of no use."""


@dataclass(frozen=True, slots=True)
class KindClaim:
    """How many jobs of a kind a worker wants, and how long it leases each."""

    lease: timedelta
    limit: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of all jobs: those whose first 32 bits of md5(id as text), modulo `count`, are `index`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InvalidInput(f"shard: {self.index} of {self.count}; the index must be from 0 to the count minus one")

    def has(self, id: UUID) -> bool:
        return int(md5(str(id).encode(), usedforsecurity=False).hexdigest()[:8], 16) % self.count == self.index


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """`suspects` asks only for jobs that twice lost a lease while other jobs ran in the same process; each runs alone.

    No suspect is granted while another one in these queues is leased, so only one worker at a time pauses its other
    work for suspects.

    `most_bytes`: the claim ends with the job whose payload and headers bring the total to this size. The remaining jobs
    stay ready. Of the rows of an application's table, only the payloads count.
    """

    holder: UUID
    limit: int
    queues: tuple[str, ...]
    kinds: Mapping[str, KindClaim]
    suspects: bool = False
    shard: Shard | None = None
    most_bytes: int = CLAIM_BYTES
    seconds: int = field(init=False, repr=False, compare=False)
    """The length of the longest lease, for the name of the claim."""

    def __post_init__(self) -> None:
        leases = [claim.lease for claim in self.kinds.values()]
        object.__setattr__(self, "seconds", seconds_of(max(leases)) if leases else 0)


@dataclass(frozen=True, slots=True)
class Looked:
    """Time until the first job and the first suspect can be claimed: zero if one is due, None if there is none."""

    due_in: timedelta | None = None
    suspect_due_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    lease: Lease
    extend: timedelta
    progress: Json | None = None


class Finish(NamedTuple):
    """A tuple, because a worker creates tens of thousands per second."""

    lease: Lease
    transition: Transition


class Fenced(StrEnum):
    """The result of a change that names a claim."""

    DONE = "done"
    ALREADY = "already"
    """The same claim has already finished this job: the reply to that finish was lost, or a transaction finished it."""
    LOCKED = "locked"
    """A transaction holds the lease to finish the job. Nothing was changed; the lease is not lost."""
    STALE = "stale"
    """The job no longer belongs to this claim. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Renewed:
    lease: Lease
    fenced: Fenced
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class Rescued:
    """`id` lost its lease and is now in `state`: ready, canceled if that was requested, or dead after a crash."""

    id: UUID
    state: JobState


class Ended(NamedTuple):
    """Which leases have ended: those that expired by this time, even if the store's clock is later.

    `longest`: of these, only leases that are at most this long, according to their claims (domain/claim.py).
    """

    by: datetime
    longest: timedelta | None = None


class Canceling(StrEnum):
    CANCELED = "canceled"
    REQUESTED = "requested"
    """The job is running. Its worker sees the request at the next renewal."""
    FINAL = "final"
    LOCKED = "locked"
    """A transaction is finishing the job right now. Nothing was changed."""
    UNKNOWN = "unknown"


class Retrying(StrEnum):
    READY = "ready"
    LIVE = "live"
    """The job is already ready or running. Nothing was changed."""
    LOCKED = "locked"
    """Another transaction is changing the job right now. Nothing was changed."""
    UNKNOWN = "unknown"


class Deleting(StrEnum):
    DELETED = "deleted"
    LIVE = "live"
    """The job is ready or running. Nothing was changed; cancel it first."""
    LOCKED = "locked"
    """Another transaction is changing the job or its key right now. Nothing was changed."""
    UNKNOWN = "unknown"


class Renewer(Protocol):
    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Extend each lease to the store's time plus `extend`, and save its progress. Never wait for a locked lease.

        All are renewed or none, except those that are locked or lost. An `Unstorable` may be the fault of a single
        lease or its progress: the caller finds it, and renews the others without it.
        """

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        """Return unstarted jobs to their old place in the queue. The attempt is not counted.

        A lease that the store refuses to change counts as locked.
        """


class Store(Renewer, Protocol):
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert all jobs or none. A `run_at` in the past becomes the store's now; equal times are ordered by id.

        If a kept job of the same tenant and kind has the same key, no job is inserted, and that job's id is returned.
        `if_exists="keep_live"` does so only while that job is ready or running; once it is final, a new job is inserted
        and takes the key. `if_exists="replace"` turns that job into the new one and keeps its id; if it is running or
        final, a new job is inserted and takes the key. With a `window`, the key is held for exactly that long from the
        moment its job is enqueued. An id that already exists raises DuplicateJob, unless its job was enqueued with the
        same key, kind and tenant; then no job is inserted.
        """

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        """Lease up to `limit` due jobs: most urgent first, then first in, first out. Never wait for another claim.

        The claim counts the attempt and raises the job's fence. No other claim can take the job until its lease has
        expired and been rescued. Until the next look, a store may miss a job that was committed late, was given back,
        or is the first in its lane.
        """

    async def leases_of(self, holder: UUID) -> list[Lease]:
        """Return all leases of this holder. It may not know about some, because the reply to a claim can get lost.

        An expired lease is included until it is rescued.
        """

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        """Write each transition whose claim still owns the job."""

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        """Record that this job runs alone from now on: if its worker dies, the job is to blame.

        Only lost leases with this record count toward `crash_limit`. The record ends with the lease.
        """

    async def now(self) -> datetime:
        """Return the time on the store's clock."""

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        """Make jobs with expired leases ready again, or dead once they have crashed as many workers as they may.

        Locked leases are skipped. A lease that cannot be rescued is left alone for a while, because the others must not
        wait for it. `ended` limits which leases count as expired.
        """

    async def absolve(self, leases: Sequence[Lease]) -> None:
        """Stop counting these lost leases as suspicion against their jobs, because the worker that lost them is alive.

        Each lost lease is taken back once. A lease that was never counted, or a job that is final, changes nothing. A
        job that the store refuses to change keeps its suspicion.
        """

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        """Cancel ready jobs and dead letters now, and ask running jobs to cancel. Other final jobs stay as they are.

        An id given twice gets the same answer twice. The same holds for `retry` and `delete`.
        """

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        """Give final jobs a new life at a person's request: ready now, with attempts and losses back at zero."""

    async def delete(self, ids: Sequence[UUID]) -> list[Deleting]:
        """Delete final jobs and everything that belongs to them. The keys they hold become free."""

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        """Return when the next of these jobs can run. Changes nothing. Later claims find every job due by now."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects the jobs that match every given field. A field that is None matches all jobs.

    `state` can be given as text, as in `JobFilter(state="dead")`.
    """

    state: JobState | None = None
    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            state: JobState | str | None = None,
            queue: str | None = None,
            kind: str | None = None,
            tenant: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.state is None:
            return
        try:
            object.__setattr__(self, "state", JobState(self.state))
        except ValueError:
            raise InvalidInput(f"state: {self.state!r} is not one of {', '.join(JobState)}") from None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs of one queue that are due and unclaimed, whether or not any worker has a handler for them.

    `due` is their number, up to a limit; `is_more` means that there are more. `oldest` is how long the first of them
    has been due. Running jobs are not counted, nor are jobs whose lease has expired but has not been rescued yet.
    """

    queue: str
    due: int
    oldest: timedelta
    is_more: bool = False

    @classmethod
    def of(cls, queue: str, found: int, oldest: timedelta, limit: int) -> "Backlog":
        """From `found` jobs, which were counted up to one more than the limit."""
        return cls(queue, min(found, limit), oldest, is_more=found > limit)


class JobReader(Protocol):
    async def get(self, id: UUID | str) -> Job | None: ...

    async def find(self, kind: Kind | str, key: str, tenant: str = "") -> Job | None:
        """Return the newest job with this key while it holds the key: for its window, or else until it is removed."""

    async def list(self, filter: JobFilter, limit: int) -> list[Job]:
        """Return the newest jobs first, by id."""

    async def list_ids(self, filter: JobFilter, limit: int) -> Sequence[UUID]:
        """Return the ids of the jobs that `list` would return, without reading the jobs."""

    async def count(self) -> Mapping[JobState, int]: ...

    async def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        """Return one entry per queue with due jobs, sorted by name. Each queue is counted up to `limit` jobs."""


class StoreClock(Protocol):
    """The clock by which a store makes its decisions. Tests move it for every process that uses the store."""

    async def now(self) -> datetime: ...

    async def freeze(self, at: datetime) -> None: ...

    async def advance(self, by: timedelta) -> None: ...
