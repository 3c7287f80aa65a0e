"""What looks at the API rather than using it."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from apps.invoicing.api.errors import documented
from apps.invoicing.api.models import Healthy
from apps.invoicing.api.service import TheService

router = APIRouter(tags=["operations"])


@router.get("/healthz", summary="Whether the API can do its work", responses=documented())
async def healthz(service: TheService) -> Healthy:
    await service.pool.fetchval("SELECT 1", timeout=2)
    return Healthy()


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "In the text format of Prometheus."}},
)
async def metrics(service: TheService) -> Response:
    return Response(await service.metrics.scrape(service.app), media_type=CONTENT_TYPE_LATEST)
