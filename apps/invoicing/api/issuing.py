"""The steps of making and issuing an invoice. They run in the transaction that is open on the caller's connection."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from apps.invoicing.api.deliveries import add_delivery, default_key
from apps.invoicing.api.documents import add_document, render_job
from apps.invoicing.api.errors import ApiError
from apps.invoicing.api.service import Service
from apps.invoicing.database import sql
from apps.invoicing.jobs import SNAPSHOT_TAX, SnapshotTax
from apps.invoicing.money import Line, totals

if TYPE_CHECKING:
    from apps.invoicing.database import Connection

MOST = Decimal("999999999999.99")


@dataclass(frozen=True, slots=True)
class Draft:
    customer_id: UUID
    currency: str
    lines: Sequence[Line]
    due_days: int = 14
    note: str = ""
    template: str = "invoice"

    def check(self) -> None:
        """Check all amounts: valid lines can still have products or sums that are out of bounds."""
        sums = totals(self.lines)
        amounts = [line.net for line in self.lines] + [sums.net, sums.tax, sums.total]
        amounts += [amount for each in sums.by_rate for amount in (each.net, each.tax)]
        if any(abs(amount) > MOST for amount in amounts):
            raise ApiError(422, "AMOUNT_TOO_LARGE", f"an amount of this invoice is beyond {MOST}")
        if sums.total < 0:
            raise ApiError(422, "TOTAL_BELOW_ZERO", "the discounts exceed the other lines")


async def add_draft(connection: "Connection", draft: Draft) -> UUID:
    invoice_id, sums = uuid4(), totals(draft.lines)
    await connection.execute(
        sql("api/add_invoice"),
        invoice_id, draft.customer_id, draft.currency, draft.template, draft.due_days, draft.note,
        sums.net, sums.tax, sums.total,
    )  # fmt: skip
    await connection.execute(
        sql("api/add_lines"),
        invoice_id,
        [line.description for line in draft.lines],
        [line.quantity for line in draft.lines],
        [line.unit_price for line in draft.lines],
        [line.tax_rate for line in draft.lines],
        [line.net for line in draft.lines],
    )
    return invoice_id


async def issue(
    service: Service, connection: "Connection", invoice_id: UUID, today: date, recipient: str | None
) -> str:
    """Issue a draft, which must be locked, and return its number. `recipient` gets it by email, unless None."""
    document_id = uuid4()
    render = render_job(service.app, document_id, invoice_id)
    await add_document(connection, document_id, invoice_id, render.id)
    snapshot = service.app.job(
        SNAPSHOT_TAX, SnapshotTax(invoice_id), key=str(invoice_id), correlation_id=str(invoice_id)
    )
    await service.app.enqueue_many([render, snapshot], conn=connection)
    if recipient is not None:
        await add_delivery(service, connection, invoice_id, "invoice", default_key(invoice_id, recipient), recipient)
    return str(await connection.fetchval(sql("api/give_number"), invoice_id, today))
