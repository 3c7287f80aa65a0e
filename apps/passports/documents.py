"""Documents and their versions. Uploading a version enqueues the job that parses it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from apps.passports.audit import DOCUMENT_UPLOADED, Event, record
from apps.passports.codes import NotFound
from apps.passports.database import one, sql
from apps.passports.jobs import PARSE_FACTS, ParseFacts, new_job
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Connection
    from apps.passports.tools import Tools


@dataclass(frozen=True, slots=True)
class Uploaded:
    document_version_id: UUID
    version: int
    job_id: UUID


async def add_document(connection: "Connection", tenant: UUID, name: str) -> UUID:
    document_id = uuid4()
    await connection.execute(sql("documents/add"), tenant, document_id, name)
    return document_id


async def upload(
    connection: "Connection",
    app: "Holdfast[Tools]",
    tenant: UUID,
    document_id: UUID,
    media_type: str,
    content: bytes,
    *,
    priority: int | None = None,
) -> Uploaded:
    """Add a version of the document. `media_type` is application/json or text/csv. Call it in a transaction."""
    if await connection.fetchval(sql("documents/lock"), tenant, document_id) is None:
        raise NotFound(f"there is no document {document_id}")
    version_id = uuid4()
    row = await one(connection, "documents/add_version", tenant, version_id, document_id, media_type, content)
    told = {"document_id": str(document_id), "document_version_id": str(version_id), "version": row["version"]}
    job = new_job(app, PARSE_FACTS, ParseFacts(version_id), tenant=tenant, key=str(version_id), priority=priority)
    await app.enqueue(job, conn=connection)
    await record(connection, app, tenant, Event(DOCUMENT_UPLOADED, "DocumentVersion", version_id, told))
    return Uploaded(version_id, row["version"], job.id)
