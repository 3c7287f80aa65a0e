"""What a field of a request may hold. Whatever gets past here can be stored, printed and put into a mail."""

import re
import unicodedata
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints, WithJsonSchema

_MONTH = re.compile(r"(2[01][0-9]{2})-(0[1-9]|1[0-2])")


def _storable(value: str) -> str:
    """PostgreSQL takes no NUL, and nobody a lone surrogate; other control characters are of no use in a name."""
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError("has a control character in it, or one that is none")
    return value


def _literal(address: str) -> str:
    """What looks like an encoded word would be decoded in a header, and be another address there."""
    if "=?" in address:
        raise ValueError("has =? in it, which means something else in a mail")
    return address


def _storable_lines(value: str) -> str:
    value = value.replace("\r\n", "\n")
    _storable(value.replace("\n", ""))
    return value


def _decimal(whole: int, places: int, sign: str = "") -> Callable[[object], object]:
    """Whole numbers are exact and welcome; a JSON number with a fraction is not, for it was a float on its way."""
    pattern = re.compile(rf"{sign}[0-9]{{1,{whole}}}(\.[0-9]{{1,{places}}})?")

    def check(value: object) -> object:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError(f'write a decimal of at most {whole} digits and {places} places as text, such as "12.5"')
        return Decimal(text)

    return check


def _month(value: object) -> object:
    if isinstance(value, date):
        return value
    found = _MONTH.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError('write a month of the years 2000 to 2199, such as "2026-03"')
    return date(int(found[1]), int(found[2]), 1)


def _plain(value: Decimal) -> str:
    """Without the zeros that the column adds."""
    return f"{value.normalize():f}"


def _schema(example: str, description: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example], "description": description})


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), AfterValidator(_storable)]
Description = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), AfterValidator(_storable)
]
Paragraph = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2000), AfterValidator(_storable_lines)]
Email = Annotated[
    str,
    StringConstraints(
        max_length=254,
        # That of HTML's <input type="email">: no quoting, no comments, nothing that would end a header.
        pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        r"(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
    ),
    AfterValidator(_literal),
]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$"), Field(examples=["EUR"])]
Template = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]

Price = Annotated[Decimal, BeforeValidator(_decimal(12, 2, "-?")), _schema("12.50", "Below zero it is a discount.")]
PriceAboveZero = Annotated[Decimal, BeforeValidator(_decimal(12, 2)), Field(gt=0), _schema("80.00", "More than zero.")]
Quantity = Annotated[
    Decimal, BeforeValidator(_decimal(9, 3)), Field(gt=0), _schema("1.5", "More than zero, at most three places.")
]
TaxRate = Annotated[Decimal, BeforeValidator(_decimal(3, 2)), Field(le=100), _schema("19", "In per cent, 0 to 100.")]
PlainDecimal = Annotated[Decimal, PlainSerializer(_plain), _schema("1.5", "As short as it can be written.")]
Month = Annotated[
    date,
    BeforeValidator(_month),
    PlainSerializer(lambda month: f"{month:%Y-%m}", return_type=str),
    _schema("2026-03", "A month."),
]
Amount = Annotated[Decimal, _schema("19.99", "In the currency beside it, two places.")]
