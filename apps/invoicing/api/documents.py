"""The PDF of an invoice in the tables: `platform.document`, `platform.file`, and the job that makes them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID, uuid4

from apps.invoicing.api.errors import not_found, wrong_state
from apps.invoicing.api.service import Service
from apps.invoicing.database import from_row, sql
from apps.invoicing.jobs import INVOICE_PDF, RENDER_FAILED, RENDER_FIRST, RENDER_PDF, RenderPdf
from holdfast import Holdfast, Job, NewJob

if TYPE_CHECKING:
    from apps.invoicing.database import Connection, Pool

_CONTENT_TYPE = "application/pdf"


@dataclass(frozen=True, slots=True)
class Pdf:
    invoice_id: UUID
    number: str
    document_id: UUID
    document_state: str
    job_id: UUID | None
    error_message: str | None
    file_id: UUID
    file_state: str
    content_type: str
    bytes: int | None
    sha256: str | None

    @property
    def state(self) -> Literal["READY", "PENDING", "FAILED"]:
        """READY if both are READY, FAILED if either has FAILED."""
        states = {self.document_state, self.file_state}
        if "FAILED" in states:
            return "FAILED"
        return "READY" if states == {"READY"} else "PENDING"


async def pdf_of(service: Service, invoice_id: UUID) -> Pdf:
    """Return the PDF's current state. While it is pending, it has a job.

    The connection goes back to the pool at once, so a request that waits for a PDF holds none.
    """
    found = await _look(service.pool, invoice_id)
    if found is None or (found.state == "PENDING" and found.job_id is None):
        return await ensure_enqueued(service, invoice_id)
    return found


async def _look(connection: "Pool | Connection", invoice_id: UUID) -> Pdf | None:
    """Read the PDF's state. None if the invoice has no document."""
    row = await connection.fetchrow(sql("api/document"), invoice_id, INVOICE_PDF)
    if row is None:
        raise not_found("invoiceId", invoice_id)
    if row["status"] == "DRAFT":
        raise wrong_state("DRAFT", "issued, so it has no PDF")
    return from_row(Pdf, row) if row["document_id"] is not None else None


def render_job(app: Holdfast, document_id: UUID, invoice_id: UUID) -> NewJob:
    """A document has one job at a time, and a new one if it is still pending after that."""
    return app.job(
        RENDER_PDF, RenderPdf(document_id), key=str(document_id), if_exists="keep_live",
        priority=RENDER_FIRST, correlation_id=str(invoice_id),
    )  # fmt: skip


async def add_document(connection: "Connection", document_id: UUID, invoice_id: UUID, job_id: UUID) -> None:
    key = f"invoices/{invoice_id}.pdf"
    file_id = await connection.fetchval(sql("api/add_file"), uuid4(), key, _CONTENT_TYPE)
    await connection.execute(sql("api/add_document"), document_id, INVOICE_PDF, invoice_id, file_id, job_id)


async def ensure_enqueued(service: Service, invoice_id: UUID, gone: UUID | None = None) -> Pdf:
    """Make sure that a pending document has a job. `gone`: its current job, which will no longer settle it.

    Simultaneous requests make only one job: the first one changes the document, and the others see that.
    """
    async with service.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql("api/lock_invoice"), invoice_id)
        pdf = await _look(connection, invoice_id)
        if pdf is None:
            document_id = uuid4()
            job = render_job(service.app, document_id, invoice_id)
            await add_document(connection, document_id, invoice_id, job.id)
            await service.app.enqueue(job, conn=connection)
        elif pdf.state == "PENDING" and pdf.job_id == gone:
            enqueued = await service.app.enqueue(render_job(service.app, pdf.document_id, invoice_id), conn=connection)
            await connection.execute(sql("api/use_job"), pdf.document_id, enqueued.id)
        ensured = await _look(connection, invoice_id)
    if ensured is None:
        raise LookupError("a document that was just made is not there")
    return ensured


async def look_at_retry(service: Service, pdf: Pdf) -> Pdf:
    """Make a failed document pending again if a person retried its job.

    If the job fails again at this moment, the waiting request sees that and gives up.
    """
    job = None if pdf.job_id is None else await service.app.jobs.get(pdf.job_id)
    if job is None or job.state.is_final:
        return pdf
    await service.pool.execute(sql("api/want_again"), pdf.document_id, job.id)
    return await pdf_of(service, pdf.invoice_id)


async def give_up(service: Service, pdf: Pdf, job: Job) -> None:
    """Mark the document as failed, because its job ended without doing so: the worker died, or a person canceled it."""
    # Other errors may contain confidential details; they stay in the dead letter.
    is_ours = job.last_error is not None and job.last_error.code == RENDER_FAILED
    why = job.last_error.message if is_ours and job.last_error is not None else None
    message = why or f"the rendering job ended {job.state}"
    await service.pool.execute(sql("api/fail_document"), pdf.document_id, job.id, RENDER_FAILED, message)
