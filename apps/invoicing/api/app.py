"""The API as an application: its parts, and what is open while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from apps.invoicing.api import customers, deliveries, enrolments, errors, health, invoices, pdfs, scheduling
from apps.invoicing.api.metrics import CountRequests, Metrics
from apps.invoicing.api.service import link_secret, opened_service
from apps.invoicing.settings import Settings

_DESCRIPTION = """
Invoices with their PDFs, emails and reminders. A worker does the slow work; this API enqueues it in the transaction
that writes the records it belongs to.

Field names are in camelCase, amounts are text with a separate currency field, and every unsuccessful response is
`{"error": "CODE", "message": "…"}`.
"""


def create_api(settings: Settings) -> FastAPI:
    """Make the API. Raise Misconfigured if it cannot serve with these settings."""
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
    """Remove the error that FastAPI documents wherever it checks a parameter. The routes document their own errors."""
    foreign = described["components"]["schemas"].pop("HTTPValidationError", None)
    if foreign is not None:
        described["components"]["schemas"].pop("ValidationError")
        for operations in described["paths"].values():
            for operation in operations.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
    return described
