"""The outbox's handlers: the PDF of an invoice, its emails, and the tax snapshot.

Each handler may be run again after a crash at any point: it leaves READY and SENT records alone, a file's key is known
in advance, and rows are written in the transaction that finishes the job.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from email.message import EmailMessage
from typing import TypeVar
from uuid import UUID

import asyncpg

from apps.invoicing.database import from_row, sql
from apps.invoicing.jobs import (
    INVOICE_PDF,
    RENDER_FAILED,
    RENDER_PDF,
    SEND_EMAIL,
    SNAPSHOT_TAX,
    RenderPdf,
    SendEmail,
    SnapshotTax,
)
from apps.invoicing.mail import InvoiceMail, MailDeferred, MailRefused, MailServerRefused, compose
from apps.invoicing.money import Line, totals
from apps.invoicing.rendering import PrintedInvoice, RendererDied, RenderFailed, is_whole, render
from apps.invoicing.settings import Settings, milliseconds
from apps.invoicing.storage import StorageUnavailable
from apps.invoicing.tools import Tools
from holdfast import Holdfast, Job, Permanent, RunningJob, Snooze, StaleLease, UnknownJob
from holdfast.backoff import exponential

log = logging.getLogger("invoicing.worker")

Payload = TypeVar("Payload")

# Codes of errors that may be temporary.
_CODES: dict[type[Exception], str] = {
    # Before its base class, because the first match counts.
    MailServerRefused: "MAIL_SERVER_REFUSED",
    MailDeferred: "MAIL_DEFERRED",
    RendererDied: "RENDERER_DIED",
    StorageUnavailable: "STORAGE_UNAVAILABLE",
}
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_CONNECT_SECONDS = _ANSWER_SECONDS = 5.0
_PDF_SECONDS = timedelta(seconds=5)
_SHORTEST_SNOOZE, _LONGEST_SNOOZE = timedelta(milliseconds=200), timedelta(seconds=5)


def add_handlers(app: Holdfast[Tools], settings: Settings) -> None:
    attempts = settings.outbox_max_attempts
    backoff = exponential(
        milliseconds(settings.outbox_retry_base_ms),
        milliseconds(settings.outbox_retry_max_ms),
        milliseconds(settings.outbox_retry_jitter_ms),
    )

    @app.handler(RENDER_PDF, attempts=attempts, backoff=backoff, limit=settings.pdf_render_concurrency)
    async def render_pdf(job: RunningJob[RenderPdf, Tools]) -> None:
        async def failed(_: str, message: str) -> None:
            await job.state.pool.execute(
                sql("worker/document_failed"), job.payload.document_id, job.id, RENDER_FAILED, message
            )

        async with _telling(job, failed):
            await _render_pdf(job)

    # An email may wait for its PDF, so one slot is left for rendering. No email waits if that is the only slot, or if
    # other processes render some of the PDFs.
    mails = settings.outbox_concurrency - 1
    patience = _PDF_SECONDS if mails and (settings.worker_tick_shard_count or 1) == 1 else timedelta(0)

    @app.handler(SEND_EMAIL, attempts=attempts, backoff=backoff, limit=max(1, mails))
    async def send_email(job: RunningJob[SendEmail, Tools]) -> None:
        async def failed(code: str, _: str) -> None:
            await job.state.pool.execute(sql("worker/delivery_failed"), job.payload.delivery_id, job.id, code)

        # An earlier attempt may have been interrupted after the server accepted the email.
        if job.payload.delivery_id not in job.state.accepted:
            async with _telling(job, failed):
                mail = await _mail_to_send(job, app, patience)
                if mail is None:
                    return
                await _hand_over(mail, job)
        # A crash here sends the email again, with the same Message-ID: SMTP has no transactions.
        await _record_sent(job)

    @app.handler(SNAPSHOT_TAX, attempts=attempts, backoff=backoff)
    async def snapshot_tax(job: RunningJob[SnapshotTax, Tools]) -> None:
        await _snapshot_tax(job)

    for kind, code in _CODES.items():
        app.error(kind, code=code)


@asynccontextmanager
async def _telling(job: RunningJob[Payload], failed: Callable[[str, str], Awaitable[None]]) -> AsyncIterator[None]:
    """If the job fails for good, record that in its document or delivery."""
    try:
        yield
    except (Snooze, StaleLease):
        raise
    except Permanent as error:
        await failed(error.code, str(error))
        raise
    except Exception as error:
        if job.is_last_attempt:
            # The error's text is only in the dead letter, because it may contain confidential details.
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            message = f"not done after {job.attempt} attempts"
            await failed(code or "ATTEMPTS_EXHAUSTED", f"{message}: {code}" if code else message)
        raise


async def _render_pdf(job: RunningJob[RenderPdf, Tools]) -> None:
    tools, document_id = job.state, job.payload.document_id
    found = await tools.pool.fetchrow(sql("worker/document_to_render"), document_id)
    if found is None:
        raise Permanent("DOCUMENT_NOT_FOUND", f"there is no document {document_id}")
    if found["state"] == found["file_state"] == "READY":
        return
    invoice = from_row(PrintedInvoice, found, lines=await _lines(tools, found["invoice_id"]))
    try:
        content = await render(invoice, tools.templates, tools.typesetters)
    except RenderFailed as error:
        raise Permanent(RENDER_FAILED, str(error)) from error
    # Another attempt may have written the file without recording it. That file is just as good.
    content = await tools.files.write_once(found["storage_key"], content, found["content_type"], is_whole)
    digest = hashlib.sha256(content).hexdigest()
    async with tools.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql("worker/document_ready"), document_id, len(content), digest)
        await job.finish_in(connection)


async def _mail_to_send(
    job: RunningJob[SendEmail, Tools], app: Holdfast[Tools], patience: timedelta
) -> EmailMessage | None:
    """Compose the email to send. None if it has already been sent."""
    tools, delivery_id = job.state, job.payload.delivery_id
    found = await _delivery(tools, delivery_id)
    if found["status"] == "SENT":
        return None
    if found["reminder_level"] and found["invoice_status"] == "PAID":
        raise Permanent("INVOICE_IS_PAID", "the invoice has been paid, so no reminder is needed")
    if found["status"] == "FAILED":
        # A person has retried its job.
        await tools.pool.execute(sql("worker/delivery_begun"), delivery_id, job.id)
    if found["document_state"] != "READY":
        found = await _with_pdf(found, job, app, patience)
    pdf = await tools.files.read(found["storage_key"], found["sha256"])
    try:
        return compose(from_row(InvoiceMail, found), tools.mailer.sender, pdf)
    except MailRefused as error:
        raise Permanent("MAIL_REFUSED", str(error)) from error


async def _hand_over(mail: EmailMessage, job: RunningJob[SendEmail, Tools]) -> None:
    try:
        await job.state.mailer.send(mail, lambda: job.state.accepted.add(job.payload.delivery_id))
    except MailRefused as error:
        raise Permanent("MAIL_REFUSED", str(error)) from error


async def _record_sent(job: RunningJob[SendEmail, Tools]) -> None:
    """Record that the email was sent. The server has it, so a failure to record that is no reason to send it again.

    This retries until the handler is stopped. Its lease is renewed in the meantime, so it has until its timeout, or
    most of a lease if the database is unavailable.
    """
    tools, delivery_id, pause = job.state, job.payload.delivery_id, _FIRST_PAUSE_SECONDS
    while True:
        try:
            await _write_sent(job)
        except StaleLease:
            # Another worker has the job and may not have sent the email yet, or our own commit got no answer.
            await tools.pool.execute(sql("worker/delivery_sent"), delivery_id)
            tools.accepted.discard(delivery_id)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, see above
            if pause == _FIRST_PAUSE_SECONDS:
                log.warning("delivery %s is accepted but cannot be recorded yet: %r", delivery_id, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            tools.accepted.discard(delivery_id)
            return


async def _write_sent(job: RunningJob[SendEmail, Tools]) -> None:
    async with job.state.pool.acquire(timeout=_CONNECT_SECONDS) as connection:
        # If the server does not answer, terminate the connection and try again on another one. Do not cancel: the
        # driver would wait for that server.
        patience = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, connection.terminate)
        try:
            async with connection.transaction():
                await connection.execute(sql("worker/delivery_sent"), job.payload.delivery_id)
                await job.finish_in(connection)
        finally:
            patience.cancel()


async def _delivery(tools: Tools, delivery_id: UUID) -> asyncpg.Record:
    found = await tools.pool.fetchrow(sql("worker/delivery_to_send"), delivery_id, INVOICE_PDF)
    if found is None:
        raise Permanent("DELIVERY_NOT_FOUND", f"there is no delivery {delivery_id}")
    return found


async def _with_pdf(
    delivery: asyncpg.Record, job: RunningJob[SendEmail, Tools], app: Holdfast[Tools], patience: timedelta
) -> asyncpg.Record:
    """Wait a moment for a PDF that is being made or is about to be. If it is not ready, snooze, briefly at first."""
    rendering = delivery["document_job_id"]
    if rendering is None:
        raise Permanent("DOCUMENT_NOT_FOUND", "the invoice has no PDF, and no job makes one")
    made_by = await _awaited(rendering, app, patience)
    if made_by is None or made_by.state.is_final:
        # The job may have ended, or another one may have been requested, since the document was read.
        delivery = await _delivery(job.state, job.payload.delivery_id)
        if delivery["document_state"] == "READY":
            return delivery
        if delivery["document_job_id"] == rendering:
            # If the document is still PENDING, its last worker died before it could record the failure.
            why = delivery["document_error"] or "its job has ended without it"
            raise Permanent(RENDER_FAILED, f"the PDF could not be made: {why}")
    waited = await app.clock.now() - job.created_at
    raise Snooze(min(max(waited / 2, _SHORTEST_SNOOZE), _LONGEST_SNOOZE))


async def _awaited(rendering: UUID, app: Holdfast[Tools], patience: timedelta) -> Job | None:
    """Wait for the rendering job, and return it as it is afterwards.

    Rendering is claimed first, so it is running or waits for its own slot, and this wait is short. Snoozing the email
    instead would claim it again and again, each time using up some of the tick's share, until it is left for the next
    tick.
    """
    job = await app.jobs.get(rendering)
    if job is not None and not job.state.is_final and (job.run_at is None or job.run_at <= await app.clock.now()):
        with suppress(UnknownJob):
            return await app.wait(rendering, patience)
        return None
    return job


async def _snapshot_tax(job: RunningJob[SnapshotTax, Tools]) -> None:
    """Compute from the invoice's lines, which never change once it is issued, so every run gives the same numbers."""
    tools, invoice_id = job.state, job.payload.invoice_id
    currency = await tools.pool.fetchval(sql("worker/invoice_to_tax"), invoice_id)
    if currency is None:
        raise Permanent("INVOICE_NOT_FOUND", f"there is no invoice {invoice_id}, or it is not issued")
    sums = totals(await _lines(tools, invoice_id)).by_rate
    columns = [each.rate for each in sums], [each.net for each in sums], [each.tax for each in sums]
    async with tools.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql("worker/save_tax_snapshot"), invoice_id, currency, *columns)
        await job.finish_in(connection)


async def _lines(tools: Tools, invoice_id: UUID) -> tuple[Line, ...]:
    rows = await tools.pool.fetch(sql("worker/lines_to_print"), invoice_id)
    return tuple(from_row(Line, row) for row in rows)
