"""JSON as checked text: the form in which a store keeps payloads, headers, results, errors and progress.

PostgreSQL rejects NUL characters and lone surrogates in jsonb, and JSON has no NaN. This module catches these before a
job is enqueued or an outcome is written, so that no statement fails halfway through a batch.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NewType

from pydantic_core import from_json, to_jsonable_python

from holdfast.domain.errors import InvalidInput

Json = NewType("Json", str)

DEEPEST = 100
LARGEST_PAYLOAD = 1024 * 1024
LARGEST_RESULT = 64 * 1024

# Numbers that Python may read as infinity or NaN, which are not valid JSON.
_HUGE = re.compile(r"[eE]\+?\d{2}|\d{300}|NaN|Infinity")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _jsonable(value: object) -> object:
    if isinstance(value, Iterator):
        # Serializing it would run its code here, perhaps forever.
        raise TypeError(f"a {type(value).__name__} may never end; make it a list")
    return to_jsonable_python(value)


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_jsonable)


def _reusable_encoder() -> Callable[[object], str]:
    """`_ENCODER.encode`, without the new C encoder that each call makes: for a small payload that is half of its time.

    It does not track nesting, so a value that contains itself ends with RecursionError.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _ENCODER.encode
    text = json.encoder.encode_basestring
    chunks = make(None, _jsonable, text, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode = _reusable_encoder()


def encode(value: object, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """Return the value as JSON text. Raises InvalidInput if PostgreSQL could not store it as JSON."""
    try:
        text = _encode(value)
    except RecursionError:
        raise InvalidInput(f"{name}: nested deeper than {DEEPEST} levels, or it contains itself") from None
    except Exception as error:
        # Any error: serializing may run the application's code, such as a model's properties.
        raise InvalidInput(f"{name}: cannot be written as JSON: {_first_line(error)}") from error
    return check(text, name=name, limit=limit)


def check(text: str, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """Check JSON text from any source for what a database would only reject later."""
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
    """The Python value of stored JSON text."""
    return from_json(text)


def readable(text: str) -> Any:  # noqa: ANN401
    """Like `decode`, for display: returns the text itself if Python cannot represent the value.

    Other producers can store JSON in PostgreSQL that Python cannot read: lone surrogates, any depth, huge numbers.
    """
    try:
        value = decode(text)
        if _HUGE.search(text):
            json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value


def parse(text: str, *, name: str = "payload", limit: int = LARGEST_PAYLOAD) -> Json:
    """Check JSON text that a person typed, including its syntax."""
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
    except Exception:  # noqa: BLE001 - an error raised by the value's code may have a broken __str__
        lines = []
    return lines[0] if lines else type(error).__name__
