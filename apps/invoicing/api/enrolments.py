"""Enrollments of students in classes, which are billed every month."""

from decimal import Decimal
from typing import Annotated
from uuid import UUID, uuid4

import asyncpg
from fastapi import APIRouter, Path

from apps.invoicing.api.errors import ApiError, documented, existing
from apps.invoicing.api.invoices import unknown_customer
from apps.invoicing.api.issuing import Draft
from apps.invoicing.api.models import EndEnrolment, Enrolment, NewEnrolment
from apps.invoicing.api.service import Service, TheService
from apps.invoicing.database import sql
from apps.invoicing.money import Line

router = APIRouter(tags=["enrolments"])

EnrolmentId = Annotated[UUID, Path(alias="enrolmentId")]


@router.post(
    "/enrolments",
    status_code=201,
    summary="Enroll a student",
    responses=documented(_422="A field is wrong, the customer is unknown, or the first month is over a year ago."),
)
async def add_enrolment(new: NewEnrolment, service: TheService) -> Enrolment:
    """The scheduler bills each month when it begins. It bills the current and earlier months within a minute."""
    month = Line(new.class_name, Decimal(1), new.monthly_price, new.tax_rate)
    Draft(new.customer_id, new.currency, [month]).check()
    today = await service.today()
    if new.first_month < today.replace(year=today.year - 1, day=1):
        raise ApiError(422, "INVALID_REQUEST", "firstMonth: is more than a year ago; all its bills would be made now")
    enrolment_id = uuid4()
    try:
        await service.pool.execute(
            sql("api/add_enrolment"),
            enrolment_id, new.customer_id, new.class_name, new.student, new.monthly_price, new.currency, new.tax_rate,
            new.first_month, new.last_month,
        )  # fmt: skip
    except asyncpg.ForeignKeyViolationError:
        raise unknown_customer(new.customer_id) from None
    return await _read(service, enrolment_id)


@router.get("/enrolments/{enrolmentId}", summary="Read an enrolment", responses=documented(_404="No such enrolment."))
async def enrolment(enrolment_id: EnrolmentId, service: TheService) -> Enrolment:
    return await _read(service, enrolment_id)


@router.post(
    "/enrolments/{enrolmentId}/end",
    summary="Set the last month",
    responses=documented(_404="No such enrolment.", _422="The month is wrong, or before the first one."),
)
async def end_enrolment(enrolment_id: EnrolmentId, end: EndEnrolment, service: TheService) -> Enrolment:
    """Bills that were already made stay."""
    if end.last_month < (await _read(service, enrolment_id)).first_month:
        raise ApiError(422, "INVALID_REQUEST", "lastMonth: is before firstMonth")
    await service.pool.execute(sql("api/end_enrolment"), enrolment_id, end.last_month)
    return await _read(service, enrolment_id)


async def _read(service: Service, enrolment_id: UUID) -> Enrolment:
    row = await existing(service.pool, "api/enrolment", "enrolmentId", enrolment_id)
    return Enrolment.model_validate(dict(row))
