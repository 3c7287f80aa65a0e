"""The endpoints that the worker's schedulers call: reminders, and the month's bills.

Each item has its own transaction, which locks the record it belongs to and then checks again whether it is still due.
So concurrent calls, or calls after a crash in the middle of one, make nothing twice.
"""

import hmac
from datetime import date
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from fastapi.security import APIKeyHeader

from apps.invoicing.api.deliveries import add_delivery
from apps.invoicing.api.errors import ApiError, documented
from apps.invoicing.api.issuing import Draft, add_draft, issue
from apps.invoicing.api.models import MadeBill, MadeBills, MadeReminder, MadeReminders
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.database import sql
from apps.invoicing.money import Line

REMINDER_DAYS = {1: 1, 2: 7, 3: 21}
"""How many days after its due date an invoice reaches each level."""

_token = APIKeyHeader(name="x-service-token", auto_error=False, description="WORKER_API_SERVICE_TOKEN")


async def _check_token(service: TheService, given: Annotated[str | None, Depends(_token)]) -> None:
    wanted = service.settings.worker_api_service_token
    # Headers are bytes, which the framework decodes as Latin-1.
    if wanted is None or not hmac.compare_digest((given or "").encode("latin-1"), wanted.encode()):
        raise ApiError(401, "UNAUTHORIZED", "x-service-token: is missing or wrong")


router = APIRouter(tags=["internal"], dependencies=[Depends(_check_token)])

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items to make in one call.")]
_ANSWERS = documented(_401="The service token is missing or wrong.", _422="The limit is wrong.")


@router.post("/internal/scheduler/invoice-reminders", summary="Send reminders for overdue invoices", responses=_ANSWERS)
async def invoice_reminders(service: TheService, limit: Limit = 200) -> MadeReminders:
    today = await service.today()
    levels, days = list(REMINDER_DAYS), list(REMINDER_DAYS.values())
    due = await service.pool.fetch(sql("api/due_reminders"), today, levels, days, limit + 1)
    made = [await _remind(service, row["invoice_id"], row["level"]) for row in due[:limit]]
    items = [item for item in made if item is not None]
    return MadeReminders(created=len(items), items=items, more=len(due) > limit)


async def _remind(service: Service, invoice_id: UUID, level: int) -> MadeReminder | None:
    async with service.pool.acquire() as connection, connection.transaction():
        invoice = await connection.fetchrow(sql("api/lock_invoice"), invoice_id)
        if invoice is None or invoice["status"] != "ISSUED":
            return None
        key = f"reminder:{invoice_id}:{level}"
        delivery = await add_delivery(service, connection, invoice_id, "reminder", key, invoice["email"])
        if delivery is None:
            return None
        await connection.execute(sql("api/add_reminder"), invoice_id, level, delivery.id)
        return MadeReminder(invoice_id=invoice_id, level=level, delivery_id=delivery.id)


@router.post("/internal/scheduler/classes-billing", summary="Bill the month", responses=_ANSWERS)
async def classes_billing(service: TheService, limit: Limit = 200) -> MadeBills:
    """Also bills earlier months in which the scheduler did not run."""
    today = await service.today()
    due = await service.pool.fetch(sql("api/due_bills"), today.replace(day=1), limit + 1)
    made = [await _bill(service, row["enrolment_id"], row["month"], today) for row in due[:limit]]
    items = [item for item in made if item is not None]
    return MadeBills(created=len(items), items=items, more=len(due) > limit)


async def _bill(service: Service, enrolment_id: UUID, month: date, today: date) -> MadeBill | None:
    async with service.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(sql("api/lock_enrolment"), enrolment_id)
        if row is None or (row["last_month"] is not None and row["last_month"] < month):
            return None
        # A separate statement: the one above may have waited for the lock and still see the state from before that.
        if await connection.fetchval(sql("api/bill_exists"), enrolment_id, month):
            return None
        description = f"{row['class_name']}, {row['student']}, {month:%B %Y}"
        line = Line(description, Decimal(1), row["monthly_price"], row["tax_rate"])
        invoice_id = await add_draft(connection, Draft(row["customer_id"], row["currency"], [line]))
        await connection.execute(sql("api/add_bill"), enrolment_id, month, invoice_id)
        number = await issue(service, connection, invoice_id, today, row["email"])
        return MadeBill(enrolment_id=enrolment_id, month=month, invoice_id=invoice_id, number=number)
