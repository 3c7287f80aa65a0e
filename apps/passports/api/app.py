"""The API as an application: its parts, and what is open while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI

from apps.passports.api import documents, errors, health, jobs, passports, rules, snapshots, verifier, webhooks
from apps.passports.api.bodies import BoundedBodies
from apps.passports.api.service import opened_service, the_tenant
from apps.passports.settings import Settings

_MOST_BYTES = 512 * 1024
"""Of a JSON request, which is a set of rules at most."""
_DESCRIPTION = """
Battery passports for many tenants. A worker does the slow work; this API enqueues it in the transaction of the change
that it belongs to.

Send `Authorization: Bearer` with the token of a tenant. Things of other tenants are not found. Lists are paged: ask
again with `after` set to `next`. Every unsuccessful response is problem+json with a `code`.
"""


def create_api(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with opened_service(settings) as service:
            api.state.service = service
            yield

    # The usual pages of documentation would load scripts from elsewhere.
    api = FastAPI(
        title="Battery passports",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(api)
    tenants = APIRouter(
        prefix="/v1", dependencies=[Depends(the_tenant)], responses=errors.documented(401, 404, 422, 503)
    )
    for module in (documents, snapshots, rules, passports, jobs, webhooks):
        tenants.include_router(module.router)
    api.include_router(tenants)
    api.include_router(health.router, prefix="/v1")
    api.include_router(verifier.router)

    def limit(path: str) -> int:
        if path == verifier.PATH:
            return verifier.most_bytes(settings)
        return settings.bpc_payload_max_bytes if path.startswith("/v1/documents/") else _MOST_BYTES

    api.add_middleware(BoundedBodies, limit=limit)
    return api
