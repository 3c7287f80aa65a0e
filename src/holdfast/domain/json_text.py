"""JSON as checked text: what a store keeps for payloads, headers, results, errors and progress.

PostgreSQL refuses NUL characters and lone surrogates in jsonb, and JSON has no NaN. All of that is found out here,
before a job is enqueued or an outcome is written, so that no statement fails halfway through a batch.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NewType

from pydantic_core import from_json, to_jsonable_python

from holdfast.domain.errors import InvalidInput

Json = NewType("Json", str)

DEEPEST = 100
LARGEST_PAYLOAD = 1024 * 1024
LARGEST_RESULT = 64 * 1024

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _jsonable(value: object) -> object:
    if isinstance(value, Iterator):
        # To write it down would run its code here, perhaps for ever.
        raise TypeError(f"a {type(value).__name__} may never end; make it a list")
    return to_jsonable_python(value)


# json.dumps makes one at each call that is not plain.
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_jsonable)


def encode(value: object, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """The value as JSON text, or InvalidInput that says in one line why it cannot be JSON in PostgreSQL."""
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise InvalidInput(f"{name}: nested deeper than {DEEPEST} levels, or it contains itself") from None
    except Exception as error:
        # Whatever it is: a value may bring code of its own, such as the properties of a model.
        raise InvalidInput(f"{name}: cannot be written as JSON: {_first_line(error)}") from error
    return check(text, name=name, limit=limit)


def check(text: str, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """JSON text of somebody else's making, after the checks that a database would make too late."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: contains a lone surrogate, which is not a character") from None
    if size > limit:
        raise InvalidInput(
            f"{name}: {size:,} bytes of JSON are over the limit of {limit:,}; store the content elsewhere and pass "
            f"its address"
        )
    if "\\u" in text:
        _check_escapes(text, name)
    if text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST:
        raise InvalidInput(f"{name}: nested deeper than {DEEPEST} levels, or it contains itself")
    return Json(text)


def _check_escapes(text: str, name: str) -> None:
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidInput(f"{name}: contains a NUL character, which PostgreSQL cannot store")
    if "\\ud" in text.lower() and _has_lone_surrogate(text):
        raise InvalidInput(f"{name}: contains a lone surrogate, which is not a character")


def decode(text: str) -> Any:  # noqa: ANN401
    """The Python value of stored JSON."""
    return from_json(text)


def readable(text: str) -> Any:  # noqa: ANN401
    """The same for a person to look at: the text itself where Python cannot hold the value.

    PostgreSQL takes more than that from other producers: lone surrogates, any depth, numbers beyond all bounds.
    """
    try:
        value = decode(text)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value


def parse(text: str, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """JSON text typed by a person, checked to be JSON at all."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name}: not JSON: {_first_line(error)}") from error
    return encode(value, name=name, limit=limit)


def _has_lone_surrogate(text: str) -> bool:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _depth(text: str) -> int:
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _first_line(error: Exception) -> str:
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - an error of the value's own may be as broken as the value
        lines = []
    return lines[0] if lines else type(error).__name__
