"""Webhook endpoints: their addresses, secrets and subscriptions."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from apps.passports.audit import ANNOUNCED
from apps.passports.codes import Conflict, NotFound
from apps.passports.database import sql
from holdfast.webhooks import Policy, check_url, new_secret

if TYPE_CHECKING:
    from apps.passports.database import Connection


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    webhook_endpoint_id: UUID
    secret: str = field(repr=False)


async def add_endpoint(connection: "Connection", tenant: UUID, url: str, policy: Policy) -> NewEndpoint:
    """Raise WebhookAddressRefused for an address to which no webhook would be sent."""
    check_url(url, policy)
    new = NewEndpoint(uuid4(), new_secret())
    await connection.execute(sql("webhooks/add_endpoint"), tenant, new.webhook_endpoint_id, url, new.secret)
    return new


async def begin_rotation(connection: "Connection", tenant: UUID, endpoint_id: UUID) -> str:
    """Return the next secret. From now on it signs X-BPC-Signature-Next; the old one still signs X-BPC-Signature."""
    await _check_exists(connection, tenant, endpoint_id)
    secret = new_secret()
    if await connection.fetchval(sql("webhooks/begin_rotation"), tenant, endpoint_id, secret) is None:
        raise Conflict(f"the webhook endpoint {endpoint_id} has a next secret already; finish that rotation first")
    return secret


async def end_rotation(connection: "Connection", tenant: UUID, endpoint_id: UUID) -> None:
    """Replace the secret with the next one."""
    await _check_exists(connection, tenant, endpoint_id)
    if await connection.fetchval(sql("webhooks/end_rotation"), tenant, endpoint_id) is None:
        raise Conflict(f"the webhook endpoint {endpoint_id} has no next secret")


async def disable(connection: "Connection", tenant: UUID, endpoint_id: UUID) -> None:
    """Send nothing more to the endpoint, not even what is pending. Disabling it again changes nothing."""
    if await connection.fetchval(sql("webhooks/disable"), tenant, endpoint_id) is None:
        raise NotFound(f"there is no webhook endpoint {endpoint_id}")


async def subscribe(connection: "Connection", tenant: UUID, endpoint_id: UUID, event_type: str) -> None:
    """Subscribing again changes nothing."""
    if event_type not in ANNOUNCED:
        raise Conflict(f"{event_type!r} is not one of {', '.join(sorted(ANNOUNCED))}")
    await _check_exists(connection, tenant, endpoint_id)
    await connection.execute(sql("webhooks/subscribe"), tenant, endpoint_id, event_type)


async def unsubscribe(connection: "Connection", tenant: UUID, endpoint_id: UUID, event_type: str) -> None:
    if await connection.fetchval(sql("webhooks/unsubscribe"), tenant, endpoint_id, event_type) is None:
        raise NotFound(f"the webhook endpoint {endpoint_id} is not subscribed to {event_type}")


async def _check_exists(connection: "Connection", tenant: UUID, endpoint_id: UUID) -> None:
    if await connection.fetchrow(sql("webhooks/endpoint"), tenant, endpoint_id) is None:
        raise NotFound(f"there is no webhook endpoint {endpoint_id}")
