"""The page: what stands on it, that it is text and never code, and that it is the same whenever it is made."""

import io
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pypdf import PdfReader

from apps.invoicing.money import Line, totals
from apps.invoicing.rendering import PrintedInvoice, RenderFailed, render
from apps.invoicing.settings import Settings

FOLDER = Settings.model_fields["templates_folder"].default
LINES = (
    Line("Consulting in October", Decimal("12.500"), Decimal("120.00"), Decimal("19.00")),
    Line("Printed handbook", Decimal("3.000"), Decimal("24.90"), Decimal("7.00")),
    Line("Discount", Decimal("1.000"), Decimal("-1000.00"), Decimal("19.00")),
)
INVOICE = PrintedInvoice(
    number="2026-00017",
    template="invoice",
    issued_on=date(2026, 11, 16),
    due_on=date(2026, 11, 30),
    currency="EUR",
    customer_name="Example Ltd",
    customer_address="1 High Street\nLondon",
    customer_email="accounts@example.com",
    lines=LINES,
    note="With thanks.",
)


def pages(invoice: PrintedInvoice) -> list[str]:
    reader = PdfReader(io.BytesIO(render(invoice, FOLDER)))
    return [" ".join(page.extract_text().split()) for page in reader.pages]


def test_everything_that_an_invoice_has_stands_on_its_page() -> None:
    (page,) = pages(INVOICE)
    for text in (
        "Corely GmbH",
        "Example Ltd",
        "1 High Street London",
        "accounts@example.com",
        "2026-00017",
        "16 November 2026",
        "30 November 2026",
        "Consulting in October 12.5 120.00 19 % 1,500.00",
        "Printed handbook 3 24.90 7 % 74.70",
        "Discount 1 -1,000.00 19 % -1,000.00",
        "With thanks.",
        "1 / 1",
    ):
        assert text in page


def test_the_totals_on_the_page_are_those_of_the_lines() -> None:
    (page,) = pages(INVOICE)
    summed = totals(LINES)
    assert f"Net {summed.net:,} EUR" in page
    for each in summed.by_rate:
        assert f"Tax {each.rate.normalize():f} % on {each.net:,} EUR {each.tax:,} EUR" in page
    assert f"Total {summed.total:,} EUR" in page


def test_the_same_invoice_gives_the_same_bytes() -> None:
    assert render(INVOICE, FOLDER) == render(replace(INVOICE), FOLDER)


def test_the_document_says_what_it_is_and_when_it_was_issued() -> None:
    described = PdfReader(io.BytesIO(render(INVOICE, FOLDER))).metadata
    assert described is not None
    assert (described.title, described.author) == ("Invoice 2026-00017", "Corely GmbH")
    assert described.creation_date is not None
    assert described.creation_date.date() == INVOICE.issued_on


@pytest.mark.parametrize(
    "name",
    [
        "#panic() $x$ *b* _i_ @r <l> `c` = // \\ [x] {y} ~ \"q\" 'q'",
        '#{sys.version} #read("company.json")',
        "Zoë Łukasz Ğ",
        "Ελένη Παπαδοπούλου",
        "Анна Иванова",
    ],
)
def test_names_are_text_in_many_scripts_and_never_code(name: str) -> None:
    described = Line(name, Decimal(1), Decimal(1), Decimal(0))
    (page,) = pages(replace(INVOICE, customer_name=name, customer_address=name, note=name, lines=(described,)))
    assert page.count(name) == 4


def test_further_pages_repeat_the_head_of_the_table_and_are_numbered() -> None:
    found = pages(replace(INVOICE, lines=LINES * 40))
    assert len(found) > 2
    for number, page in enumerate(found, 1):
        assert "Description Quantity Unit price Tax Net" in page
        assert f"{number} / {len(found)}" in page
    assert "Total" in found[-1]
    assert not any("Total" in page for page in found[:-1])


@pytest.mark.parametrize("description", ["word " * 200, "X" * 300])
def test_long_descriptions_wrap_inside_their_column(description: str) -> None:
    line = replace(LINES[0], description=description.strip())
    (page,) = PdfReader(io.BytesIO(render(replace(INVOICE, lines=(line,)), FOLDER))).pages
    text = page.extract_text().replace("\u200b", "")
    rows = [row for row in text.splitlines() if "word" in row or "XX" in row]
    assert len(rows) > 3
    assert "".join(rows).count(description[0]) >= description.count(description[0])
    # The figures of the line have kept their columns.
    assert "12.5 120.00 19 % 1,500.00" in " ".join(text.split())


@pytest.mark.parametrize("template", ["unknown", "../invoice", "", "invoice.typ", "Invoice"])
def test_a_template_that_is_not_there_fails(template: str) -> None:
    with pytest.raises(RenderFailed):
        render(replace(INVOICE, template=template), FOLDER)


def test_a_template_that_is_wrong_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.typ").write_text("#no_such_thing()")
    with pytest.raises(RenderFailed, match="unknown variable: no_such_thing"):
        render(replace(INVOICE, template="broken"), tmp_path)


def test_a_template_cannot_read_beyond_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "curious.typ").write_text('#read("../secret.txt")')
    with pytest.raises(RenderFailed, match="curious"):
        render(replace(INVOICE, template="curious"), tmp_path / "templates")
