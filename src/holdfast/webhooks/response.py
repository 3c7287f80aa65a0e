"""What a receiver answered, in the form that an application stores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Names in lowercase. The values of a repeated header are joined with commas."""

    body: bytes = field(repr=False)
    """The bytes as they arrived, never decompressed."""

    is_complete: bool
    """False if the body was longer than `send` keeps, or broke off."""

    duration: timedelta
    """From the call of `send`, including DNS, to the end of the response."""
