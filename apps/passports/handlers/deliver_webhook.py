"""DELIVER_WEBHOOK: sends an event to an endpoint, and records how that ended.

A crash between the response and the commit sends the webhook again with the same X-BPC-Delivery-Id; receivers
recognize it by that.
"""

import json
from datetime import UTC, timedelta

import asyncpg

from apps.passports.audit import WEBHOOK_DELIVERED
from apps.passports.codes import invalid
from apps.passports.database import fetch_one, sql, transaction
from apps.passports.deliveries import DELIVERED, FAILED, PENDING, record_attempt, record_end, settle
from apps.passports.jobs import DeliverWebhook
from apps.passports.tools import Tools, tenant_of
from apps.passports.verifying import PREFIX
from holdfast import DeadJob, RunningJob
from holdfast.webhooks import Secrets, WebhookError, send, sign

LONGEST = timedelta(seconds=30)
"""For the whole delivery, not for each read."""


async def deliver_webhook(job: RunningJob[DeliverWebhook, Tools]) -> None:
    tools, tenant, delivery_id = job.state, tenant_of(job), job.payload.webhook_delivery_id
    found = await fetch_one(tools.pool, "webhooks/to_deliver", tenant, delivery_id)
    if found is None:
        raise invalid(f"there is no webhook delivery {delivery_id}")
    if found["status"] == DELIVERED:
        return
    if found["is_disabled"]:
        raise invalid("the webhook endpoint is disabled")
    if found["status"] == FAILED:
        # A person retried the job.
        async with transaction(tools.pool) as connection:
            await connection.execute(sql("webhooks/begin_again"), tenant, delivery_id)
    body = event_body(found)
    secrets = Secrets(found["secret"], found["next_secret"])
    headers = sign(body, secrets, prefix=PREFIX, event_type=found["event_type"], delivery_id=delivery_id)
    try:
        response = await send(found["url"], body, headers, policy=tools.policy, timeout=LONGEST)
    except WebhookError as error:
        # Still pending: only the end of the job may fail the delivery, and `fail_delivery` follows that.
        async with transaction(tools.pool) as connection:
            message = f"{error.code}: {error}"
            await record_attempt(connection, tenant, delivery_id, PENDING, error.response, message)
        raise
    async with transaction(tools.pool) as connection:
        if not await record_attempt(connection, tenant, delivery_id, DELIVERED, response):
            raise LookupError(f"the webhook delivery {delivery_id} is no longer pending")
        await record_end(connection, tools.app, tenant, delivery_id, WEBHOOK_DELIVERED)
        await job.finish_in(connection)


async def fail_delivery(job: RunningJob[DeadJob[DeliverWebhook], Tools]) -> None:
    """Fail a delivery whose job died."""
    dead = job.payload
    if isinstance(dead.payload, DeliverWebhook):
        await settle(job.state.pool, job.state.app, tenant_of(job), dead.payload.webhook_delivery_id)


def event_body(event: asyncpg.Record) -> bytes:
    """The body of a webhook: the same bytes in each attempt, because the signature covers them."""
    told = {
        "event_id": str(event["event_id"]),
        "event_type": event["event_type"],
        "aggregate_type": event["aggregate_type"],
        "aggregate_id": str(event["aggregate_id"]),
        "occurred_at": event["occurred_at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "payload": json.loads(event["payload"]),
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()
