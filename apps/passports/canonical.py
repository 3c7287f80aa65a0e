"""Canonical JSON (RFC 8785) and the hashes taken of it. Equal values have equal bytes, in every language."""

import hashlib
import json

import rfc8785

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


_LARGEST_INTEGER = 2**53 - 1


class NotCanonical(ValueError):
    """The value has no canonical form: a number that doubles cannot hold, or a lone surrogate."""


def canonical(value: Json) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise NotCanonical(str(error)) from error


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def read_json(text: bytes | str) -> Json:
    """Parse JSON strictly: no duplicate names, no NaN or infinity. Raise ValueError."""
    value: Json = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    """Canonical JSON writes large doubles without an exponent, and has no other large integers."""
    number = float(digits)
    return int(digits) if abs(number) <= _LARGEST_INTEGER else number


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")
