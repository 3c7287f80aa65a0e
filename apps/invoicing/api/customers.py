"""Customers, who receive invoices."""

from typing import Annotated
from uuid import UUID, uuid4

from fastapi import APIRouter, Path

from apps.invoicing.api.errors import documented, existing
from apps.invoicing.api.models import Customer, NewCustomer
from apps.invoicing.api.service import TheService
from apps.invoicing.database import one

router = APIRouter(tags=["customers"])


@router.post("/customers", status_code=201, summary="Add a customer", responses=documented(_422="A field is wrong."))
async def add_customer(new: NewCustomer, service: TheService) -> Customer:
    row = await one(service.pool, "api/add_customer", uuid4(), new.name, new.email, new.address)
    return Customer.model_validate(dict(row))


@router.get("/customers/{customerId}", summary="Read a customer", responses=documented(_404="No such customer."))
async def customer(customer_id: Annotated[UUID, Path(alias="customerId")], service: TheService) -> Customer:
    row = await existing(service.pool, "api/customer", "customerId", customer_id)
    return Customer.model_validate(dict(row))
