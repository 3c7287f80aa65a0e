"""The API as an application: what it consists of, and what is open while it is up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from apps.invoicing.api import customers, deliveries, enrolments, errors, health, invoices, pdfs, scheduling
from apps.invoicing.api.metrics import CountRequests, Metrics
from apps.invoicing.api.service import link_secret, opened_service
from apps.invoicing.settings import Settings

_DESCRIPTION = """
Invoices and their PDFs, mails and reminders. Work that takes long is done by a worker; this API enqueues it in the
transaction that writes what it belongs to.

Field names are in camelCase, amounts are text with their currency beside them, and every answer that is no success is
`{"error": "CODE", "message": "…"}`.
"""


def create_api(settings: Settings) -> FastAPI:
    """Misconfigured if it could not serve with these settings."""
    link_secret(settings)
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with opened_service(settings, metrics) as service:
            api.state.service = service
            yield

    api = FastAPI(title="Invoicing", version="1", description=_DESCRIPTION, lifespan=lifespan)
    errors.install(api)
    for module in (customers, invoices, pdfs, deliveries, enrolments, scheduling, health):
        api.include_router(module.router)
    api.add_middleware(CountRequests, metrics=metrics)
    described = api.openapi
    api.openapi = lambda: _without_foreign_errors(described())  # type: ignore[method-assign]
    return api


def _without_foreign_errors(described: dict[str, Any]) -> dict[str, Any]:
    """FastAPI adds an error of its own wherever a parameter is checked. What there is here is described already."""
    foreign = described["components"]["schemas"].pop("HTTPValidationError", None)
    if foreign is not None:
        described["components"]["schemas"].pop("ValidationError")
        for operations in described["paths"].values():
            for operation in operations.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
    return described
