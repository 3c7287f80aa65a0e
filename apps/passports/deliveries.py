"""The state of webhook deliveries: recording attempts, settling those whose job ended without them, redelivering."""

import json
from typing import TYPE_CHECKING
from uuid import UUID

from apps.passports.audit import WEBHOOK_FAILED, Event, record
from apps.passports.codes import Conflict
from apps.passports.database import fetch, one, sql, transaction
from apps.passports.jobs import DELIVER_WEBHOOK, DeliverWebhook, new_job
from holdfast import Holdfast
from holdfast.webhooks import Response

if TYPE_CHECKING:
    from apps.passports.database import Connection, Pool
    from apps.passports.tools import Tools

PENDING, DELIVERED, FAILED = "PENDING", "DELIVERED", "FAILED"
_PAGE = 1000


async def record_attempt(
    connection: "Connection", tenant: UUID, delivery_id: UUID, status: str, response: Response | None,
    message: str | None = None,
) -> bool:  # fmt: skip
    """Write down what came back. Return False, and change nothing, if the delivery is not pending."""
    answer: tuple[object, ...] = (None, None, None)
    if response is not None:
        answer = response.status, json.dumps(dict(response.headers)), response.body
    changed = await connection.fetchval(
        sql("webhooks/record_attempt"), tenant, delivery_id, status, *answer, _storable(message)
    )
    return changed is not None


async def settle(pool: "Pool", app: "Holdfast[Tools]", tenant: UUID, delivery_id: UUID) -> bool:
    """Fail a pending delivery if its job is final or gone. Return whether it did."""
    async with transaction(pool) as connection:
        # Locked first: a redelivery locks the row before it enqueues, so its job is either visible now or comes later.
        row = await connection.fetchrow(sql("webhooks/lock_delivery"), tenant, delivery_id)
        if row is None or row["status"] != PENDING:
            return False
        job = await app.jobs.find(DELIVER_WEBHOOK, str(delivery_id), str(tenant))
        if job is not None and not job.state.is_final:
            return False
        error = None if job is None else job.last_error
        message = f"{error.code}: {error.message}" if error else "its job ended without it"
        await connection.execute(sql("webhooks/fail"), tenant, delivery_id, _storable(message))
        await record_end(connection, app, tenant, delivery_id, WEBHOOK_FAILED)
        return True


async def settle_all(pool: "Pool", app: "Holdfast[Tools]") -> int:
    """Settle the pending deliveries of every tenant whose job was canceled or deleted. Return how many there were."""
    settled, last = 0, None
    while rows := await fetch(pool, "webhooks/pending", *(last or (None, None)), _PAGE):
        for row in rows:
            settled += await settle(pool, app, row["tenant_id"], row["webhook_delivery_id"])
        last = rows[-1]["created_at"], rows[-1]["webhook_delivery_id"]
    return settled


async def redeliver(
    connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, delivery_id: UUID, priority: int | None = None
) -> UUID | None:
    """Send the event again under the same delivery ID. Return the ID of the job, or None without such a delivery.

    A delivery whose job is still live is left as it is.
    """
    row = await connection.fetchrow(sql("webhooks/lock_delivery"), tenant, delivery_id)
    if row is None:
        return None
    if row["is_disabled"]:
        raise Conflict(f"the webhook endpoint {row['webhook_endpoint_id']} is disabled")
    payload, key = DeliverWebhook(delivery_id), str(delivery_id)
    job = new_job(app, DELIVER_WEBHOOK, payload, tenant=tenant, key=key, priority=priority, if_exists="keep_live")
    enqueued = await app.enqueue(job, conn=connection)
    if enqueued.is_new:
        await connection.execute(sql("webhooks/begin_again"), tenant, delivery_id)
    return enqueued.id


async def record_end(
    connection: "Connection", app: "Holdfast[Tools]", tenant: UUID, delivery_id: UUID, event_type: str
) -> None:
    """Record the event of a delivery's end. The caller changed its row, so ends are counted one after the other."""
    row = await one(connection, "audit/count_of_aggregate", tenant, delivery_id)
    told = {"webhook_delivery_id": str(delivery_id)}
    event = Event(event_type, "WebhookDelivery", delivery_id, {**told}, effect=str(row["count"]))
    await record(connection, app, tenant, event)


def _storable(text: str | None) -> str | None:
    return None if text is None else text.replace("\x00", "\ufffd")
