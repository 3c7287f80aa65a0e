"""The audit trail, and the webhooks that follow from it.

An event gets the tenant's next number in the transaction of its effect, so numbers have no gaps. The tenant's row stays
locked until the commit: record an event last, after the rows that it is about.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from apps.passports.canonical import Json
from apps.passports.database import one, sql
from apps.passports.jobs import DELIVER_WEBHOOK, DeliverWebhook, new_job
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Connection
    from apps.passports.tools import Tools

DOCUMENT_UPLOADED = "DOCUMENT_UPLOADED"
FACTS_PARSED = "FACTS_PARSED"
SNAPSHOT_SEALED = "SNAPSHOT_SEALED"
RULES_PUBLISHED = "RULES_PUBLISHED"
PASSPORT_COMPILED = "PASSPORT_COMPILED"
PASSPORT_SIGNED = "PASSPORT_SIGNED"
QR_GENERATED = "QR_GENERATED"
WEBHOOK_DELIVERED = "WEBHOOK_DELIVERED"
WEBHOOK_FAILED = "WEBHOOK_FAILED"

ANNOUNCED = frozenset(
    {
        DOCUMENT_UPLOADED,
        FACTS_PARSED,
        SNAPSHOT_SEALED,
        RULES_PUBLISHED,
        PASSPORT_COMPILED,
        PASSPORT_SIGNED,
        QR_GENERATED,
    }
)
"""The events that an endpoint can subscribe to. Events about webhooks are not: each would cause another."""

_NAMESPACE = UUID("0b7c1f51-5d0a-5b0f-8a61-7f4d2a4c9e21")


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    aggregate_type: str
    aggregate_id: UUID
    payload: dict[str, Json]
    effect: str = ""
    """Tells apart effects of one type on one aggregate, if there can be several."""

    def id(self, tenant: UUID) -> UUID:
        return uuid5(_NAMESPACE, f"{tenant}/{self.type}/{self.aggregate_id}/{self.effect}")


async def record(connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, event: Event) -> list[UUID]:
    """Record the event, and enqueue a delivery for each subscribed endpoint. Return the IDs of the jobs."""
    event_id, deliveries, jobs = event.id(tenant), [], []
    rows = await connection.fetch(sql("webhooks/subscribed"), tenant, event.type) if event.type in ANNOUNCED else []
    endpoints = [row["webhook_endpoint_id"] for row in rows]
    if endpoints:
        deliveries = [uuid5(event_id, str(endpoint)) for endpoint in endpoints]
        jobs = [
            new_job(app, DELIVER_WEBHOOK, DeliverWebhook(each), tenant=tenant, key=str(each)) for each in deliveries
        ]
        await app.enqueue_many(jobs, conn=connection)
    # Only now, because this locks the tenant's row.
    await one(
        connection, "audit/add",
        tenant, event_id, event.type, event.aggregate_type, event.aggregate_id, json.dumps(event.payload),
    )  # fmt: skip
    if endpoints:
        await connection.execute(sql("webhooks/add_deliveries"), tenant, event_id, deliveries, endpoints)
    return [job.id for job in jobs]
