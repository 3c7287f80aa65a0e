"""Render a page in a process that ends afterwards."""

from pathlib import Path

from apps.invoicing import rendering
from apps.invoicing.rendering import PrintedInvoice, Typesetters


async def render(invoice: PrintedInvoice, folder: Path) -> bytes:
    typesetters = Typesetters()
    try:
        return await rendering.render(invoice, folder, typesetters)
    finally:
        await typesetters.close()
