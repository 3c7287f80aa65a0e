"""What the handlers work with. It is known when they are registered, and open while the worker runs."""

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

_NOT_OPEN = "the tools are not open; use `async with tools.opened(url):`"


class Tools:
    def __init__(self, settings: Settings) -> None:
        check_templates(settings.templates_folder)
        self.templates = settings.templates_folder
        self.files = open_files(settings.files_url)
        self.mailer = Mailer(
            settings.smtp_url, settings.mail_from, may_tell_password=settings.smtp_password_without_tls
        )
        self.accepted: set[UUID] = set()
        """Deliveries whose mail a server has accepted, as long as that is not written down."""
        self.typesetters = Typesetters()
        self._pool: Pool | None = None

    @asynccontextmanager
    async def opened(self, url: str) -> "AsyncIterator[Tools]":
        async with opened_pool(url) as pool:
            self._pool = pool
            try:
                yield self
            finally:
                self._pool = None
                await self.typesetters.close()

    @property
    def pool(self) -> "Pool":
        if self._pool is None:
            raise RuntimeError(_NOT_OPEN)
        return self._pool
