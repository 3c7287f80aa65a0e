"""Jobs as clients of the API see them, each only within its tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apps.passports.tools import Tools
from holdfast import Holdfast, Job, JobState, Kind
from holdfast.types import JobFilter

DEAD_LETTER = "DEAD_LETTER"
STATUSES = {
    JobState.READY: "QUEUED",
    JobState.RUNNING: "RUNNING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.DEAD: DEAD_LETTER,
    # Only an operator can cancel a job, with Holdfast's own command.
    JobState.CANCELED: "CANCELED",
}
_STATES = {status: state for state, status in STATUSES.items()}


@dataclass(frozen=True, slots=True)
class LastError:
    code: str
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class JobView:
    job_id: UUID
    tenant_id: UUID
    type: str
    subject_id: str | None
    """The document version, passport version or webhook delivery that the job works on."""
    status: str
    priority: int
    attempts: int
    """Attempts so far, without those that were lost with their worker."""
    max_attempts: int
    lease_owner: UUID | None
    lease_expires_at: datetime | None
    started_at: datetime | None
    scheduled_at: datetime | None
    last_error: LastError | None
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job, max_attempts: int) -> "JobView":
        """`max_attempts` counts for jobs that were enqueued without a limit."""
        error = job.last_error
        return cls(
            job_id=job.id,
            tenant_id=UUID(job.tenant),
            type=job.kind,
            subject_id=job.key,
            status=STATUSES[job.state],
            priority=job.priority,
            attempts=job.attempt - job.losses,
            max_attempts=job.max_attempts or max_attempts,
            lease_owner=job.holder,
            lease_expires_at=job.lease_until,
            started_at=job.started_at,
            scheduled_at=job.run_at,
            last_error=None if error is None else LastError(error.code, error.type, error.message),
            created_at=job.created_at,
            finished_at=job.finished_at,
        )


async def progress(app: Holdfast[Tools], tenant: UUID, kind: Kind[Any], id: UUID) -> str:
    """What became of the job of this kind for this thing, in one line."""
    job = await app.jobs.find(kind, str(id), str(tenant))
    if job is None:
        return "no job is working on it"
    error = "" if job.last_error is None else f": {job.last_error.code}: {job.last_error.message}"
    return f"its job {job.id} is {STATUSES[job.state]}{error}"


class TenantJobs:
    """The jobs of one tenant."""

    def __init__(self, app: Holdfast[Tools], tenant: UUID, max_attempts: int) -> None:
        self._app = app
        self._tenant = str(tenant)
        self._max_attempts = max_attempts

    async def get(self, job_id: UUID) -> JobView | None:
        job = await self._own(job_id)
        return None if job is None else JobView.of(job, self._max_attempts)

    async def newest(
        self, *, status: str | None = None, type: str | None = None, after: UUID | None = None, limit: int = 100
    ) -> list[JobView]:
        """`status` is one of `STATUSES`' values. With `after`, only jobs older than that one."""
        return await self._views(await self._older(status, type, after, limit))

    async def dead_letters(self, limit: int = 100, *, after: UUID | None = None) -> list[JobView]:
        """Jobs that ended FAILED or DEAD_LETTER, the newest first. With `after`, only jobs older than that one."""
        ids = [id for status in ("FAILED", DEAD_LETTER) for id in await self._older(status, None, after, limit)]
        return await self._views(sorted(ids, reverse=True)[:limit])

    async def _views(self, ids: Sequence[UUID]) -> list[JobView]:
        found = [await self._app.jobs.get(id) for id in ids]
        return [JobView.of(job, self._max_attempts) for job in found if job is not None]

    async def _older(self, status: str | None, type: str | None, after: UUID | None, limit: int) -> list[UUID]:
        """Look at more and more of the newest IDs, because a `JobFilter` has no place to begin at."""
        wanted = JobFilter(state=None if status is None else _STATES[status], kind=type, tenant=self._tenant)
        most = limit if after is None else limit * 8
        while True:
            ids = await self._app.jobs.list_ids(wanted, most)
            older = [id for id in ids if after is None or id < after]
            if len(older) >= limit or len(ids) < most:
                return older[:limit]
            most *= 4

    async def requeue(self, job_id: UUID) -> str | None:
        """Run a final job again with all its attempts. Return Holdfast's answer, or None without such a job."""
        if await self._own(job_id) is None:
            return None
        return str((await self._app.retry([job_id]))[0])

    async def _own(self, job_id: UUID) -> Job | None:
        job = await self._app.jobs.get(job_id)
        return job if job is not None and job.tenant == self._tenant else None
