"""The kinds of the outbox and what their jobs carry: all that the API and the worker have to agree on."""

from dataclasses import dataclass
from uuid import UUID

RENDER_PDF = "invoice.pdf.render.requested"
SEND_EMAIL = "invoice.email.requested"
SNAPSHOT_TAX = "invoice.tax.snapshot.requested"

INVOICE_PDF = "invoice.pdf"
"""The kind of a `platform.document` that is the PDF of an invoice."""
RENDER_FIRST = 4
"""The priority of rendering, where the usual one is 5: mails and people wait for it."""
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
