"""Emails. Each has a delivery record, made in the transaction that enqueues its job."""

import re
from contextlib import suppress
from datetime import timedelta
from email.utils import parseaddr
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Header, Path

from apps.invoicing.api.errors import ApiError, documented, existing, wrong_state
from apps.invoicing.api.models import Deliveries, Delivery, NewEmail
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.database import one, sql
from apps.invoicing.jobs import SEND_EMAIL, SendEmail
from holdfast import JobState, NewJob, UnknownJob

if TYPE_CHECKING:
    import asyncpg

    from apps.invoicing.database import Connection, Pool

router = APIRouter(tags=["mails"])

_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_ENDING = timedelta(seconds=2)


@router.post(
    "/invoices/{invoiceId}/email",
    status_code=202,
    summary="Send an invoice by email",
    responses=documented(
        _400="The Idempotency-Key is not 1 to 200 printable ASCII characters.",
        _404="No such invoice.",
        _409="The invoice is a draft, or the Idempotency-Key was used for another email.",
        _422="The recipient is not an email address.",
    ),
)
async def send_email(
    invoice_id: Annotated[UUID, Path(alias="invoiceId")],
    service: TheService,
    new: NewEmail | None = None,
    idempotency_key: Annotated[
        str | None,
        Header(description="A repeated request with the same key returns the same delivery and sends nothing again."),
    ] = None,
) -> Delivery:
    """Without an Idempotency-Key, repeated requests send the invoice to a recipient only once.

    A FAILED delivery is tried again; a PENDING or SENT one stays as it is. The response is the delivery;
    `GET /deliveries/{deliveryId}` returns its current status.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise ApiError(400, "INVALID_IDEMPOTENCY_KEY", "give 1 to 200 printable ASCII characters without spaces")
    recipient = new.recipient if new is not None else None
    try:
        return await _asked(service, invoice_id, recipient, idempotency_key)
    except _Busy as busy:
        # A handler marks its delivery FAILED a moment before its job ends.
        with suppress(UnknownJob):
            await service.app.wait(busy.job_id, _ENDING)
    return await _asked(service, invoice_id, recipient, idempotency_key)


@router.get(
    "/invoices/{invoiceId}/deliveries",
    summary="List the deliveries of an invoice, oldest first",
    responses=documented(_404="No such invoice."),
)
async def deliveries(invoice_id: Annotated[UUID, Path(alias="invoiceId")], service: TheService) -> Deliveries:
    """List all deliveries: the email requested when the invoice was issued, later requests, and reminders."""
    await existing(service.pool, "api/invoice", "invoiceId", invoice_id)
    rows = await service.pool.fetch(sql("api/deliveries"), invoice_id)
    return Deliveries(items=[await _as_it_is(service, service.pool, row) for row in rows])


@router.get("/deliveries/{deliveryId}", summary="Read a delivery", responses=documented(_404="No such delivery."))
async def delivery(delivery_id: Annotated[UUID, Path(alias="deliveryId")], service: TheService) -> Delivery:
    row = await existing(service.pool, "api/delivery", "deliveryId", delivery_id)
    return await _as_it_is(service, service.pool, row)


class _Busy(ApiError):
    """The delivery has FAILED, but its job has not ended yet."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(503, "DELIVERY_IS_ENDING", "its last attempt is still ending; try again in a moment")
        self.job_id = job_id


async def _asked(service: Service, invoice_id: UUID, recipient: str | None, idempotency_key: str | None) -> Delivery:
    async with service.pool.acquire() as connection, connection.transaction():
        invoice = await existing(connection, "api/lock_invoice", "invoiceId", invoice_id)
        if invoice["status"] == "DRAFT":
            raise wrong_state("DRAFT", "issued")
        recipient = recipient or str(invoice["email"])
        # The prefix separates clients' keys from keys that are made here.
        key = default_key(invoice_id, recipient) if idempotency_key is None else f"client:{idempotency_key}"
        added = await add_delivery(service, connection, invoice_id, "invoice", key, recipient)
        if added is not None:
            return added
        known = await one(connection, "api/lock_delivery_of_key", key)
        if (known["invoice_id"], known["recipient"]) != (invoice_id, recipient):
            raise ApiError(409, "IDEMPOTENCY_KEY_REUSED", "this Idempotency-Key belongs to another email")
        delivery = await _as_it_is(service, connection, known)
        if delivery.status != "FAILED":
            return delivery
        return await _tried_again(service, connection, delivery, known["job_id"])


async def _as_it_is(service: Service, connection: "Pool | Connection", row: "asyncpg.Record") -> Delivery:
    """Return the delivery, and first correct its status if nothing else did.

    That is the case if its job was interrupted, canceled or lost, or if a person retried it.
    """
    job_id, changed = row["job_id"], None
    if row["status"] != "SENT" and job_id is not None:
        job = await service.app.jobs.get(job_id)
        if row["status"] == "FAILED":
            # Ignore a running job: it may be about to end, and its handler updates the delivery before that.
            if job is not None and job.state is JobState.READY:
                changed = await connection.fetchrow(sql("api/want_delivery"), row["id"], job_id, job_id)
        elif job is None:
            changed = await connection.fetchrow(sql("api/fail_delivery"), row["id"], job_id, "JOB_GONE")
        elif job.state.is_final and job.state is not JobState.SUCCEEDED:
            code = job.last_error.code if job.last_error is not None else f"JOB_{job.state.upper()}"
            changed = await connection.fetchrow(sql("api/fail_delivery"), row["id"], job_id, code)
    return _delivery(row if changed is None else changed)


async def _tried_again(service: Service, connection: "Connection", failed: Delivery, job_id: UUID | None) -> Delivery:
    """Try a failed delivery again. It is locked: only one of several requests finds it FAILED, and no worker can
    overtake this."""
    answer, tried_by = "unknown" if job_id is None else (await service.app.retry([job_id]))[0], job_id
    if job_id is None or answer == "unknown":
        # Jobs are not kept forever.
        tried_by = (await service.app.enqueue(_job(service, failed.id, failed.invoice_id), conn=connection)).id
    elif answer != "ready":
        raise _Busy(job_id)
    return _delivery(await one(connection, "api/want_delivery", failed.id, tried_by, job_id))


def _delivery(row: "asyncpg.Record") -> Delivery:
    return Delivery.model_validate({name: value for name, value in row.items() if name != "job_id"})


def _job(service: Service, delivery_id: UUID, invoice_id: UUID) -> NewJob:
    """A delivery has one job at a time, and can have another one after that."""
    return service.app.job(
        SEND_EMAIL, SendEmail(delivery_id), key=str(delivery_id), if_exists="keep_live", correlation_id=str(invoice_id)
    )


def default_key(invoice_id: UUID, recipient: str) -> str:
    return f"invoice:{invoice_id}:{recipient}"


async def add_delivery(
    service: Service,
    connection: "Connection",
    invoice_id: UUID,
    purpose: Literal["invoice", "reminder"],
    key: str,
    recipient: str,
) -> Delivery | None:
    """Add a delivery and its job. Return None if the key already has a delivery."""
    id = uuid4()
    job = _job(service, id, invoice_id)
    domain = parseaddr(service.settings.mail_from)[1].rpartition("@")[2] or "localhost"
    row = await connection.fetchrow(
        sql("api/add_delivery"), id, invoice_id, purpose, key, recipient, f"<{id}@{domain}>", job.id
    )
    if row is None:
        return None
    await service.app.enqueue(job, conn=connection)
    return _delivery(row)
