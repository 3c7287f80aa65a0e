"""Renders an invoice as a PDF with typst, from a template. The same invoice always gives the same bytes."""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

from apps.invoicing.money import Line, rounded, totals
from apps.invoicing.template_folder import template_file

_PROGRAM = Path(__file__).with_name("typesetting.py")
# Characters that reorder the text after them and so can disguise it: "gro.live" reads as "evil.org" after one of them.
# The marks for single letters stay, and Hebrew and Arabic do not need any of these.
_REORDERING = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


class RenderFailed(Exception):
    """The template is missing or wrong. Retrying cannot help."""


class RendererDied(Exception):
    """The rendering process ended without a result, for example because memory ran out. Another one may succeed."""


@dataclass(frozen=True, slots=True)
class PrintedInvoice:
    """Everything that the PDF shows except the sender, which is in `company.json` next to the template."""

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
    """Whether the content is a PDF that is complete to its end."""
    return content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")


class Typesetters:
    """Processes that each set one invoice at a time. They are kept, because starting one takes eight times as long.

    Threads cannot be stopped: one would outlive the job's timeout and keep the worker from exiting. A process is killed
    when the caller is canceled, and exits by itself when the worker is gone.
    """

    def __init__(self) -> None:
        self._idle: list[asyncio.subprocess.Process] = []

    async def set(self, order: bytes) -> tuple[bool, bytes]:
        """Return whether typst accepted the template, and the PDF or typst's error message."""
        if self._idle:
            # An idle process may have died since its last invoice, which is not this invoice's fault.
            with suppress(RendererDied):
                return await self._set_with(self._idle.pop(), order)
        return await self._set_with(await _start(), order)

    async def _set_with(self, process: asyncio.subprocess.Process, order: bytes) -> tuple[bool, bytes]:
        is_whole = False
        try:
            was_taken, content = await _answer(process, order)
            is_whole = True
        finally:
            if is_whole:
                self._idle.append(process)
            else:
                await _end(process)
        return was_taken, content

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())


async def render(invoice: PrintedInvoice, folder: Path, typesetters: Typesetters) -> bytes:
    template = template_file(folder, invoice.template)
    if template is None:
        raise RenderFailed(f"there is no template {invoice.template!r}")
    was_taken, content = await typesetters.set(_order(invoice, template, folder))
    if not was_taken:
        raise RenderFailed(f"template {invoice.template!r}: {content.decode(errors='replace')}")
    return content


def _order(invoice: PrintedInvoice, template: Path, folder: Path) -> bytes:
    fonts = folder / "fonts"
    order = {
        "template": str(template),
        "folder": str(folder),
        "fonts": str(fonts) if fonts.is_dir() else "",
        "invoice": json.dumps(_for_template(invoice)),
        "issued": datetime.combine(invoice.issued_on, time(), UTC).isoformat(),
    }
    return json.dumps(order).encode() + b"\n"


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Keep the program's folder off the import path, because the modules of this package have common names.
        "-P",
        str(_PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def _answer(process: asyncio.subprocess.Process, order: bytes) -> tuple[bool, bytes]:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(order)
    try:
        was_taken, size = json.loads(await process.stdout.readuntil())
        return was_taken, await process.stdout.readexactly(size)
    except asyncio.IncompleteReadError:
        raise RendererDied(f"the rendering process {_ended(await process.wait())}") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    if process.returncode is None:
        process.kill()
        await process.wait()
    process.stdin.close()


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _for_template(invoice: PrintedInvoice) -> dict[str, object]:
    """The template's input. Amounts are formatted as text here; a template only places them."""
    summed = totals(invoice.lines)
    issued = invoice.issued_on
    return {
        "number": invoice.number,
        "currency": invoice.currency,
        "issued": {"year": issued.year, "month": issued.month, "day": issued.day, "text": long_date(issued)},
        "due": long_date(invoice.due_on),
        "customer": {
            "name": in_order(invoice.customer_name),
            "address": in_order(invoice.customer_address),
            "email": in_order(invoice.customer_email),
        },
        "lines": [
            {
                "description": in_order(line.description),
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
        "note": in_order(invoice.note),
    }


def in_order(text: str) -> str:
    """Remove characters that change the order in which the following text is read."""
    return text.translate(_REORDERING)


def amount(value: Decimal) -> str:
    return _with_minus(f"{rounded(value):,.2f}")


def long_date(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


def _plain(value: Decimal) -> str:
    """2.500 is 2.5, and 10.000 is 10."""
    text = f"{value or Decimal(0):,f}"
    return _with_minus(text.rstrip("0").rstrip(".") if "." in text else text)


def _with_minus(number: str) -> str:
    """Use a real minus sign: a hyphen is too short, and a line may break after it."""
    return number.replace("-", "\N{MINUS SIGN}")
