"""Snapshots: which document versions a passport is made of. Sealing one begins the chain:
COMPILE_PASSPORT, SIGN_PASSPORT, GENERATE_QR, and DELIVER_WEBHOOK for every event on the way.
"""

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import asyncpg

from apps.passports.audit import SNAPSHOT_SEALED, Event, record
from apps.passports.codes import Conflict, NotFound
from apps.passports.compiling import Build
from apps.passports.database import one, sql
from apps.passports.jobs import COMPILE_PASSPORT, PARSE_FACTS, new_job
from apps.passports.jobs_view import progress
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Connection
    from apps.passports.tools import Tools


async def add_snapshot(connection: "Connection", tenant: UUID) -> UUID:
    snapshot_id = uuid4()
    await connection.execute(sql("snapshots/add"), tenant, snapshot_id)
    return snapshot_id


async def add_to_snapshot(
    connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, snapshot_id: UUID, document_version_id: UUID
) -> None:
    """Add a parsed document version to an open snapshot. Adding it again changes nothing."""
    await _check_is_open(connection, tenant, snapshot_id)
    row = await connection.fetchrow(sql("documents/version"), tenant, document_version_id)
    if row is None:
        raise NotFound(f"there is no document version {document_version_id}")
    if row["status"] != "PARSED":
        why = await progress(app, tenant, PARSE_FACTS, document_version_id)
        raise Conflict(f"the document version {document_version_id} is not parsed: {why}")
    await connection.execute(sql("snapshots/add_document"), tenant, snapshot_id, document_version_id)


async def seal(
    connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, build: Build, *, priority: int | None = None
) -> UUID:
    """Seal the snapshot, and enqueue the compilation in the same transaction. Return the ID of the job.

    `build` travels in the job, because a compilation must give the same version however often it runs.
    """
    await _check_is_open(connection, tenant, build.snapshot_id)
    snapshot = await one(connection, "snapshots/get", tenant, build.snapshot_id)
    if not snapshot["document_version_ids"]:
        raise Conflict(f"the snapshot {build.snapshot_id} has no documents")
    await connection.execute(sql("snapshots/seal"), tenant, build.snapshot_id)
    job_id = await compile_again(connection, app, tenant, build, priority=priority)
    await record(connection, app, tenant, Event(SNAPSHOT_SEALED, "Snapshot", build.snapshot_id, build.as_json()))
    return job_id


async def compile_again(
    connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, build: Build, *, priority: int | None = None
) -> UUID:
    """Enqueue a compilation, also of a snapshot that is already sealed: with other rules, or as another build."""
    row = await one(connection, "passports/exists", tenant, build.passport_id, build.rules_id)
    if not row["is_there"]:
        raise NotFound(f"there is no passport {build.passport_id}")
    if not row["has_rules"]:
        raise NotFound(f"there is no rule package {build.rules_id}")
    key = str(build.version_id(tenant))
    job = new_job(app, COMPILE_PASSPORT, build, tenant=tenant, key=key, priority=priority, if_exists="keep_live")
    return (await app.enqueue(job, conn=connection)).id


async def _check_is_open(connection: "Connection", tenant: UUID, snapshot_id: UUID) -> None:
    row: asyncpg.Record | None = await connection.fetchrow(sql("snapshots/lock"), tenant, snapshot_id)
    if row is None:
        raise NotFound(f"there is no snapshot {snapshot_id}")
    if row["status"] != "OPEN":
        raise Conflict(f"the snapshot {snapshot_id} is sealed")
