"""Whether the process is alive, and whether it can do its work."""

import asyncio

from fastapi import APIRouter

from apps.passports.api.errors import documented, unavailable
from apps.passports.api.models import Healthy
from apps.passports.api.service import Service, TheService
from apps.passports.codes import DB_UNAVAILABLE, QUEUE_UNAVAILABLE
from apps.passports.database import outages_translated

router = APIRouter(tags=["health"], prefix="/health")

_PATIENCE_SECONDS = 2.0


@router.get("/live", summary="Whether the process answers")
async def live() -> Healthy:
    return Healthy()


@router.get("/ready", summary="Whether the API can do its work", responses=documented(503))
async def ready(service: TheService) -> Healthy:
    """The codes are DB_UNAVAILABLE, and with BPC_HEALTH_REQUIRE_QUEUE also QUEUE_UNAVAILABLE."""
    looking = asyncio.create_task(_look_at_database(service))
    # The timeout covers connecting, the answer, and cancellation, which never reaches a server that is cut off.
    await asyncio.wait([looking], timeout=_PATIENCE_SECONDS)
    if not looking.done():
        looking.cancel()
        looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise unavailable(DB_UNAVAILABLE, f"the database has not answered for {_PATIENCE_SECONDS:g} s")
    await looking
    if service.settings.bpc_health_require_queue:
        await _look_at_queue(service.settings.bpc_queue_url)
    return Healthy()


async def _look_at_database(service: Service) -> None:
    with outages_translated():
        await service.pool.fetchval("SELECT 1")


async def _look_at_queue(url: str) -> None:
    import aio_pika
    from aiormq.exceptions import AMQPError

    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            connection = await aio_pika.connect(url)
            await connection.close()
    except (AMQPError, OSError):
        raise unavailable(QUEUE_UNAVAILABLE, "RabbitMQ cannot be reached") from None
