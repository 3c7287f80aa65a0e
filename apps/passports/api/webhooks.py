"""Webhook endpoints with their secrets and subscriptions, and the deliveries to them."""

from uuid import UUID

from fastapi import APIRouter

from apps.passports import deliveries, endpoints
from apps.passports.api.errors import documented
from apps.passports.api.models import (
    AddedEndpoint,
    Delivery,
    DeliveryStatus,
    DeliverySummary,
    Endpoint,
    EnqueuedJob,
    EventType,
    NewEndpoint,
    NextSecret,
    Page,
)
from apps.passports.api.service import Priority, ThePage, TheService, TheTenant
from apps.passports.codes import NotFound
from apps.passports.database import fetch, transaction

router = APIRouter(tags=["webhooks"])


@router.post("/webhook-endpoints", status_code=201, summary="Add an endpoint", responses=documented(413, 415))
async def add_endpoint(new: NewEndpoint, service: TheService, tenant: TheTenant) -> AddedEndpoint:
    """The address must be public and use HTTPS, except in development."""
    async with transaction(service.pool) as connection:
        added = await endpoints.add_endpoint(connection, tenant, new.url, service.tools.policy)
        for event_type in new.event_types:
            await endpoints.subscribe(connection, tenant, added.webhook_endpoint_id, event_type)
    there = await endpoint(added.webhook_endpoint_id, service, tenant)
    return AddedEndpoint(**there.model_dump(), secret=added.secret)


@router.get("/webhook-endpoints", summary="List endpoints, the newest first")
async def list_endpoints(service: TheService, tenant: TheTenant, page: ThePage) -> Page[Endpoint]:
    return await service.page(Endpoint, "webhook_endpoint_id", "webhooks/endpoints", tenant, page, None)


@router.get("/webhook-endpoints/{webhook_endpoint_id}", summary="Read an endpoint and its subscriptions")
async def endpoint(webhook_endpoint_id: UUID, service: TheService, tenant: TheTenant) -> Endpoint:
    rows = await fetch(service.pool, "webhooks/endpoints", tenant, None, 1, webhook_endpoint_id)
    if not rows:
        raise NotFound(f"there is no webhook endpoint {webhook_endpoint_id}")
    return Endpoint.model_validate(dict(rows[0]))


@router.post(
    "/webhook-endpoints/{webhook_endpoint_id}/rotate",
    summary="Begin a rotation: make the next secret",
    responses=documented(409),
)
async def rotate(webhook_endpoint_id: UUID, service: TheService, tenant: TheTenant) -> NextSecret:
    """Until the rotation is finished, X-BPC-Signature keeps the old secret and X-BPC-Signature-Next has the new one."""
    async with transaction(service.pool) as connection:
        return NextSecret(secret=await endpoints.begin_rotation(connection, tenant, webhook_endpoint_id))


@router.post(
    "/webhook-endpoints/{webhook_endpoint_id}/finish-rotation",
    summary="Drop the old secret",
    responses=documented(409),
)
async def finish_rotation(webhook_endpoint_id: UUID, service: TheService, tenant: TheTenant) -> Endpoint:
    async with transaction(service.pool) as connection:
        await endpoints.end_rotation(connection, tenant, webhook_endpoint_id)
    return await endpoint(webhook_endpoint_id, service, tenant)


@router.post("/webhook-endpoints/{webhook_endpoint_id}/disable", summary="Send nothing more to an endpoint")
async def disable(webhook_endpoint_id: UUID, service: TheService, tenant: TheTenant) -> Endpoint:
    async with transaction(service.pool) as connection:
        await endpoints.disable(connection, tenant, webhook_endpoint_id)
    return await endpoint(webhook_endpoint_id, service, tenant)


@router.put("/webhook-endpoints/{webhook_endpoint_id}/subscriptions/{event_type}", summary="Subscribe to an event")
async def subscribe(
    webhook_endpoint_id: UUID, event_type: EventType, service: TheService, tenant: TheTenant
) -> Endpoint:
    async with transaction(service.pool) as connection:
        await endpoints.subscribe(connection, tenant, webhook_endpoint_id, event_type)
    return await endpoint(webhook_endpoint_id, service, tenant)


@router.delete(
    "/webhook-endpoints/{webhook_endpoint_id}/subscriptions/{event_type}", summary="Unsubscribe from an event"
)
async def unsubscribe(
    webhook_endpoint_id: UUID, event_type: EventType, service: TheService, tenant: TheTenant
) -> Endpoint:
    async with transaction(service.pool) as connection:
        await endpoints.unsubscribe(connection, tenant, webhook_endpoint_id, event_type)
    return await endpoint(webhook_endpoint_id, service, tenant)


@router.get("/webhook-deliveries", summary="List deliveries, the newest first")
async def list_deliveries(
    service: TheService, tenant: TheTenant, page: ThePage, status: DeliveryStatus | None = None
) -> Page[DeliverySummary]:
    return await service.page(DeliverySummary, "webhook_delivery_id", "webhooks/deliveries", tenant, page, status)


@router.get("/webhook-deliveries/{webhook_delivery_id}", summary="Read a delivery and the response to it")
async def delivery(webhook_delivery_id: UUID, service: TheService, tenant: TheTenant) -> Delivery:
    row = await service.existing("webhooks/delivery", tenant, webhook_delivery_id, "webhook delivery")
    return Delivery.model_validate(dict(row))


@router.post(
    "/webhook-deliveries/{webhook_delivery_id}/redeliver",
    status_code=202,
    summary="Send an event again, with the same X-BPC-Delivery-Id",
    responses=documented(409),
)
async def redeliver(
    webhook_delivery_id: UUID, service: TheService, tenant: TheTenant, priority: Priority = None
) -> EnqueuedJob:
    """A delivery that is still being tried is left as it is."""
    async with transaction(service.pool) as connection:
        job_id = await deliveries.redeliver(connection, service.app, tenant, webhook_delivery_id, priority)
    if job_id is None:
        raise NotFound(f"there is no webhook delivery {webhook_delivery_id}")
    await service.app.ring([job_id])
    return EnqueuedJob(job_id=job_id)
