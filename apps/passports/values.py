"""Types of values that come from outside: in requests and in the payloads of jobs."""

import unicodedata
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, StringConstraints

_EARLIEST, _LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def printable(text: str) -> str:
    """Refuse control characters and lone surrogates: no database and no label can hold them."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("has characters that cannot be printed")
    return text


def _in_range(time: datetime) -> datetime:
    if not _EARLIEST <= time < _LATEST:
        raise ValueError("write a time in the years 2000 to 2199")
    return time.astimezone(UTC)


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), AfterValidator(printable)]
Time = Annotated[AwareDatetime, AfterValidator(_in_range)]
