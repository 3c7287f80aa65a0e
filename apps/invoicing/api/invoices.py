"""Invoices: drafting, issuing and paying them."""

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import asyncpg
from fastapi import APIRouter, Path, Query

from apps.invoicing.api.errors import ApiError, documented, existing, wrong_state
from apps.invoicing.api.issuing import Draft, add_draft, issue
from apps.invoicing.api.models import Invoice, InvoicePage, InvoiceStatus, InvoiceSummary, Issue, NewInvoice
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.database import from_row, sql
from apps.invoicing.money import Line, totals
from apps.invoicing.template_folder import template_file, template_names

router = APIRouter(tags=["invoices"])

InvoiceId = Annotated[UUID, Path(alias="invoiceId")]


@router.post(
    "/invoices",
    status_code=201,
    summary="Write a draft",
    responses=documented(
        _422="A field is wrong, the customer or the template is unknown, or the amounts are out of bounds."
    ),
)
async def add_invoice(new: NewInvoice, service: TheService) -> Invoice:
    lines = [Line(each.description, each.quantity, each.unit_price, each.tax_rate) for each in new.lines]
    draft = Draft(new.customer_id, new.currency, lines, new.due_days, new.note, new.template)
    draft.check()
    _check_template(service, new.template)
    async with service.pool.acquire() as connection, connection.transaction():
        try:
            invoice_id = await add_draft(connection, draft)
        except asyncpg.ForeignKeyViolationError:
            raise unknown_customer(new.customer_id) from None
    return await read(service, invoice_id)


@router.get("/invoices", summary="List invoices, newest first", responses=documented(_422="A filter is wrong."))
async def list_invoices(
    service: TheService,
    status: InvoiceStatus | None = None,
    customer_id: Annotated[UUID | None, Query(alias="customerId")] = None,
    after: Annotated[UUID | None, Query(description="The `next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> InvoicePage:
    rows = await service.pool.fetch(sql("api/list_invoices"), status, customer_id, after, limit + 1)
    if not rows and after is not None and await service.pool.fetchrow(sql("api/invoice"), after) is None:
        raise ApiError(422, "INVALID_REQUEST", f"after: no invoice has the id {after}")
    items = [InvoiceSummary.model_validate(dict(row)) for row in rows[:limit]]
    return InvoicePage(items=items, next=items[-1].id if len(rows) > limit else None)


@router.get("/invoices/{invoiceId}", summary="Read an invoice", responses=documented(_404="No such invoice."))
async def invoice(invoice_id: InvoiceId, service: TheService) -> Invoice:
    return await read(service, invoice_id)


@router.post(
    "/invoices/{invoiceId}/issue",
    summary="Issue a draft",
    responses=documented(
        _404="No such invoice.",
        _409="The invoice has already been issued.",
        _422="The recipient is not an email address.",
    ),
)
async def issue_invoice(invoice_id: InvoiceId, service: TheService, wish: Issue | None = None) -> Invoice:
    """Assign the invoice's number and dates, and request its PDF, its tax snapshot and, if asked, an email.

    All of this is one transaction: after a response other than 200, none of it has happened.
    `GET /invoices/{invoiceId}/deliveries` returns the status of the email.
    """
    today = await service.today()
    async with service.pool.acquire() as connection, connection.transaction():
        row = await existing(connection, "api/lock_invoice", "invoiceId", invoice_id)
        if row["status"] != "DRAFT":
            raise wrong_state(row["status"], "a draft")
        recipient = (wish.recipient or str(row["email"])) if wish is not None and wish.send_email else None
        await issue(service, connection, invoice_id, today, recipient)
    return await read(service, invoice_id)


@router.post(
    "/invoices/{invoiceId}/pay",
    summary="Mark an invoice as paid",
    responses=documented(_404="No such invoice.", _409="The invoice is a draft, or already paid."),
)
async def pay_invoice(invoice_id: InvoiceId, service: TheService) -> Invoice:
    """No more reminders are made from then on."""
    async with service.pool.acquire() as connection, connection.transaction():
        row = await existing(connection, "api/lock_invoice", "invoiceId", invoice_id)
        if row["status"] != "ISSUED":
            raise wrong_state(row["status"], "waiting to be paid")
        await connection.execute(sql("api/pay_invoice"), invoice_id)
    return await read(service, invoice_id)


def _check_template(service: Service, template: str) -> None:
    """Check the template now, because the invoice can no longer be changed once it has its number."""
    folder = service.settings.templates_folder
    if template_file(folder, template) is None:
        there = ", ".join(template_names(folder)) or "none"
        raise ApiError(422, "INVALID_REQUEST", f"template: there is no template {template!r}; there are {there}")


def unknown_customer(customer_id: UUID) -> ApiError:
    return ApiError(422, "CUSTOMER_NOT_FOUND", f"customerId: no customer has the id {customer_id}")


async def read(service: Service, invoice_id: UUID) -> Invoice:
    row = await existing(service.pool, "api/invoice", "invoiceId", invoice_id)
    lines = await service.pool.fetch(sql("api/lines"), invoice_id)
    taxes = [asdict(each) for each in totals(from_row(Line, line) for line in lines).by_rate]
    return Invoice.model_validate({**row, "lines": [dict(line) for line in lines], "taxes": taxes})
