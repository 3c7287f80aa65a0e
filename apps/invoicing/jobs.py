"""The outbox's job kinds and payloads: everything that the API and the worker have to agree on."""

from dataclasses import dataclass
from uuid import UUID

from holdfast import Kind

INVOICE_PDF = "invoice.pdf"
"""The kind of a `platform.document` that is the PDF of an invoice."""
RENDER_FIRST = 4
"""The priority of rendering, ahead of the default 5, because emails and people wait for it."""
RENDER_FAILED = "INVOICE_PDF_RENDER_FAILED"


@dataclass(frozen=True, slots=True)
class RenderPdf:
    document_id: UUID


@dataclass(frozen=True, slots=True)
class SendEmail:
    delivery_id: UUID


@dataclass(frozen=True, slots=True)
class SnapshotTax:
    invoice_id: UUID


RENDER_PDF = Kind("invoice.pdf.render.requested", RenderPdf)
SEND_EMAIL = Kind("invoice.email.requested", SendEmail)
SNAPSHOT_TAX = Kind("invoice.tax.snapshot.requested", SnapshotTax)
