"""What a store promises, in the verbs of the domain. Each verb takes many jobs at once and is atomic per job.

Time is the store's own: no verb takes the caller's clock. `tests/store_contract/` is this page as a test suite, and
`memory/store.py` its plainest reading.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import md5
from typing import NamedTuple, Protocol
from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Transition
from holdfast.domain.limits import CLAIM_BYTES

MOST_DUE = 10_000
"""How many due jobs of a queue are counted unless somebody says otherwise: beyond that a number says no more."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """`is_new` is False when a job with the same tenant, kind and key was there: `id` is that job's.

    `replaced`: that job now does what was asked for.
    """

    id: UUID
    is_new: bool
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class KindClaim:
    """How much of a kind a worker wants, and for how long it leases each."""

    lease: timedelta
    limit: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of all jobs: those with md5(id as text) as a number, its first 32 bits, modulo count."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InvalidInput(f"shard: {self.index} of {self.count}; the index goes from 0 to the count less one")

    def has(self, id: UUID) -> bool:
        return int(md5(str(id).encode(), usedforsecurity=False).hexdigest()[:8], 16) % self.count == self.index


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """`suspects` asks for jobs that lost leases in company twice, and only for those; each must run alone.

    None is granted while another suspect in these queues has a lease, so that one worker at a time runs empty for them.

    `most_bytes`: the payloads of the answer end with the one that brings them there. What is beyond stays ready.
    """

    holder: UUID
    limit: int
    queues: tuple[str, ...]
    kinds: Mapping[str, KindClaim]
    suspects: bool = False
    shard: Shard | None = None
    most_bytes: int = CLAIM_BYTES


@dataclass(frozen=True, slots=True)
class Looked:
    """Time until the first job and the first suspect could be claimed: zero if one is due, None if there is none."""

    due_in: timedelta | None = None
    suspect_due_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    lease: Lease
    extend: timedelta
    progress: Json | None = None


class Finish(NamedTuple):
    """A tuple, because a worker makes tens of thousands of them in a second."""

    lease: Lease
    transition: Transition


class Fenced(StrEnum):
    """What became of a change that named a claim."""

    DONE = "done"
    ALREADY = "already"
    """The same claim has finished this job before: the reply to that finish was lost, or a transaction did it."""
    LOCKED = "locked"
    """A transaction holds the lease to finish the job. Nothing was changed; the lease is not lost."""
    STALE = "stale"
    """The claim is no longer the job's. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Renewed:
    lease: Lease
    fenced: Fenced
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class Rescued:
    """`id` lost its lease and is now in `state`: ready, canceled if that was asked for, or dead after a crash."""

    id: UUID
    state: JobState


class Canceling(StrEnum):
    CANCELED = "canceled"
    REQUESTED = "requested"
    """The job is running: its worker sees the request with the next renewal."""
    FINAL = "final"
    LOCKED = "locked"
    """A transaction is finishing the job at this moment; nothing was changed."""
    UNKNOWN = "unknown"


class Retrying(StrEnum):
    READY = "ready"
    LIVE = "live"
    """The job is ready or running already; nothing was changed."""
    LOCKED = "locked"
    """Somebody else is changing the job at this moment; nothing was changed."""
    UNKNOWN = "unknown"


class Renewer(Protocol):
    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Extend each lease to the store's now + `extend` and keep its progress. Never waits for a locked lease."""


class Store(Renewer, Protocol):
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert all jobs or none. `run_at` is never before the store's clock; among equals the lower id comes first.

        A job with a key that a kept job of the same tenant and kind has is not inserted; that job's id is returned.
        With `if_exists="replace"` that job becomes the new one and keeps its id, unless it is running or final: then a
        new job is made and has the key. With a `window` the key is held for so long from its job's enqueue, and no
        longer. An id that exists already is DuplicateJob, unless its job came with this key.
        """

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        """Lease at most `limit` due jobs, most urgent first, then first in first out. Never waits for another claimer.

        The attempt is counted now, and the job's fence rises. No one else can claim the job until its lease ran out and
        was rescued. A store may miss a job that was committed late, given back, or is the first of its lane, until the
        next look.
        """

    async def leases_of(self, holder: UUID) -> list[Lease]:
        """Everything that this holder has leased: it may not have heard of all, because the answer to a claim was lost.

        A lease that ran out is among them until it is rescued.
        """

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        """Write each transition, if its claim is still the job's."""

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        """Make unstarted jobs ready again where they stood in the queue; the attempt is not counted."""

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        """Note that this job runs alone from now on: what its worker dies of, it has done.

        Lost leases count towards `crash_limit` only if they were noted so. The note ends with the lease.
        """

    async def now(self) -> datetime:
        """The store's clock."""

    async def rescue(self, limit: int, ended_by: datetime | None = None) -> list[Rescued]:
        """Make jobs whose lease ran out ready again, or dead once they have crashed as many workers as they may.

        Skips locked leases, and leaves one alone for a while that the store cannot rescue: the others must not wait.
        `ended_by`: by that time, even if the store's clock says that it is later.
        """

    async def absolve(self, leases: Sequence[Lease]) -> None:
        """The worker that lost these leases is alive, so they do not count towards the suspicion of their jobs.

        Each is taken back once. What was never counted changes nothing, nor does a job that is final.
        """

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        """Ready and dead-letter jobs end canceled now; running ones are asked to; other final ones stay.

        An id given twice gets the same answer twice; so it is with retry.
        """

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        """A person's new life for final jobs: ready now, attempts and losses back at zero."""

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        """When the next job of these may run. Changes nothing; claims that start afterwards find all that was due."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant: those that have all of what is said. None says nothing."""

    state: JobState | None = None
    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs of one queue that are due and wait to be claimed, whoever has a handler for them.

    `due` says how many, up to a limit; `is_more`: there are more than that. `oldest` is for how long the first of them
    has been due. What runs is not counted, nor what lost its lease and was not rescued yet.
    """

    queue: str
    due: int
    oldest: timedelta
    is_more: bool = False

    @classmethod
    def of(cls, queue: str, found: int, oldest: timedelta, limit: int) -> "Backlog":
        """`found` of at most one more than the limit."""
        return cls(queue, min(found, limit), oldest, is_more=found > limit)


class JobReader(Protocol):
    async def get(self, id: UUID | str) -> Job | None: ...

    async def list(self, filter: JobFilter, limit: int) -> list[Job]:
        """The newest jobs first, by id."""

    async def count(self) -> Mapping[JobState, int]: ...

    async def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        """One for each queue that has due jobs, by name; of each queue no more than `limit` jobs are counted."""


class StoreClock(Protocol):
    """The clock by which a store decides. Tests move it for every process that uses the store."""

    async def now(self) -> datetime: ...

    async def freeze(self, at: datetime) -> None: ...

    async def advance(self, by: timedelta) -> None: ...
