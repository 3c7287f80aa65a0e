"""From what a handler raised or returned to an outcome: codes, retryability, bounded messages.

Neighbours: worker/executor.py calls it; `@app.error` registers exception types here.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType

from holdfast.domain.duration import Duration, to_aware, to_timedelta
from holdfast.domain.errors import Cancel, HandlerSignal, InvalidInput, Permanent, Retryable, Snooze
from holdfast.domain.job import JobError
from holdfast.domain.json_text import LARGEST_RESULT, encode
from holdfast.domain.outcome import Canceled, Failed, Outcome, Retried, Snoozed, Succeeded

_LONGEST_MESSAGE = 2_000
_LONGEST_TRACEBACK = 8_000
_SUCCEEDED = Succeeded()
_ENGINE = str(Path(__file__).parent / "worker")


@dataclass(frozen=True, slots=True)
class _Rule:
    code: str
    retryable: bool
    after: timedelta | None


class Failures:
    """Maps exception types to codes and retryability; the nearest registered base class decides."""

    def __init__(self) -> None:
        self._rules: dict[type[BaseException], _Rule] = {}

    def register(
        self, exception: type[BaseException], *, code: str, retryable: bool = True, after: Duration | None = None
    ) -> None:
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            raise InvalidInput(f"{exception!r} is not an exception type")
        if after is not None and not retryable:
            raise InvalidInput(f"{exception.__name__}: `after` has no meaning for an error that is not retried")
        delay = None if after is None else to_timedelta(after, "after")
        self._rules[exception] = _Rule(code, retryable, delay)

    def outcome_of(self, raised: BaseException) -> Outcome:
        """Never raises: there is nobody left who could turn a failure at this into an outcome."""
        try:
            return self._outcome_of(raised)
        except BaseException as error:  # noqa: BLE001 - for example a signal whose own __init__ was not called
            return Retried(describe(error, "ERROR"))

    def _outcome_of(self, raised: BaseException) -> Outcome:
        match raised:
            case HandlerSignal():
                return _outcome_of_signal(raised)
            case _:
                rule = self._rule_for(type(raised))
                if rule is None:
                    return Retried(describe(raised, "ERROR"))
                error = describe(raised, rule.code)
                return Retried(error, after=rule.after) if rule.retryable else Failed(error)

    def _rule_for(self, exception: type[BaseException]) -> _Rule | None:
        return next((self._rules[base] for base in exception.__mro__ if base in self._rules), None)


def outcome_of_value(value: object) -> Outcome:
    """What a handler returned: nothing, a result to keep, or a signal."""
    if value is None:
        return _SUCCEEDED
    if isinstance(value, HandlerSignal):
        return _outcome_of_signal(value)
    try:
        return Succeeded(encode(value, name="result", limit=LARGEST_RESULT))
    except InvalidInput as error:
        # The work is done and doing it again would give the same result, so this is not retried.
        return Failed(describe(error, "INVALID_RESULT"))


def _outcome_of_signal(signal: HandlerSignal) -> Outcome:
    match signal:
        case Snooze():
            return Snoozed(_after(signal.after), _at(signal.until))
        case Cancel():
            return Canceled(describe(signal, "CANCELED"))
        case Permanent():
            return Failed(describe(signal, signal.code))
        case Retryable():
            return Retried(describe(signal, signal.code), after=_after(signal.after), at=_at(signal.at))
        case _:
            return Retried(describe(signal, "ERROR"))


def _after(after: timedelta | None) -> timedelta | None:
    """Checked again: whoever holds a signal can have changed it, and no store could write that."""
    return None if after is None else to_timedelta(after, "after")


def _at(at: datetime | None) -> datetime | None:
    return None if at is None else to_aware(at, "at")


def describe(raised: BaseException, code: str) -> JobError:
    """The error as it is stored: bounded, and without anything that a database cannot keep."""
    return bounded_error(
        _told("code", lambda: str(code)),
        _told("type", lambda: type(raised).__qualname__),
        _told("message", lambda: str(raised)),
        _told("traceback", lambda: _traceback(raised)),
    )


def _told(what: str, tell: Callable[[], str]) -> str:
    """What an exception says of itself. Its own code may raise anything, and must not turn one failure into another."""
    try:
        # A plain str: a class of the application's own may have broken methods.
        return str.__str__(tell())
    except BaseException as error:  # noqa: BLE001
        return f"(its {what} cannot be shown: {type(error).__name__})"


def bounded_error(code: str, type: str, message: str, traceback: str = "") -> JobError:
    return JobError(
        code=_storable(code)[:200],
        type=_storable(type)[:200],
        message=_storable(message)[:_LONGEST_MESSAGE],
        traceback=_storable(traceback)[-_LONGEST_TRACEBACK:],
    )


def _traceback(raised: BaseException) -> str:
    trace = _without_engine(raised.__traceback__)
    return "" if trace is None else "".join(traceback.format_exception(type(raised), raised, trace, limit=-20))


def _without_engine(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on: how the engine called it says nothing about the failure."""
    while trace is not None and trace.tb_next is not None and _ENGINE in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return trace


def _storable(text: str) -> str:
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
