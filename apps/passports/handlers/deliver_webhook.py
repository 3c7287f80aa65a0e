"""DELIVER_WEBHOOK: sends an event to an endpoint, and records how that ended.

A crash between the response and the commit sends the webhook again with the same X-BPC-Delivery-Id; receivers
recognize it by that.
"""

import json
from datetime import UTC, timedelta
from uuid import UUID

import asyncpg

from apps.passports.codes import invalid
from apps.passports.database import fetch_one, sql, transaction
from apps.passports.deliveries import DELIVERED, FAILED, PENDING, Attempt, record_attempt, settle
from apps.passports.jobs import DeliverWebhook
from apps.passports.tools import Tools, tenant_of
from apps.passports.verifying import PREFIX
from holdfast import DeadJob, Permanent, RunningJob
from holdfast.webhooks import Response, Secrets, WebhookError, send, sign

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
        await _begin_again(tools, tenant, delivery_id)
    body = event_body(found)
    secrets = Secrets(found["secret"], found["next_secret"])
    headers = sign(body, secrets, prefix=PREFIX, event_type=found["event_type"], delivery_id=delivery_id)
    try:
        response = await send(found["url"], body, headers, policy=tools.policy, timeout=LONGEST)
    except WebhookError as error:
        await _record_failure(job, tenant, error)
        if isinstance(error, Permanent):
            return
        raise
    async with transaction(tools.pool) as connection:
        await record_attempt(connection, tools.app, tenant, delivery_id, _attempt(DELIVERED, response))
        await job.finish_in(connection)


async def fail_delivery(job: RunningJob[DeadJob[DeliverWebhook], Tools]) -> None:
    """Fail a delivery whose job died: after its last attempt, or because it killed its workers."""
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


async def _begin_again(tools: Tools, tenant: UUID, delivery_id: UUID) -> None:
    async with transaction(tools.pool) as connection:
        await connection.execute(sql("webhooks/begin_again"), tenant, delivery_id)


async def _record_failure(job: RunningJob[DeliverWebhook, Tools], tenant: UUID, error: WebhookError) -> None:
    """Record the attempt. A permanent error also fails the delivery and ends the job, in one transaction.

    After the last of the other errors, `fail_delivery` does it: a worker that dies here could not undo the failure.
    """
    tools, delivery_id, is_final = job.state, job.payload.webhook_delivery_id, isinstance(error, Permanent)
    attempt = _attempt(FAILED if is_final else PENDING, error.response, f"{error.code}: {error}")
    async with transaction(tools.pool) as connection:
        await record_attempt(connection, tools.app, tenant, delivery_id, attempt)
        if is_final:
            await job.finish_in(connection, error)


def _attempt(status: str, response: Response | None, message: str | None = None) -> Attempt:
    if response is None:
        return Attempt(status, message=message)
    return Attempt(status, response.status, dict(response.headers), response.body, message)
