"""The page: its content, that input is always text and never code, and that rendering is reproducible."""

import io
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pypdf import PageObject, PdfReader

from apps.invoicing.money import Line, totals
from apps.invoicing.rendering import PrintedInvoice, RenderFailed
from apps.invoicing.settings import Settings
from tests.apps.invoicing.typeset import render

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


async def pages(invoice: PrintedInvoice) -> list[str]:
    reader = PdfReader(io.BytesIO(await render(invoice, FOLDER)))
    return [" ".join(page.extract_text().split()) for page in reader.pages]


async def test_the_page_shows_everything_in_the_invoice() -> None:
    (page,) = await pages(INVOICE)
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
        "Discount 1 \N{MINUS SIGN}1,000.00 19 % \N{MINUS SIGN}1,000.00",
        "With thanks.",
        "1 / 1",
    ):
        assert text in page


async def test_the_totals_on_the_page_are_those_of_the_lines() -> None:
    (page,) = await pages(INVOICE)
    summed = totals(LINES)
    assert f"Net {summed.net:,} EUR" in page
    for each in summed.by_rate:
        assert f"Tax {each.rate.normalize():f} % on {each.net:,} EUR {each.tax:,} EUR" in page
    assert f"Total {summed.total:,} EUR" in page
    bank = "IBAN DE02 1203 0000 0000 2020 51 BIC BYLADEM1001 Bank Musterbank Hamburg Reference 2026-00017"
    assert f"Please transfer {summed.total:,} EUR by 30 November 2026 to {bank}" in page


async def test_the_same_invoice_gives_the_same_bytes() -> None:
    assert await render(INVOICE, FOLDER) == await render(replace(INVOICE), FOLDER)


async def test_the_document_metadata_has_its_title_and_issue_date() -> None:
    described = PdfReader(io.BytesIO(await render(INVOICE, FOLDER))).metadata
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
async def test_names_are_text_in_many_scripts_and_never_code(name: str) -> None:
    described = Line(name, Decimal(1), Decimal(1), Decimal(0))
    (page,) = await pages(replace(INVOICE, customer_name=name, customer_address=name, note=name, lines=(described,)))
    assert page.count(name) == 4


async def test_later_pages_repeat_the_table_header_and_are_numbered() -> None:
    found = await pages(replace(INVOICE, lines=LINES * 40))
    assert len(found) > 2
    for number, page in enumerate(found, 1):
        assert "Description Quantity Unit price Tax Net" in page
        assert f"{number} / {len(found)}" in page
    assert "Total" in found[-1]
    assert not any("Total" in page for page in found[:-1])


@pytest.mark.long
@pytest.mark.parametrize("note", ["With thanks.", "A word. " * 200])
async def test_the_totals_are_on_the_page_with_the_last_lines_and_the_payment_details(note: str) -> None:
    for number in (1, 2, *range(15, 26), *range(44, 52)):
        found = await pages(replace(INVOICE, lines=LINES[:1] * number, note=note))
        (page,) = (page for page in found if "Total" in page)
        assert page.count("Consulting") >= min(2, number)
        assert "IBAN" in page.partition("Please transfer")[2].partition("Reference")[0]
        assert "Description Quantity" in page
        if note == "With thanks.":
            assert note in page


def lowest(page: PageObject) -> float:
    """The distance of the lowest text from the bottom of the page."""
    found: list[float] = []

    def visit(text: str, outer: list[float], inner: list[float], *_: object) -> None:
        if text.strip():
            found.append(inner[4] * outer[1] + inner[5] * outer[3] + outer[5])

    page.extract_text(visitor_text=visit)
    return min(found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("description", "rates"), [("W" * 500, 1), ("W" * 500, 4), ("W" * 500, 12), ("W" * 250, 4), ("Lesson", 60)]
)
async def test_nothing_runs_off_a_page_no_matter_how_long_the_invoice_is(description: str, rates: int) -> None:
    widest = Line(description, Decimal("999999999.999"), Decimal("99.99"), Decimal(0))
    lines = [replace(widest, tax_rate=Decimal(rate) / 100) for rate in range(rates)]
    usual = lowest(PdfReader(io.BytesIO(await render(INVOICE, FOLDER))).pages[0])
    for more in range(4):
        invoice = replace(INVOICE, lines=tuple(lines + [widest] * more), note="A line\n" * 4)
        for page in PdfReader(io.BytesIO(await render(invoice, FOLDER))).pages:
            assert lowest(page) == usual > 0


async def test_an_invoice_with_a_total_of_zero_does_not_ask_for_a_transfer() -> None:
    free = (replace(LINES[0], quantity=Decimal(1)), replace(LINES[0], quantity=Decimal(1), unit_price=Decimal(-120)))
    (page,) = await pages(replace(INVOICE, lines=free))
    assert "Total 0.00 EUR" in page
    assert "There is nothing to pay." in page
    assert "transfer" not in page


@pytest.mark.parametrize("description", ["word " * 100, "X" * 300])
async def test_long_descriptions_wrap_within_their_column(description: str) -> None:
    line = replace(LINES[0], description=description.strip())
    (page,) = PdfReader(io.BytesIO(await render(replace(INVOICE, lines=(line,)), FOLDER))).pages
    text = page.extract_text().replace("\u200b", "")
    rows = [row for row in text.splitlines() if "word" in row or "XX" in row]
    assert len(rows) > 3
    assert "".join(rows).count(description[0]) >= description.count(description[0])
    # The figures in the line stay in their columns.
    assert "12.5 120.00 19 % 1,500.00" in " ".join(text.split())


@pytest.mark.parametrize("template", ["unknown", "../invoice", "", "invoice.typ", "Invoice"])
async def test_a_missing_template_fails(template: str) -> None:
    with pytest.raises(RenderFailed):
        await render(replace(INVOICE, template=template), FOLDER)


async def test_a_broken_template_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.typ").write_text("#no_such_thing()")
    with pytest.raises(RenderFailed, match="unknown variable: no_such_thing"):
        await render(replace(INVOICE, template="broken"), tmp_path)


async def test_a_template_cannot_read_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "curious.typ").write_text('#read("../secret.txt")')
    with pytest.raises(RenderFailed, match="curious"):
        await render(replace(INVOICE, template="curious"), tmp_path / "templates")


async def test_no_amount_is_a_negative_zero() -> None:
    """A small share of a discount is rounded to zero."""
    line = Line("Discount", Decimal("0.001"), Decimal("-1.00"), Decimal("19.00"))
    summed = totals([line])
    (by_rate,) = summed.by_rate
    for value in (line.net, by_rate.net, by_rate.tax, summed.net, summed.tax, summed.total):
        assert str(value) == "0.00"
    (page,) = await pages(replace(INVOICE, lines=(line, replace(line, quantity=Decimal("-0.000")))))
    for minus in "-\N{MINUS SIGN}":
        assert f"{minus}0" not in page.replace("2026-0", "")
    assert "Total 0.00 EUR" in page


async def test_a_negative_quantity_has_a_real_minus_sign() -> None:
    (page,) = await pages(replace(INVOICE, lines=(replace(LINES[0], quantity=Decimal("-2.500")),)))
    assert "\N{MINUS SIGN}2.5 120.00" in page


@pytest.mark.parametrize("control", [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))], ids=ascii)
async def test_no_text_can_reverse_what_follows_it(control: str) -> None:
    name = f"Ann {control}gro.live"
    described = Line(name, Decimal(1), Decimal(1), Decimal(0))
    (page,) = await pages(replace(INVOICE, customer_name=name, customer_address=name, note=name, lines=(described,)))
    assert page.count("Ann gro.live") == 4


async def test_nothing_is_drawn_left_of_the_text() -> None:
    """The invisible column of the table has no lines: one at its end would show as a speck next to the payment."""
    for number in (1, 2, 5):
        (page,) = PdfReader(io.BytesIO(await render(replace(INVOICE, lines=LINES[:1] * number), FOLDER))).pages
        assert min(length for length in lengths(page)) > 1


def lengths(page: PageObject) -> list[float]:
    """The lengths of the straight lines drawn on the page, in any direction."""
    found = []
    at = 0.0, 0.0
    contents = page.get_contents()
    assert contents is not None
    for operands, operator in contents.operations:
        if operator in (b"m", b"l"):
            to = float(operands[0]), float(operands[1])
            if operator == b"l":
                found.append(abs(to[0] - at[0]) + abs(to[1] - at[1]))
            at = to
    return found
