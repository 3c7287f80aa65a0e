"""What request fields may contain. Any value that passes can be stored, printed and put into an email."""

import re
import unicodedata
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints, WithJsonSchema

# The pattern of HTML's <input type="email">: no quoting, no comments, nothing that could end a header.
_EMAIL = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_CURRENCY = re.compile(r"[A-Z]{3}")
_MONTH = re.compile(r"(2[01][0-9]{2})-(0[1-9]|1[0-2])")


def _storable(value: str) -> str:
    """Refuse control characters and lone surrogates. PostgreSQL cannot store NUL, no encoding can represent a lone
    surrogate, and other control characters have no use in a name."""
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError("has characters that cannot be printed")
    return value


def _address(address: str) -> str:
    """Refuse text that looks like an encoded word. A mail header would decode it to another address."""
    if not _EMAIL.fullmatch(address):
        raise ValueError("write an address such as ann@example.com")
    if "=?" in address:
        raise ValueError("contains =?, which has another meaning in an email")
    return address


def _storable_lines(value: str) -> str:
    value = value.replace("\r\n", "\n")
    _storable(value.replace("\n", ""))
    return value


def _letters(currency: str) -> str:
    if not _CURRENCY.fullmatch(currency):
        raise ValueError("write three capital letters, such as EUR")
    return currency


def _decimal(whole: int, places: int, *, may_be_below_zero: bool = False) -> Callable[[object], object]:
    """Accept text and whole numbers, which are exact. Refuse JSON numbers with fractions, which went through floats."""
    pattern = re.compile(rf"(-?)[0-9]{{1,{whole}}}(\.[0-9]{{1,{places}}})?")

    def check(value: object) -> object:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        found = pattern.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f'write a decimal of at most {whole} digits and {places} places as text, such as "12.5"')
        if found[1] and not may_be_below_zero:
            raise ValueError("must not be below zero")
        return Decimal(found[0])

    return check


def _month(value: object) -> object:
    if isinstance(value, date):
        return value
    found = _MONTH.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError('write a month of the years 2000 to 2199, such as "2026-03"')
    return date(int(found[1]), int(found[2]), 1)


def _plain(value: Decimal) -> str:
    """Drop the trailing zeros that the column adds."""
    return f"{value.normalize():f}"


def _schema(example: str, description: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example], "description": description})


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), AfterValidator(_storable)]
Description = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), AfterValidator(_storable)
]
Paragraph = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000), AfterValidator(_storable_lines)]
# The patterns are only for the description: in an error message they would be hard to understand.
Email = Annotated[
    str,
    StringConstraints(max_length=254),
    AfterValidator(_address),
    Field(json_schema_extra={"pattern": f"^{_EMAIL.pattern}$"}),
]
Currency = Annotated[
    str, AfterValidator(_letters), Field(examples=["EUR"], json_schema_extra={"pattern": f"^{_CURRENCY.pattern}$"})
]
Template = Annotated[
    str, StringConstraints(max_length=40), Field(description="A file in TEMPLATES_FOLDER, without .typ.")
]

Price = Annotated[
    Decimal,
    BeforeValidator(_decimal(12, 2, may_be_below_zero=True)),
    _schema("12.50", "Negative for a discount."),
]
PriceAboveZero = Annotated[Decimal, BeforeValidator(_decimal(12, 2)), Field(gt=0), _schema("80.00", "More than zero.")]
Quantity = Annotated[
    Decimal, BeforeValidator(_decimal(9, 3)), Field(gt=0), _schema("1.5", "More than zero, at most three places.")
]
TaxRate = Annotated[Decimal, BeforeValidator(_decimal(3, 2)), Field(le=100), _schema("19", "In percent, 0 to 100.")]
PlainDecimal = Annotated[Decimal, PlainSerializer(_plain), _schema("1.5", "Without trailing zeros.")]
Month = Annotated[
    date,
    BeforeValidator(_month),
    PlainSerializer(lambda month: f"{month:%Y-%m}", return_type=str),
    _schema("2026-03", "A month."),
]
Amount = Annotated[Decimal, _schema("19.99", "In the currency given next to it, with two decimal places.")]
