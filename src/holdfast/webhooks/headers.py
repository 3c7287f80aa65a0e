"""Names and values of HTTP headers: which are safe to send, and how to find one that was received."""

import re
from collections.abc import Mapping

from holdfast.domain.errors import InvalidInput
from holdfast.webhooks.errors import InvalidSignature

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Raise InvalidInput if a receiver could read a header as something else, such as two headers."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is not the name of an HTTP header")
        if not _VALUE.fullmatch(value):
            raise InvalidInput(f"the HTTP header {name} must be printable ASCII, without spaces at its ends")
    return dict(headers)


def received(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a header whose name may have any case."""
    return next((value for each, value in headers.items() if each.lower() == name.lower()), None)


def required(headers: Mapping[str, str], name: str) -> str:
    value = received(headers, name)
    if value is None:
        raise InvalidSignature(f"the header {name} is missing")
    return value
