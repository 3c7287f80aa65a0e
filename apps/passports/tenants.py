"""Tenants and the tokens of their API clients. Only the hash of a token is stored."""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from apps.passports.canonical import sha256
from apps.passports.codes import NotFound
from apps.passports.database import fetch_one, sql

if TYPE_CHECKING:
    from apps.passports.database import Connection, Pool

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewTenant:
    tenant_id: UUID
    token: str


async def add_tenant(connection: "Pool | Connection", name: str) -> NewTenant:
    new = NewTenant(uuid4(), secrets.token_urlsafe(_TOKEN_BYTES))
    await connection.execute(sql("tenants/add"), new.tenant_id, name, sha256(new.token.encode()))
    return new


async def replace_token(pool: "Pool", tenant: UUID) -> str:
    """Return the new token. The old one stops working at once."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    if await fetch_one(pool, "tenants/set_token", tenant, sha256(token.encode())) is None:
        raise NotFound(f"there is no tenant {tenant}")
    return token


async def tenant_with_token(pool: "Pool", token: str) -> UUID | None:
    # Found by a hash, so the time of the search says nothing about the token.
    row = await fetch_one(pool, "tenants/of_token", sha256(token.encode()))
    return None if row is None else UUID(str(row["tenant_id"]))
