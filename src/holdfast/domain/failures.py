"""Turns what a handler raised or returned into an outcome with a code, retryability and a bounded message.

Neighbors: worker/executor.py calls it; `@app.error` registers exception types here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.duration import Duration, to_aware, to_timedelta
from holdfast.domain.errors import Cancel, HandlerSignal, InvalidInput, Permanent, Retryable, Snooze
from holdfast.domain.job import JobError
from holdfast.domain.json_text import LARGEST_RESULT, encode
from holdfast.domain.outcome import Canceled, Failed, Outcome, Retried, Snoozed, Succeeded
from holdfast.domain.tracebacks import Traced, traced

_LONGEST_MESSAGE = 2_000
_LONGEST_TRACEBACK = 8_000
_LONGEST_PLACE = 500
_SUCCEEDED = Succeeded()


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
            raise InvalidInput(f"{exception.__name__}: `after` has no effect on an error that is not retried")
        delay = None if after is None else to_timedelta(after, "after")
        self._rules[exception] = _Rule(code, retryable, delay)

    def outcome_of(self, raised: BaseException) -> Outcome:
        """Never raises, because no caller could turn a failure here into an outcome."""
        try:
            return self._outcome_of(raised)
        except BaseException as error:  # noqa: BLE001 - for example a signal without super().__init__()
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
    """The outcome for a handler's return value: None, a result to store, or a signal."""
    if value is None:
        return _SUCCEEDED
    if isinstance(value, HandlerSignal):
        return _outcome_of_signal(value)
    try:
        return Succeeded(encode(value, name="result", limit=LARGEST_RESULT))
    except InvalidInput as error:
        # Not retried: the work is done, and a second run would return the same result.
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
    """Check again: the signal's attributes may have been changed to something that a store cannot write."""
    return None if after is None else to_timedelta(after, "after")


def _at(at: datetime | None) -> datetime | None:
    return None if at is None else to_aware(at, "at")


def describe(raised: BaseException, code: str) -> JobError:
    """The error as it is stored: bounded in size and without characters that a database cannot store."""
    trace = _traced(raised)
    return bounded_error(
        _told("code", lambda: str(code)),
        _told("type", lambda: type(raised).__qualname__),
        _told("message", lambda: "\n".join((str(raised), *getattr(raised, "__notes__", ())))),
        trace.text,
        trace.place,
    )


def _traced(raised: BaseException) -> Traced:
    try:
        return traced(raised)
    except BaseException as error:  # noqa: BLE001 - for example because of a broken __cause__
        return Traced(_cannot_be_shown("traceback", error), "")


def _told(what: str, tell: Callable[[], str]) -> str:
    """Read an exception's own text. Its code may raise anything, which must not replace the first failure."""
    try:
        # Converted to a plain str, because the application's str subclass may have broken methods.
        return str.__str__(tell())
    except BaseException as error:  # noqa: BLE001
        return _cannot_be_shown(what, error)


def _cannot_be_shown(what: str, error: BaseException) -> str:
    return f"(its {what} cannot be shown: {type(error).__name__})"


def bounded_error(code: str, type: str, message: str, traceback: str = "", place: str = "") -> JobError:
    return JobError(
        code=_storable(code)[:200],
        type=_storable(type)[:200],
        message=_storable(message)[:_LONGEST_MESSAGE],
        traceback=_storable(traceback)[-_LONGEST_TRACEBACK:],
        place=_storable(place)[-_LONGEST_PLACE:],
    )


def _storable(text: str) -> str:
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
