"""Mails: each has a record, made in the transaction that enqueues its job."""

import re
from contextlib import suppress
from datetime import timedelta
from email.utils import parseaddr
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Header, Path

from apps.invoicing.api.errors import ApiError, documented, not_found, wrong_state
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
    summary="Send an invoice by mail",
    responses=documented(
        _400="The Idempotency-Key is not 1 to 200 printable characters of ASCII.",
        _404="No such invoice.",
        _409="The invoice is a draft, or the Idempotency-Key was used for another mail.",
        _422="The recipient is no address.",
    ),
)
async def send_email(
    invoice_id: Annotated[UUID, Path(alias="invoiceId")],
    service: TheService,
    new: NewEmail | None = None,
    idempotency_key: Annotated[
        str | None,
        Header(description="Asking again with the same key answers with the same delivery, and sends no other one."),
    ] = None,
) -> Delivery:
    """Without a key of its own, a request sends the invoice to a recipient once, however often it is made.

    A delivery that has FAILED is tried again; one that is PENDING or SENT stays as it is. The answer is the delivery;
    `GET /deliveries/{deliveryId}` tells what has become of it.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise ApiError(400, "INVALID_IDEMPOTENCY_KEY", "give 1 to 200 printable characters of ASCII without spaces")
    recipient = new.recipient if new is not None else None
    try:
        return await _asked(service, invoice_id, recipient, idempotency_key)
    except _Busy as busy:
        # A handler tells its delivery that it failed a moment before its job has ended.
        with suppress(UnknownJob):
            await service.app.wait(busy.job_id, _ENDING)
    return await _asked(service, invoice_id, recipient, idempotency_key)


@router.get(
    "/invoices/{invoiceId}/deliveries",
    summary="List the deliveries of an invoice, the oldest first",
    responses=documented(_404="No such invoice."),
)
async def deliveries(invoice_id: Annotated[UUID, Path(alias="invoiceId")], service: TheService) -> Deliveries:
    """All of them: the mail that was wished for when it was issued, those that were asked for, and reminders."""
    if await service.pool.fetchrow(sql("api/invoice"), invoice_id) is None:
        raise not_found("invoiceId", invoice_id)
    rows = await service.pool.fetch(sql("api/deliveries"), invoice_id)
    return Deliveries(items=[await _as_it_is(service, service.pool, row) for row in rows])


@router.get("/deliveries/{deliveryId}", summary="Read a delivery", responses=documented(_404="No such delivery."))
async def delivery(delivery_id: Annotated[UUID, Path(alias="deliveryId")], service: TheService) -> Delivery:
    row = await service.pool.fetchrow(sql("api/delivery"), delivery_id)
    if row is None:
        raise not_found("deliveryId", delivery_id)
    return await _as_it_is(service, service.pool, row)


class _Busy(ApiError):
    """The delivery has FAILED, and its job is not at rest yet."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(503, "DELIVERY_IS_ENDING", "its last attempt is just ending; ask again in a moment")
        self.job_id = job_id


async def _asked(service: Service, invoice_id: UUID, recipient: str | None, idempotency_key: str | None) -> Delivery:
    async with service.pool.acquire() as connection, connection.transaction():
        invoice = await connection.fetchrow(sql("api/lock_invoice"), invoice_id)
        if invoice is None:
            raise not_found("invoiceId", invoice_id)
        if invoice["status"] == "DRAFT":
            raise wrong_state("DRAFT", "issued")
        recipient = recipient or str(invoice["email"])
        # Keys of clients are kept apart from those that are made here.
        key = default_key(invoice_id, recipient) if idempotency_key is None else f"client:{idempotency_key}"
        added = await add_delivery(service, connection, invoice_id, "invoice", key, recipient)
        if added is not None:
            return added
        known = await one(connection, "api/lock_delivery_of_key", key)
        if (known["invoice_id"], known["recipient"]) != (invoice_id, recipient):
            raise ApiError(409, "IDEMPOTENCY_KEY_REUSED", "this Idempotency-Key belongs to another mail")
        delivery = await _as_it_is(service, connection, known)
        if delivery.status != "FAILED":
            return delivery
        return await _tried_again(service, connection, delivery, known["job_id"])


async def _as_it_is(service: Service, connection: "Pool | Connection", row: "asyncpg.Record") -> Delivery:
    """Who asks first puts right what nobody has told the delivery.

    That is a job that was interrupted, canceled or lost, and one that a person has given a new life.
    """
    job_id, changed = row["job_id"], None
    if row["status"] != "SENT" and job_id is not None:
        job = await service.app.jobs.get(job_id)
        if row["status"] == "FAILED":
            # One that runs may be about to end: its handler tells the delivery before that.
            if job is not None and job.state is JobState.READY:
                changed = await connection.fetchrow(sql("api/want_delivery"), row["id"], job_id, job_id)
        elif job is None:
            changed = await connection.fetchrow(sql("api/fail_delivery"), row["id"], job_id, "JOB_GONE")
        elif job.state.is_final and job.state is not JobState.SUCCEEDED:
            code = job.last_error.code if job.last_error is not None else f"JOB_{job.state.upper()}"
            changed = await connection.fetchrow(sql("api/fail_delivery"), row["id"], job_id, code)
    return _delivery(row if changed is None else changed)


async def _tried_again(service: Service, connection: "Connection", failed: Delivery, job_id: UUID | None) -> Delivery:
    """The delivery is locked: of many who ask at once, one finds it FAILED, and a worker cannot overtake this."""
    answer, tried_by = "unknown" if job_id is None else (await service.app.retry([job_id]))[0], job_id
    if job_id is None or answer == "unknown":
        # Jobs are not kept for ever.
        job = _job(service, failed.id, failed.invoice_id, "replace")
        tried_by = (await service.app.enqueue_in(connection, job)).id
    elif answer != "ready":
        raise _Busy(job_id)
    return _delivery(await one(connection, "api/want_delivery", failed.id, tried_by, job_id))


def _delivery(row: "asyncpg.Record") -> Delivery:
    return Delivery.model_validate({name: value for name, value in row.items() if name != "job_id"})


def _job(service: Service, delivery_id: UUID, invoice_id: UUID, if_exists: str = "keep") -> NewJob:
    return service.app.job(
        SEND_EMAIL,
        SendEmail(delivery_id),
        key=str(delivery_id),
        if_exists=if_exists,
        correlation_id=str(invoice_id),
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
    """A delivery and its job; None if the key has a delivery already."""
    id = uuid4()
    job = _job(service, id, invoice_id)
    domain = parseaddr(service.settings.mail_from)[1].rpartition("@")[2] or "localhost"
    row = await connection.fetchrow(
        sql("api/add_delivery"), id, invoice_id, purpose, key, recipient, f"<{id}@{domain}>", job.id
    )
    if row is None:
        return None
    await service.app.enqueue_in(connection, job)
    return _delivery(row)
