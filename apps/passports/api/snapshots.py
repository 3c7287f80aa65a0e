"""Snapshots. Sealing one leads to a passport version."""

from uuid import UUID

from fastapi import APIRouter

from apps.passports import snapshots
from apps.passports.api.errors import documented
from apps.passports.api.models import EnqueuedVersion, Page, Sealing, Snapshot, SnapshotDocuments, SnapshotSummary
from apps.passports.api.service import ThePage, TheService, TheTenant
from apps.passports.compiling import Build
from apps.passports.database import transaction

router = APIRouter(tags=["snapshots"])


@router.post("/snapshots", status_code=201, summary="Open a snapshot")
async def add_snapshot(service: TheService, tenant: TheTenant) -> Snapshot:
    async with transaction(service.pool) as connection:
        snapshot_id = await snapshots.add_snapshot(connection, tenant)
    return await snapshot(snapshot_id, service, tenant)


@router.get("/snapshots", summary="List snapshots, the newest first")
async def list_snapshots(service: TheService, tenant: TheTenant, page: ThePage) -> Page[SnapshotSummary]:
    return await service.page(SnapshotSummary, "snapshot_id", "snapshots/list", tenant, page)


@router.get("/snapshots/{snapshot_id}", summary="Read a snapshot")
async def snapshot(snapshot_id: UUID, service: TheService, tenant: TheTenant) -> Snapshot:
    return Snapshot.model_validate(dict(await service.existing("snapshots/get", tenant, snapshot_id, "snapshot")))


@router.post(
    "/snapshots/{snapshot_id}/documents",
    summary="Add parsed document versions, and with them their facts",
    responses=documented(409, 413, 415),
)
async def add_documents(
    snapshot_id: UUID, added: SnapshotDocuments, service: TheService, tenant: TheTenant
) -> Snapshot:
    async with transaction(service.pool) as connection:
        for version_id in added.document_version_ids:
            await snapshots.add_to_snapshot(connection, service.app, tenant, snapshot_id, version_id)
    return await snapshot(snapshot_id, service, tenant)


@router.post(
    "/snapshots/{snapshot_id}/seal",
    status_code=202,
    summary="Seal a snapshot, which makes a passport version",
    responses=documented(409, 413, 415),
)
async def seal(snapshot_id: UUID, given: Sealing, service: TheService, tenant: TheTenant) -> EnqueuedVersion:
    build = Build(given.passport_id, snapshot_id, given.rules_id, given.build_id, given.issued_at)
    async with transaction(service.pool) as connection:
        job_id = await snapshots.seal(connection, service.app, tenant, build, priority=given.priority)
    await service.app.ring([job_id])
    return EnqueuedVersion(passport_version_id=build.version_id(tenant), job_id=job_id)
