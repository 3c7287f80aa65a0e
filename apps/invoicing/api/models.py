"""The bodies of requests and responses, in camelCase. Amounts are text, with the currency in a separate field.

Values read from the tables are not checked by the rules for requests, which may become stricter later.
"""

from datetime import date, datetime
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from apps.invoicing.api.fields import (
    Amount,
    Currency,
    Description,
    Email,
    Month,
    Name,
    Paragraph,
    PlainDecimal,
    Price,
    PriceAboveZero,
    Quantity,
    TaxRate,
    Template,
)

InvoiceStatus = Literal["DRAFT", "ISSUED", "PAID"]


class Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class NewCustomer(Body):
    name: Name
    email: Email
    address: Paragraph = ""


class Customer(Body):
    id: UUID
    name: str
    email: str
    address: str
    created_at: datetime


class NewLine(Body):
    description: Description
    quantity: Quantity
    unit_price: Price
    tax_rate: TaxRate


class Line(Body):
    position: int
    description: str
    quantity: PlainDecimal
    unit_price: Amount
    tax_rate: PlainDecimal
    net: Amount


class NewInvoice(Body):
    customer_id: UUID
    currency: Currency
    lines: Annotated[list[NewLine], Field(min_length=1, max_length=500)]
    due_days: Annotated[int, Field(strict=True, ge=0, le=365, description="Counted from the day it is issued.")] = 14
    note: Paragraph = ""
    template: Template = "invoice"


class InvoiceSummary(Body):
    id: UUID
    number: str | None = Field(description="Given when it is issued, without gaps in a year.", examples=["2026-00017"])
    customer_id: UUID
    status: InvoiceStatus
    currency: str
    template: str
    due_days: int
    issued_on: date | None
    due_on: date | None
    net: Amount
    tax: Amount
    total: Amount
    note: str
    created_at: datetime


class TaxSum(Body):
    rate: PlainDecimal
    net: Amount
    tax: Amount


class Invoice(InvoiceSummary):
    lines: list[Line]
    taxes: list[TaxSum] = Field(description="Tax is rounded once per rate, not per line.")


class InvoicePage(Body):
    items: list[InvoiceSummary]
    next: UUID | None = Field(description="Ask for the next page with `after` set to this; null on the last page.")


class Issue(Body):
    send_email: Annotated[bool, Field(strict=True)] = False
    recipient: Email | None = Field(None, description="Unset: the customer's address. Only with sendEmail.")

    @model_validator(mode="after")
    def _recipient_of_a_mail(self) -> Self:
        if self.recipient is not None and not self.send_email:
            raise ValueError("recipient: there is no email to send; set sendEmail")
        return self


class NewEmail(Body):
    recipient: Email | None = Field(None, description="Unset: the customer's address.")


class Delivery(Body):
    id: UUID
    invoice_id: UUID
    purpose: Literal["invoice", "reminder"]
    recipient: str
    status: Literal["PENDING", "SENT", "FAILED"]
    message_id: str = Field(description="The email's Message-ID, the same for every attempt to send it.")
    error_code: str | None
    created_at: datetime
    sent_at: datetime | None


class Deliveries(Body):
    items: list[Delivery]


class PdfReady(Body):
    status: Literal["READY"] = "READY"
    invoice_id: UUID
    document_id: UUID
    download_url: str = Field(description="A signed link. Anyone who has it can read the file until it expires.")
    expires_at: datetime
    file_name: str = Field(examples=["2026-00017.pdf"])
    content_type: str
    bytes: int
    sha256: str


class PdfPending(Body):
    status: Literal["PENDING"] = "PENDING"
    invoice_id: UUID
    document_id: UUID
    retry_after_ms: int = Field(description="Ask again after this time; Retry-After says the same in seconds.")


class NewEnrolment(Body):
    customer_id: UUID
    class_name: Name
    student: Name
    monthly_price: PriceAboveZero
    currency: Currency
    tax_rate: TaxRate
    first_month: Month
    last_month: Month | None = Field(None, description="The last month to bill; unset: until the enrollment is ended.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last_month is not None and self.last_month < self.first_month:
            raise ValueError("lastMonth: is before firstMonth")
        return self


class Enrolment(Body):
    id: UUID
    customer_id: UUID
    class_name: str
    student: str
    monthly_price: Amount
    currency: str
    tax_rate: PlainDecimal
    first_month: Month
    last_month: Month | None
    billed_up_to: Month | None


class EndEnrolment(Body):
    last_month: Month


class MadeReminder(Body):
    invoice_id: UUID
    level: int
    delivery_id: UUID


class MadeBill(Body):
    enrolment_id: UUID
    month: Month
    invoice_id: UUID
    number: str


class MadeReminders(Body):
    created: int
    items: list[MadeReminder]
    more: bool = Field(description="There were more than the limit: call again.")


class MadeBills(Body):
    created: int
    items: list[MadeBill]
    more: bool = Field(description="There were more than the limit: call again.")


class Healthy(Body):
    status: Literal["ok"] = "ok"


class Problem(Body):
    """Every unsuccessful response."""

    error: str = Field(description="A code for programs.", examples=["INVOICE_NOT_FOUND"])
    message: str = Field(description="A sentence for people.")


class PdfFailed(Problem):
    error: Literal["INVOICE_PDF_RENDER_FAILED"] = "INVOICE_PDF_RENDER_FAILED"
    status: Literal["FAILED"] = "FAILED"
    invoice_id: UUID
    document_id: UUID
