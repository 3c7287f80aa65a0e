"""Every error of Holdfast, below one root.

Five families: the caller's mistake, a store that cannot be reached (worth trying again), a lost lease, a bug, and the
signals with which a handler says how its attempt ends.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Self

_LONGEST_LINE = 1_000


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises."""


class InvalidInput(HoldfastError):
    """The caller's mistake: the message is one line that says what is wrong and what to do.

    It quotes what the caller gave, which may be megabytes, have lines of its own, or be no text that can be printed.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_in_one_line(message))


class Unstorable(InvalidInput):
    """The store refuses a value for what it is. The only error that may count against an outcome.

    `reason` says why without quoting the value, for logs.
    """

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or type(self).__name__


class DuplicateJob(InvalidInput):
    """A job with this id exists already, and it was enqueued without a key."""


class UnknownJob(InvalidInput):
    """No job has this id, or it was removed by retention."""


class SchemaMismatch(InvalidInput):
    """The database's Holdfast schema is missing, or is of a version that this release does not know."""


class StoreUnavailable(HoldfastError):
    """The store cannot be reached or refused for a passing reason; the same call may succeed later."""


class ConnectionLost(StoreUnavailable):
    """A connection was lost before the answer came. A new one may well work, so the first new try comes at once."""


class AccessRefused(StoreUnavailable):
    """The store answers, and refuses this role a login or a privilege. Nothing is wrong with the work itself."""


class KeyLocked(StoreUnavailable):
    """Another transaction holds the key and did not end in time; nothing was changed, and trying again may help."""

    @classmethod
    def of(cls, keys: Sequence[str]) -> Self:
        shown = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        named = f"the key {shown}" if len(keys) == 1 else f"one of the keys {shown}"
        return cls(f"another transaction holds {named} and has not ended; try again")


class StaleLease(HoldfastError):
    """This lease was lost: its claim is no longer the job's, so nothing was changed."""


class InternalError(HoldfastError):
    """Holdfast, its driver and the server do not understand each other: a bug. The cause has the traceback."""


class HandlerSignal(HoldfastError):
    """What a handler raises, or returns, to say how its attempt ends."""


class Retryable(HandlerSignal):
    """The attempt failed and may be tried again: by the handler's backoff, or `after` a duration, or `at` a time."""

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "ERROR",
        after: timedelta | str | None = None,
        at: datetime | None = None,
    ) -> None:
        super().__init__(message or code)
        self.code = code
        self.after, self.at = _one_moment(after, at, optional=True)


class Permanent(HandlerSignal):
    """The attempt failed in a way that no further attempt can mend: the job ends `failed`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class Snooze(HandlerSignal):
    """Not now: `Snooze("5m")` or `Snooze(until=…)`. The attempt is not counted."""

    def __init__(self, after: timedelta | str | None = None, *, until: datetime | None = None) -> None:
        super().__init__("snoozed")
        self.after, self.until = _one_moment(after, until, optional=False)


class Cancel(HandlerSignal):
    """The work is no longer wanted: the job ends `canceled`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "canceled by its handler")


def unforeseen(error: BaseException) -> BaseException | None:
    """The error if it is a bug, so that a log shows its traceback; an error with a clear line needs none."""
    is_clear = isinstance(error, HoldfastError) and not isinstance(error, InternalError)
    return None if is_clear else error


def shown(value: object) -> str:
    """A value as a message quotes it. Its own repr can fail, and so does that of an integer of too many digits."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - it is the value's own code, and only its mistake is of interest here
        return f"(a {type(value).__name__} that cannot be shown)"


def _in_one_line(message: str) -> str:
    if len(message) <= _LONGEST_LINE and message.isprintable():
        return message
    if len(message) > _LONGEST_LINE:
        # What is wrong stands at the beginning, what to do at the end.
        message = f"{message[: _LONGEST_LINE // 2]} … {message[-_LONGEST_LINE // 3 :]}"
    line = " ".join(message.splitlines())
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def _one_moment(
    after: timedelta | str | None, at: datetime | None, *, optional: bool
) -> tuple[timedelta | None, datetime | None]:
    # Imported here because duration.py raises InvalidInput, which lives in this module.
    from holdfast.domain.duration import to_aware, to_timedelta

    if after is not None and at is not None:
        raise InvalidInput("give a duration or a time, not both")
    if after is None and at is None and not optional:
        raise InvalidInput('say for how long, as in Snooze("5m"), or until when')
    return (
        None if after is None else to_timedelta(after, "after"),
        None if at is None else to_aware(at, "at"),
    )
