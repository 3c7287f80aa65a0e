"""The PDF of an invoice: requested and waited for here, made by a worker, read through a signed link."""

import logging
import math
import re
import time
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import JSONResponse, Response

from apps.invoicing.api.documents import Pdf, look_at_retry, pdf_of
from apps.invoicing.api.errors import ApiError, documented, existing, not_found
from apps.invoicing.api.models import PdfFailed, PdfPending, PdfReady
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.api.waiting import ClientGone, waited_for
from apps.invoicing.links import BadLink, ExpiredLink

log = logging.getLogger("invoicing.api")

router = APIRouter(tags=["PDFs"])

DEFAULT_WAIT_MS = 15_000
LONGEST_WAIT_MS = 30_000
RETRY_AFTER_MS = 1_000
_CLIENT_CLOSED_REQUEST = 499

_DIGITS = re.compile(r"[0-9]+")
# Documented by hand, because it is read as text: that way a wrong value gets a 400.
_WAIT_PARAMETER = {
    "name": "waitMs",
    "in": "query",
    "required": False,
    "description": f"How long to wait, in milliseconds. More than {LONGEST_WAIT_MS} counts as {LONGEST_WAIT_MS}.",
    "schema": {"type": "integer", "minimum": 0, "default": DEFAULT_WAIT_MS},
}


async def _wait_ms(given: Annotated[list[str] | None, Query(alias="waitMs", include_in_schema=False)] = None) -> int:
    if given is None:
        return DEFAULT_WAIT_MS
    if len(given) > 1 or not _DIGITS.fullmatch(given[0]):
        raise ApiError(400, "INVALID_WAIT_MS", "waitMs: give one whole number of milliseconds, 0 or more")
    # Check the length first: Python refuses to parse a number with thousands of digits.
    number = given[0].lstrip("0") or "0"
    return LONGEST_WAIT_MS if len(number) > len(str(LONGEST_WAIT_MS)) else min(int(number), LONGEST_WAIT_MS)


@router.get(
    "/invoices/{invoiceId}/pdf",
    summary="Wait for the PDF of an invoice",
    response_model=PdfReady,
    openapi_extra={"parameters": [_WAIT_PARAMETER]},
    responses=documented(
        _400="waitMs is not a whole number of milliseconds.", _404="No such invoice.", _409="The invoice is a draft."
    )
    | {
        202: {
            "model": PdfPending,
            "description": "Not ready yet: ask again.",
            "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "In seconds, rounded up."}},
        },
        422: {"model": PdfFailed, "description": "It could not be made. Asking again will not help."},
    },
)
async def invoice_pdf(
    invoice_id: Annotated[UUID, Path(alias="invoiceId")],
    request: Request,
    service: TheService,
    wait_ms: Annotated[int, Depends(_wait_ms)],
) -> Response:
    """Responds as soon as the PDF is ready or has failed, or with 202 when the time is up.

    This does not render anything; it only makes sure that a job for a worker exists. Proxies must allow requests of 35
    seconds, or `waitMs` must be well below their timeout.
    """
    with service.metrics.waits.track_inprogress():
        try:
            pdf = await _pdf(service, request, invoice_id, wait_ms / 1000)
        except ClientGone:
            service.metrics.answers.labels("GONE").inc()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
    service.metrics.answers.labels(pdf.state).inc()
    return _answer(service, request, pdf)


async def _pdf(service: Service, request: Request, invoice_id: UUID, seconds: float) -> Pdf:
    pdf = await pdf_of(service, invoice_id)
    if pdf.state == "FAILED":
        pdf = await look_at_retry(service, pdf)
    return pdf if pdf.state != "PENDING" else await waited_for(service, request, pdf, seconds)


def _answer(service: Service, request: Request, pdf: Pdf) -> Response:
    if pdf.state == "PENDING":
        pending = PdfPending(invoice_id=pdf.invoice_id, document_id=pdf.document_id, retry_after_ms=RETRY_AFTER_MS)
        headers = {"Retry-After": str(math.ceil(RETRY_AFTER_MS / 1000))}
        return JSONResponse(pending.model_dump(mode="json", by_alias=True), 202, headers)
    if pdf.state == "FAILED":
        failed = PdfFailed(
            message=pdf.error_message or "the PDF could not be rendered",
            invoice_id=pdf.invoice_id,
            document_id=pdf.document_id,
        )
        return JSONResponse(failed.model_dump(mode="json", by_alias=True), 422)
    expires = math.ceil(time.time() + service.settings.download_link_ttl_ms / 1000)
    base = service.settings.api_public_url or str(request.base_url).rstrip("/")
    ready = PdfReady(
        invoice_id=pdf.invoice_id,
        document_id=pdf.document_id,
        download_url=f"{base}/files/{pdf.file_id}?{service.links.query(pdf.file_id, expires)}",
        expires_at=datetime.fromtimestamp(expires, UTC),
        file_name=f"{pdf.number}.pdf",
        content_type=pdf.content_type,
        bytes=pdf.bytes or 0,
        sha256=pdf.sha256 or "",
    )
    return JSONResponse(ready.model_dump(mode="json", by_alias=True), headers={"Cache-Control": "private, no-store"})


@router.head("/files/{fileId}", include_in_schema=False)
@router.get(
    "/files/{fileId}",
    summary="Read a file through its signed link",
    response_class=Response,
    responses=documented(_403="The link is wrong, or has expired.", _404="The file is gone.")
    | {200: {"content": {"application/pdf": {}}, "description": "The file."}},
)
async def read_file(
    file_id: Annotated[UUID, Path(alias="fileId")],
    request: Request,
    service: TheService,
    expires: Annotated[str, Query(description="As in the link.")] = "",
    signature: Annotated[str, Query(description="As in the link.")] = "",
) -> Response:
    try:
        service.links.check(file_id, expires, signature, time.time())
    except BadLink:
        raise ApiError(403, "LINK_INVALID", "this link was not made by this service, or not for this file") from None
    except ExpiredLink:
        raise ApiError(403, "LINK_EXPIRED", "this link has expired; request the PDF again to get a new one") from None
    row = await existing(service.pool, "api/file", "fileId", file_id)
    headers = {
        "Content-Disposition": f'inline; filename="{row["name"]}.pdf"',
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
        "ETag": f'"{row["sha256"]}"',
    }
    if request.method == "HEAD":
        return Response(None, 200, headers | {"Content-Length": str(row["bytes"])}, row["content_type"])
    try:
        content = await service.files.read(row["storage_key"], row["sha256"])
    except FileNotFoundError:
        log.error("%s is not in the storage, though the database says so", row["storage_key"])  # noqa: TRY400
        raise not_found("fileId", file_id) from None
    return Response(content, 200, headers, row["content_type"])
