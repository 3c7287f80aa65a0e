"""Endpoints for monitoring the API."""

import asyncio

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from apps.invoicing.api.errors import documented
from apps.invoicing.api.models import Healthy
from apps.invoicing.api.service import TheService

router = APIRouter(tags=["operations"])

_PATIENCE_SECONDS = 2.0


@router.get("/healthz", summary="Whether the API can do its work", responses=documented())
async def healthz(service: TheService) -> Healthy:
    looking = asyncio.create_task(service.pool.fetchval("SELECT 1"))
    # The timeout covers connecting, the answer, and cancellation, which never reaches a server that is cut off.
    await asyncio.wait([looking], timeout=_PATIENCE_SECONDS)
    if not looking.done():
        looking.cancel()
        looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise TimeoutError(f"the database has not answered for {_PATIENCE_SECONDS:g} s")
    await looking
    return Healthy()


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "In Prometheus's text format."}},
)
async def metrics(service: TheService) -> Response:
    return Response(await service.metrics.scrape(service.app), media_type=CONTENT_TYPE_LATEST)
