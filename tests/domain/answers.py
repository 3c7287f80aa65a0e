"""The result of a check: the value, or the one-line refusal."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.domain.errors import InvalidInput

Value = TypeVar("Value")


def answer(check: Callable[[], Value]) -> tuple[Value | None, str]:
    try:
        return check(), ""
    except InvalidInput as refused:
        return None, str(refused)
