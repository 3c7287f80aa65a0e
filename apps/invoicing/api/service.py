"""What the endpoints share while the API is running."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from apps.invoicing.api.metrics import Metrics
from apps.invoicing.database import opened_pool
from apps.invoicing.links import Links
from apps.invoicing.settings import Misconfigured, Settings
from apps.invoicing.storage import Files, open_files
from apps.invoicing.template_folder import check_templates
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.invoicing.database import Pool

log = logging.getLogger("invoicing.api")


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    app: Holdfast
    """Has no handlers: the API only enqueues."""
    pool: "Pool"
    files: Files
    links: Links
    metrics: Metrics
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server begins to stop, which ends all waits."""

    async def today(self) -> date:
        """Today's date by the store's clock, which is the same for all processes."""
        return (await self.app.clock.now()).astimezone(UTC).date()


@asynccontextmanager
async def opened_service(settings: Settings, metrics: Metrics) -> AsyncIterator[Service]:
    links = Links(link_secret(settings))
    check_templates(settings.templates_folder)
    files = open_files(settings.files_url)
    if settings.worker_api_service_token is None:
        log.warning("WORKER_API_SERVICE_TOKEN is not set: every call of an internal endpoint is refused")
    async with Holdfast(settings.database_url) as app, opened_pool(app.url) as pool:
        yield Service(settings, app, pool, files, links, metrics)


def link_secret(settings: Settings) -> str:
    if settings.download_link_secret is None:
        raise Misconfigured("DOWNLOAD_LINK_SECRET: is not set; set it to a long random text, which signs links")
    return settings.download_link_secret


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]
