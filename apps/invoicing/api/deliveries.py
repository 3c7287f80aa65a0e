"""Mails: each has a record, made in the transaction that enqueues its job."""

import re
from email.utils import parseaddr
from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Header, Path

from apps.invoicing.api.errors import ApiError, documented, not_found, wrong_state
from apps.invoicing.api.models import Delivery, NewEmail
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.database import one, sql
from apps.invoicing.jobs import SEND_EMAIL, SendEmail
from holdfast import JobState

if TYPE_CHECKING:
    import asyncpg

    from apps.invoicing.database import Connection

router = APIRouter(tags=["mails"])

_KEY = re.compile(r"[\x21-\x7e]{1,200}")


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
        Header(description="Asking again with the same key answers with the same delivery and sends nothing more."),
    ] = None,
) -> Delivery:
    """Without a key of its own, a request sends the invoice to a recipient once, however often it is made.

    The answer is the delivery; `GET /deliveries/{deliveryId}` tells what has become of it.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise ApiError(400, "INVALID_IDEMPOTENCY_KEY", "give 1 to 200 printable characters of ASCII without spaces")
    async with service.pool.acquire() as connection, connection.transaction():
        invoice = await connection.fetchrow(sql("api/lock_invoice"), invoice_id)
        if invoice is None:
            raise not_found("invoiceId", invoice_id)
        if invoice["status"] == "DRAFT":
            raise wrong_state("DRAFT", "issued")
        recipient = new.recipient if new is not None and new.recipient is not None else str(invoice["email"])
        # Keys of clients are kept apart from those that are made here.
        key = default_key(invoice_id, recipient) if idempotency_key is None else f"client:{idempotency_key}"
        delivery = await add_delivery(service, connection, invoice_id, "invoice", key, recipient)
        known = None if delivery is not None else await one(connection, "api/delivery_of_key", key)
    if delivery is None:
        delivery = await _as_it_is(service, known)
    if (delivery.invoice_id, delivery.recipient) != (invoice_id, recipient):
        raise ApiError(409, "IDEMPOTENCY_KEY_REUSED", "this Idempotency-Key belongs to another mail")
    return delivery


@router.get("/deliveries/{deliveryId}", summary="Read a delivery", responses=documented(_404="No such delivery."))
async def delivery(delivery_id: Annotated[UUID, Path(alias="deliveryId")], service: TheService) -> Delivery:
    row = await service.pool.fetchrow(sql("api/delivery"), delivery_id)
    if row is None:
        raise not_found("deliveryId", delivery_id)
    return await _as_it_is(service, row)


async def _as_it_is(service: Service, row: "asyncpg.Record | None") -> Delivery:
    """A job that was interrupted, canceled or lost has told its delivery nothing: who asks first puts that right."""
    if row is None:
        raise LookupError("a delivery that was just there is gone")
    values = dict(row)
    job_id = values.pop("job_id")
    if values["status"] == "PENDING" and job_id is not None:
        job = await service.app.jobs.get(job_id)
        if job is not None and job.state.is_final and job.state is not JobState.SUCCEEDED:
            code = job.last_error.code if job.last_error is not None else f"JOB_{job.state.upper()}"
            failed = await service.pool.fetchrow(sql("api/fail_delivery"), values["id"], code)
            values = values if failed is None else dict(failed)
    return Delivery.model_validate(values)


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
    job = service.app.job(SEND_EMAIL, SendEmail(id), key=str(id), correlation_id=str(invoice_id))
    domain = parseaddr(service.settings.mail_from)[1].rpartition("@")[2] or "localhost"
    row = await connection.fetchrow(
        sql("api/add_delivery"), id, invoice_id, purpose, key, recipient, f"<{id}@{domain}>", job.id
    )
    if row is None:
        return None
    await service.app.enqueue_in(connection, job)
    return Delivery.model_validate(dict(row))
