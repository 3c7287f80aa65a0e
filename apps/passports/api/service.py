"""What the endpoints share while the API is running: the open app, the pool, the tenant, and pages of lists."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import asyncpg
from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from apps.passports.api.errors import ApiError
from apps.passports.api.models import Body, Page
from apps.passports.codes import NotFound
from apps.passports.database import fetch, fetch_one
from apps.passports.settings import Settings
from apps.passports.tenants import tenant_with_token
from apps.passports.tools import Tools, trusted_keys
from apps.passports.worker import build_app
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Pool


Item = TypeVar("Item", bound=Body)

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_PHOTOS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    tools: Tools
    app: Holdfast[Tools]
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PHOTOS_AT_ONCE))
    """Reading a photo takes a second of a processor and 100 MB, and anyone may ask for it."""

    @property
    def pool(self) -> "Pool":
        return self.tools.pool

    async def page(
        self, model: type[Item], id: str, statement: str, tenant: UUID, asked: "Asked", *arguments: object
    ) -> Page[Item]:
        """A page of a list, as the statement pages it by $2 and $3. `id` is the column that `next` and `after` have."""
        rows = await fetch(self.pool, statement, tenant, asked.after, asked.limit + 1, *arguments)
        items = [model.model_validate(dict(row)) for row in rows[: asked.limit]]
        return Page(items=items, next=rows[asked.limit - 1][id] if len(rows) > asked.limit else None)

    async def existing(self, statement: str, tenant: UUID, id: UUID, what: str) -> asyncpg.Record:
        row = await fetch_one(self.pool, statement, tenant, id)
        if row is None:
            raise NotFound(f"there is no {what} {id}")
        return row


@asynccontextmanager
async def opened_service(settings: Settings) -> AsyncIterator[Service]:
    tools = Tools(settings)
    # Fails now, not at the first request, if the keys are wrong.
    trusted_keys(settings)
    app = build_app(settings, tools)
    async with app, tools.opened(app):
        yield Service(settings, tools, app)


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]

_bearer = HTTPBearer(auto_error=False, description="The token that `tenant add` printed.")


async def the_tenant(
    service: TheService, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> UUID:
    tenant = None if given is None else await tenant_with_token(service.pool, given.credentials)
    if tenant is None:
        raise ApiError(401, "UNAUTHORIZED", "send Authorization: Bearer, with the token of a tenant", _CHALLENGE)
    return tenant


TheTenant = Annotated[UUID, Depends(the_tenant)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A page of a list."""

    after: UUID | int | None
    limit: int


Limit = Annotated[int, Query(ge=1, le=200, description="The most items on a page.")]


def asked(
    after: Annotated[UUID | None, Query(description="The `next` of the previous page.")] = None, limit: Limit = 50
) -> Asked:
    return Asked(after, limit)


def asked_by_number(
    after: Annotated[int | None, Query(ge=0, lt=2**31, description="The `next` of the previous page.")] = None,
    limit: Limit = 50,
) -> Asked:
    return Asked(after, limit)


ThePage = Annotated[Asked, Depends(asked)]
TheNumberedPage = Annotated[Asked, Depends(asked_by_number)]
Priority = Annotated[
    int | None, Query(ge=0, le=3, description="0 critical, 1 high, 2 normal, 3 low. Unset: the usual one of its kind.")
]
