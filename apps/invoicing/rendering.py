"""An invoice as a PDF, made by typst from a template. The same invoice gives the same bytes whenever it is rendered."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import typst

from apps.invoicing.money import Line, totals
from apps.invoicing.template_folder import template_file


class RenderFailed(Exception):
    """The template is missing or wrong, which no repetition can cure."""


@dataclass(frozen=True, slots=True)
class PrintedInvoice:
    """All that a page shows. The sender is `company.json` beside the template."""

    number: str
    template: str
    issued_on: date
    due_on: date
    currency: str
    customer_name: str
    customer_address: str
    customer_email: str
    lines: tuple[Line, ...]
    note: str = ""


def is_whole(content: bytes) -> bool:
    """Whether it is a PDF from its beginning to its end."""
    return content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")


def render(invoice: PrintedInvoice, folder: Path) -> bytes:
    """Takes a tenth of a second of processor time or more, without the interpreter's lock: call it in a thread."""
    template = template_file(folder, invoice.template)
    if template is None:
        raise RenderFailed(f"there is no template {invoice.template!r}")
    fonts = folder / "fonts"
    try:
        return typst.compile(
            str(template),
            root=str(folder),
            # Those of typst itself and of the folder, so that a page looks the same on every machine.
            ignore_system_fonts=True,
            font_paths=[str(fonts)] if fonts.is_dir() else [],
            sys_inputs={"invoice": json.dumps(_for_template(invoice))},
            format="pdf",
            timestamp=datetime.combine(invoice.issued_on, time(), UTC),
        )
    except typst.TypstError as error:
        raise RenderFailed(f"template {invoice.template!r}: {error.message}") from error


def _for_template(invoice: PrintedInvoice) -> dict[str, object]:
    """Amounts go in as text, written here: a template only places them."""
    summed = totals(invoice.lines)
    issued = invoice.issued_on
    return {
        "number": invoice.number,
        "currency": invoice.currency,
        "issued": {"year": issued.year, "month": issued.month, "day": issued.day, "text": long_date(issued)},
        "due": long_date(invoice.due_on),
        "customer": {
            "name": invoice.customer_name,
            "address": invoice.customer_address,
            "email": invoice.customer_email,
        },
        "lines": [
            {
                "description": line.description,
                "quantity": _plain(line.quantity),
                "unit_price": amount(line.unit_price),
                "tax_rate": _plain(line.tax_rate),
                "net": amount(line.net),
            }
            for line in invoice.lines
        ],
        "taxes": [
            {"rate": _plain(each.rate), "net": amount(each.net), "tax": amount(each.tax)} for each in summed.by_rate
        ],
        "net": amount(summed.net),
        "total": amount(summed.total),
        "is_owed": summed.total > 0,
        "note": invoice.note,
    }


def amount(value: Decimal) -> str:
    """With a true minus sign: a hyphen is short, and a line may end behind it."""
    return f"{value:,.2f}".replace("-", "\N{MINUS SIGN}")


def long_date(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


def _plain(value: Decimal) -> str:
    """2.500 is 2.5, and 10.000 is 10."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
