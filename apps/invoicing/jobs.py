"""The kinds of the outbox and what their jobs carry: all that the API and the worker have to agree on."""

from dataclasses import dataclass
from uuid import UUID

RENDER_PDF = "invoice.pdf.render.requested"
SEND_EMAIL = "invoice.email.requested"
SNAPSHOT_TAX = "invoice.tax.snapshot.requested"

INVOICE_PDF = "invoice.pdf"
"""The kind of a `platform.document` that is the PDF of an invoice."""
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
