"""Jobs, dead letters and the audit trail."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from apps.passports.api.errors import documented
from apps.passports.api.models import AuditEvent, EnqueuedJob, JobStatus, Page
from apps.passports.api.service import Asked, Service, TheNumberedPage, ThePage, TheService, TheTenant
from apps.passports.codes import Conflict, NotFound
from apps.passports.jobs_view import DEAD_LETTER, JobView, TenantJobs

router = APIRouter(tags=["jobs"])


@router.get("/jobs", summary="List jobs, the newest first")
async def list_jobs(
    service: TheService,
    tenant: TheTenant,
    page: ThePage,
    status: JobStatus | None = None,
    type: Annotated[str | None, Query(min_length=1, max_length=100, pattern=r"^[^\x00]*$")] = None,
) -> Page[JobView]:
    after = page.after if isinstance(page.after, UUID) else None
    return _page(await _jobs(service, tenant).newest(status=status, type=type, after=after, limit=page.limit + 1), page)


@router.get("/jobs/{job_id}", summary="Read a job")
async def job(job_id: UUID, service: TheService, tenant: TheTenant) -> JobView:
    return await _existing(service, tenant, job_id)


@router.get("/dead-letters", summary="List jobs that ended FAILED or DEAD_LETTER, the newest first")
async def list_dead_letters(service: TheService, tenant: TheTenant, page: ThePage) -> Page[JobView]:
    after = page.after if isinstance(page.after, UUID) else None
    return _page(await _jobs(service, tenant).dead_letters(page.limit + 1, after=after), page)


@router.post(
    "/dead-letters/{job_id}/requeue",
    status_code=202,
    summary="Run a dead letter again, with all its attempts",
    responses=documented(409),
)
async def requeue(job_id: UUID, service: TheService, tenant: TheTenant) -> EnqueuedJob:
    found = await _existing(service, tenant, job_id)
    if found.status not in ("FAILED", DEAD_LETTER):
        raise Conflict(f"the job {job_id} is {found.status}, not a dead letter")
    answer = await _jobs(service, tenant).requeue(job_id)
    if answer != "ready":
        raise Conflict(f"the job {job_id} was not requeued: it is {answer}")
    await service.app.ring([job_id])
    return EnqueuedJob(job_id=job_id)


@router.get("/audit-events", summary="List audit events, the oldest first", tags=["audit"])
async def list_audit_events(service: TheService, tenant: TheTenant, page: TheNumberedPage) -> Page[AuditEvent]:
    return await service.page(AuditEvent, "number", "audit/list", tenant, page)


def _jobs(service: Service, tenant: UUID) -> TenantJobs:
    return TenantJobs(service.app, tenant, service.settings.bpc_jobs_max_attempts)


async def _existing(service: Service, tenant: UUID, job_id: UUID) -> JobView:
    found = await _jobs(service, tenant).get(job_id)
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    return found


def _page(found: list[JobView], page: Asked) -> Page[JobView]:
    items = found[: page.limit]
    return Page(items=items, next=items[-1].job_id if len(found) > page.limit else None)
