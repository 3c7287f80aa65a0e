"""The handlers' tools. They are made, and so checked, when the worker starts, and are open while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from apps.invoicing.database import opened_pool
from apps.invoicing.mail import Mailer
from apps.invoicing.rendering import Typesetters
from apps.invoicing.settings import Settings
from apps.invoicing.storage import open_files
from apps.invoicing.template_folder import check_templates

if TYPE_CHECKING:
    from apps.invoicing.database import Pool


class Tools:
    pool: "Pool"
    """Connections to the store's database, while the tools are open."""

    def __init__(self, settings: Settings) -> None:
        check_templates(settings.templates_folder)
        self.templates = settings.templates_folder
        self.files = open_files(settings.files_url)
        self.mailer = Mailer(
            settings.smtp_url, settings.mail_from, may_tell_password=settings.smtp_password_without_tls
        )
        self.accepted: set[UUID] = set()
        """Deliveries whose email a server has accepted but whose record does not say so yet."""
        self.typesetters = Typesetters()

    @asynccontextmanager
    async def opened(self, url: str) -> "AsyncIterator[Tools]":
        async with opened_pool(url) as self.pool:
            try:
                yield self
            finally:
                await self.typesetters.close()
