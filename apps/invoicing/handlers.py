"""What the outbox does: the PDF of an invoice, its mails, what was owed in tax.

Each handler may be run again after any part of itself: what is READY or SENT is left alone, a file has a key that was
known beforehand, and rows are written in the transaction that finishes the job.
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

from apps.invoicing.database import sql
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
from holdfast import Holdfast, Job, Permanent, RunningJob, Snooze, StaleLease, UnknownJob, exponential

log = logging.getLogger("invoicing.worker")

Payload = TypeVar("Payload")

# Of errors that may pass.
_CODES: dict[type[Exception], str] = {
    # Before its base class: the first that fits counts.
    MailServerRefused: "MAIL_SERVER_REFUSED",
    MailDeferred: "MAIL_DEFERRED",
    RendererDied: "RENDERER_DIED",
    StorageUnavailable: "STORAGE_UNAVAILABLE",
}
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_CONNECT_SECONDS = _ANSWER_SECONDS = 5.0
_PDF_SECONDS = timedelta(seconds=5)
_SHORTEST_SNOOZE, _LONGEST_SNOOZE = timedelta(milliseconds=200), timedelta(seconds=5)


def add_handlers(app: Holdfast, settings: Settings, tools: Tools) -> None:
    attempts = settings.outbox_max_attempts
    backoff = exponential(
        milliseconds(settings.outbox_retry_base_ms),
        milliseconds(settings.outbox_retry_max_ms),
        milliseconds(settings.outbox_retry_jitter_ms),
    )

    @app.handler(RENDER_PDF, attempts=attempts, backoff=backoff, limit=settings.pdf_render_concurrency)
    async def render_pdf(job: RunningJob[RenderPdf]) -> None:
        async def failed(_: str, message: str) -> None:
            await tools.pool.execute(
                sql("worker/document_failed"), job.payload.document_id, job.id, RENDER_FAILED, message
            )

        async with _telling(job, failed):
            await _render_pdf(job, tools)

    # A mail may wait for its PDF, so one place is left for whoever makes it. None waits where that is the only one, or
    # where half of the pages are made by other processes.
    mails = settings.outbox_concurrency - 1
    patience = _PDF_SECONDS if mails and (settings.worker_tick_shard_count or 1) == 1 else timedelta(0)

    @app.handler(SEND_EMAIL, attempts=attempts, backoff=backoff, limit=max(1, mails))
    async def send_email(job: RunningJob[SendEmail]) -> None:
        async def failed(code: str, _: str) -> None:
            await tools.pool.execute(sql("worker/delivery_failed"), job.payload.delivery_id, job.id, code)

        # An attempt before this one may have been interrupted when the server had the mail already.
        if job.payload.delivery_id not in tools.accepted:
            async with _telling(job, failed):
                mail = await _mail_to_send(job, tools, app, patience)
                if mail is None:
                    return
                await _hand_over(mail, job.payload.delivery_id, tools)
        # A crash here sends the mail again, with the same Message-ID: SMTP knows no transaction to be part of.
        await _record_sent(job, tools)

    @app.handler(SNAPSHOT_TAX, attempts=attempts, backoff=backoff)
    async def snapshot_tax(job: RunningJob[SnapshotTax]) -> None:
        await _snapshot_tax(job, tools)

    for kind, code in _CODES.items():
        app.error(kind, code=code)


@asynccontextmanager
async def _telling(job: RunningJob[Payload], failed: Callable[[str, str], Awaitable[None]]) -> AsyncIterator[None]:
    """If the job ends here for good and in vain, whoever looks at its document or delivery is to know."""
    try:
        yield
    except (Snooze, StaleLease):
        raise
    except Permanent as error:
        await failed(error.code, str(error))
        raise
    except Exception as error:
        if job.is_last_attempt:
            # The text of the error is in the dead letter; it may tell what is not for everybody.
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            message = f"it could not be done in {job.attempt} attempts"
            await failed(code or "ATTEMPTS_EXHAUSTED", f"{message}: {code}" if code else message)
        raise


async def _render_pdf(job: RunningJob[RenderPdf], tools: Tools) -> None:
    document_id = job.payload.document_id
    found = await tools.pool.fetchrow(sql("worker/document_to_render"), document_id)
    if found is None:
        raise Permanent("DOCUMENT_NOT_FOUND", f"there is no document {document_id}")
    if found["state"] == found["file_state"] == "READY":
        return
    invoice = PrintedInvoice(
        number=found["number"],
        template=found["template"],
        issued_on=found["issued_on"],
        due_on=found["due_on"],
        currency=found["currency"],
        customer_name=found["customer_name"],
        customer_address=found["customer_address"],
        customer_email=found["customer_email"],
        lines=await _lines(tools, found["invoice_id"]),
        note=found["note"],
    )
    try:
        content = await render(invoice, tools.templates, tools.typesetters)
    except RenderFailed as error:
        raise Permanent(RENDER_FAILED, str(error)) from error
    # What another attempt has written before it could say so is as good.
    content = await tools.files.write_once(found["storage_key"], content, found["content_type"], is_whole)
    digest = hashlib.sha256(content).hexdigest()
    async with tools.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql("worker/document_ready"), document_id, len(content), digest)
        await job.finish_in(connection)


async def _mail_to_send(
    job: RunningJob[SendEmail], tools: Tools, app: Holdfast, patience: timedelta
) -> EmailMessage | None:
    """None if it was sent already."""
    delivery_id = job.payload.delivery_id
    found = await _delivery(tools, delivery_id)
    if found["status"] == "SENT":
        return None
    if found["reminder_level"] and found["invoice_status"] == "PAID":
        raise Permanent("INVOICE_IS_PAID", "there is nothing to remind of any more")
    if found["status"] == "FAILED":
        # A person has given its job a new life.
        await tools.pool.execute(sql("worker/delivery_begun"), delivery_id, job.id)
    if found["document_state"] != "READY":
        found = await _with_pdf(found, job, tools, app, patience)
    mail = InvoiceMail(
        message_id=found["message_id"],
        recipient=found["recipient"],
        reminder_level=found["reminder_level"],
        reminders_before=found["reminders_before"],
        created_at=found["created_at"],
        customer_name=found["customer_name"],
        number=found["number"],
        issued_on=found["issued_on"],
        due_on=found["due_on"],
        total=found["total"],
        currency=found["currency"],
    )
    try:
        return compose(mail, tools.mailer.sender, await tools.files.read(found["storage_key"], found["sha256"]))
    except MailRefused as error:
        raise Permanent("MAIL_REFUSED", str(error)) from error


async def _hand_over(mail: EmailMessage, delivery_id: UUID, tools: Tools) -> None:
    try:
        await tools.mailer.send(mail, lambda: tools.accepted.add(delivery_id))
    except MailRefused as error:
        raise Permanent("MAIL_REFUSED", str(error)) from error


async def _record_sent(job: RunningJob[SendEmail], tools: Tools) -> None:
    """The server has the mail: nothing that keeps this from being written is a reason to send another one.

    So it goes on for as long as nobody stops the handler, whose lease is renewed meanwhile: with the database away that
    is for most of a lease, otherwise up to its timeout.
    """
    delivery_id, pause = job.payload.delivery_id, _FIRST_PAUSE_SECONDS
    while True:
        try:
            await _write_sent(job, tools)
        except StaleLease:
            # Somebody else has the job, and may not have sent the mail yet. Or our own commit was not answered.
            await tools.pool.execute(sql("worker/delivery_sent"), delivery_id)
            tools.accepted.discard(delivery_id)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, see above
            if pause == _FIRST_PAUSE_SECONDS:
                log.warning("delivery %s is accepted, and cannot be recorded yet: %r", delivery_id, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        else:
            tools.accepted.discard(delivery_id)
            return


async def _write_sent(job: RunningJob[SendEmail], tools: Tools) -> None:
    async with tools.pool.acquire(timeout=_CONNECT_SECONDS) as connection:
        # A server that says nothing at all is asked anew, on another connection. Not by cancellation, for which the
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
    delivery: asyncpg.Record, job: RunningJob[SendEmail], tools: Tools, app: Holdfast, patience: timedelta
) -> asyncpg.Record:
    """Waits a moment while it is being made, or about to be. Who has waited in vain comes back, at first very soon."""
    rendering = delivery["document_job_id"]
    if rendering is None:
        raise Permanent("DOCUMENT_NOT_FOUND", "the invoice has no PDF, and nobody makes one")
    made_by = await _awaited(rendering, app, patience)
    if made_by is None or made_by.state.is_final:
        # It may have ended, or somebody may have asked for another one, since the document was looked at.
        delivery = await _delivery(tools, job.payload.delivery_id)
        if delivery["document_state"] == "READY":
            return delivery
        if delivery["document_job_id"] == rendering:
            # If the document is PENDING all the same, its last worker died before it could tell.
            why = delivery["document_error"] or "its job has ended without it"
            raise Permanent(RENDER_FAILED, f"the PDF could not be made: {why}")
    waited = await app.clock.now() - job.created_at
    raise Snooze(min(max(waited / 2, _SHORTEST_SNOOZE), _LONGEST_SNOOZE))


async def _awaited(rendering: UUID, app: Holdfast, patience: timedelta) -> Job | None:
    """The job that renders, as it is then.

    Rendering is claimed first, so it is under way, or waits for a place of its own: then this is soon over. A mail that
    is put off instead is claimed again and again, each time out of a tick's share, and left to the next tick at last.
    """
    job = await app.jobs.get(rendering)
    if job is not None and not job.state.is_final and (job.run_at is None or job.run_at <= await app.clock.now()):
        with suppress(UnknownJob):
            return await app.wait(rendering, patience)
        return None
    return job


async def _snapshot_tax(job: RunningJob[SnapshotTax], tools: Tools) -> None:
    """From the lines of the invoice, which no one changes once it is issued: the same numbers whenever it runs."""
    invoice_id = job.payload.invoice_id
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
    return tuple(Line(row["description"], row["quantity"], row["unit_price"], row["tax_rate"]) for row in rows)
