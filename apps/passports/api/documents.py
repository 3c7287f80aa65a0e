"""Documents, their versions, and the facts found in them."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request

from apps.passports import documents
from apps.passports.api.errors import ApiError, documented
from apps.passports.api.models import Document, DocumentVersion, Fact, Named, Page
from apps.passports.api.service import Priority, Service, TheNumberedPage, ThePage, TheService, TheTenant
from apps.passports.codes import VALIDATION_ERROR
from apps.passports.database import transaction
from apps.passports.facts import CSV, JSON
from apps.passports.jobs import PARSE_FACTS
from apps.passports.jobs_view import DEAD_LETTER, JobView

router = APIRouter(tags=["documents"])

_BODY = {"content": {JSON: {"schema": {}}, CSV: {"schema": {"type": "string"}}}, "required": True}


@router.post("/documents", status_code=201, summary="Add a document", responses=documented(413, 415))
async def add_document(new: Named, service: TheService, tenant: TheTenant) -> Document:
    async with transaction(service.pool) as connection:
        document_id = await documents.add_document(connection, tenant, new.name)
    return await document(document_id, service, tenant)


@router.get("/documents", summary="List documents, the newest first")
async def list_documents(service: TheService, tenant: TheTenant, page: ThePage) -> Page[Document]:
    return await service.page(Document, "document_id", "documents/list", tenant, page)


@router.get("/documents/{document_id}", summary="Read a document")
async def document(document_id: UUID, service: TheService, tenant: TheTenant) -> Document:
    return Document.model_validate(dict(await service.existing("documents/get", tenant, document_id, "document")))


@router.post(
    "/documents/{document_id}/versions",
    status_code=202,
    summary="Upload a version",
    responses=documented(413, 415),
    openapi_extra={"requestBody": _BODY},
)
async def upload_version(
    document_id: UUID, request: Request, service: TheService, tenant: TheTenant, priority: Priority = None
) -> documents.Uploaded:
    """The body is the document itself, in JSON or CSV. A job finds its facts."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (JSON, CSV):
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", f"send the document as {JSON} or {CSV}")
    content = await request.body()
    if not content:
        raise ApiError(422, VALIDATION_ERROR, "body: is empty")
    async with transaction(service.pool) as connection:
        uploaded = await documents.upload(
            connection, service.app, tenant, document_id, media_type, content, priority=priority
        )
    await service.app.ring([uploaded.job_id])
    return uploaded


@router.get("/documents/{document_id}/versions", summary="List the versions of a document, the oldest first")
async def list_versions(
    document_id: UUID, service: TheService, tenant: TheTenant, page: TheNumberedPage
) -> Page[DocumentVersion]:
    await document(document_id, service, tenant)
    found = await service.page(DocumentVersion, "version", "documents/versions", tenant, page, document_id)
    return Page(items=[await _with_job(service, tenant, each) for each in found.items], next=found.next)


@router.get("/document-versions/{document_version_id}", summary="Read a version's state")
async def document_version(document_version_id: UUID, service: TheService, tenant: TheTenant) -> DocumentVersion:
    row = await service.existing("documents/version", tenant, document_version_id, "document version")
    return await _with_job(service, tenant, DocumentVersion.model_validate(dict(row)))


async def _with_job(service: Service, tenant: UUID, version: DocumentVersion) -> DocumentVersion:
    """Parsing that fails changes no row, so the job tells."""
    if version.status == "PARSED":
        return version
    job = await service.app.jobs.find(PARSE_FACTS, str(version.document_version_id), str(tenant))
    if job is None:
        return version
    seen = JobView.of(job, service.settings.bpc_jobs_max_attempts)
    status = "FAILED" if seen.status in ("FAILED", DEAD_LETTER) else version.status
    return version.model_copy(update={"status": status, "job_id": job.id, "last_error": seen.last_error})


@router.get("/document-versions/{document_version_id}/facts", summary="List the facts of a version")
async def list_facts_of_version(
    document_version_id: UUID, service: TheService, tenant: TheTenant, page: ThePage
) -> Page[Fact]:
    await document_version(document_version_id, service, tenant)
    return await service.page(Fact, "fact_id", "facts/of_document", tenant, page, document_version_id)


@router.get("/facts", summary="List facts, by type and key")
async def list_facts(
    service: TheService,
    tenant: TheTenant,
    page: ThePage,
    fact_type: Literal["attribute", "component"] | None = None,
    fact_key: Annotated[str | None, Query(min_length=1, max_length=500, pattern=r"^[^\x00]*$")] = None,
) -> Page[Fact]:
    return await service.page(Fact, "fact_id", "facts/list", tenant, page, fact_type, fact_key)
