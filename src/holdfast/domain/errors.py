"""All of Holdfast's errors, under one root.

There are five families: mistakes by the caller, an unavailable store (worth a retry), a lost lease, a bug, and the
signals that a handler uses to end its attempt.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from holdfast.domain.address import without_password

if TYPE_CHECKING:
    from holdfast.domain.job import Job

CHECK_SERVER = "; check that the server is running and that HOLDFAST_STORE points to it"
"""The end of the message if a server cannot be reached."""

_LONGEST_LINE = 1_000
_LONGEST_READ = 10 * _LONGEST_LINE
"""How much of a message is searched for passwords: more than is shown, so that none is cut in two."""


class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises."""


class InvalidInput(HoldfastError):
    """The caller made a mistake. The message is one line that says what is wrong and how to fix it.

    The message quotes the caller's input, which may be huge, contain line breaks or be unprintable, so it is shortened
    and cleaned up. It may also be an address in the wrong place, so passwords are removed.
    """

    def __init__(self, message: str = "") -> None:
        if len(message) > _LONGEST_READ:
            message = f"{message[: _LONGEST_READ // 2]}{message[-_LONGEST_READ // 2 :]}"
        super().__init__(_in_one_line(without_password(message)))


class Unstorable(InvalidInput):
    """The store rejects the value itself. This is the only error that may be blamed on an outcome.

    `reason` says why without quoting the value, so it is safe to log.
    """

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or type(self).__name__


class DuplicateJob(InvalidInput):
    """A job with this id already exists, and it was not enqueued with the same key, kind and tenant."""


class UnknownJob(InvalidInput):
    """No job has this id: its transaction is not committed yet, or retention or `delete` has removed the job."""


class JobFailed(HoldfastError):
    """The awaited job has no result because it ended `failed`, `dead` or `canceled`; see `job.state`."""

    def __init__(self, job: "Job") -> None:
        error = job.last_error
        self.job = job
        self.code = error.code if error else ""
        self.message = error.message if error else ""
        why = f": {error.code}: {error.summary}" if error else ""
        super().__init__(_in_one_line(f"job {job.id} of kind {job.kind!r} ended {job.state}{why}"))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.job,)


class SchemaMismatch(InvalidInput):
    """The database has no Holdfast schema, or a version of it that this release does not support."""


class StoreUnavailable(HoldfastError):
    """The store is unreachable or has a temporary problem; the same call may succeed later."""


class ConnectionLost(StoreUnavailable):
    """The connection was lost before the answer arrived. A new one will probably work, so retry once immediately."""


class AccessRefused(StoreUnavailable):
    """The store answers but denies this role a login or a privilege. Nothing is wrong with the work itself."""


class KeyLocked(StoreUnavailable):
    """Another transaction holds the key and did not end in time. Nothing was changed; a retry may succeed."""

    @classmethod
    def of(cls, keys: Sequence[str]) -> Self:
        shown = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        named = f"the key {shown}" if len(keys) == 1 else f"one of the keys {shown}"
        return cls(f"another transaction holds {named} and has not ended; try again")


class StaleLease(HoldfastError):
    """The lease was lost: the job no longer belongs to this claim, so nothing was changed."""


class InternalError(HoldfastError):
    """A bug: Holdfast, its driver and the server disagree. The traceback is in the exception's cause."""


class HandlerSignal(HoldfastError):
    """The base class of what a handler raises or returns to end its attempt in a particular way."""


class Retryable(HandlerSignal):
    """The attempt failed and may be retried: after the handler's backoff, `after` a duration or `at` a time."""

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
    """The attempt failed and a retry cannot help: the job ends `failed`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class Snooze(HandlerSignal):
    """Run the job later: `Snooze("5m")` or `Snooze(until=…)`. The attempt does not count."""

    def __init__(self, after: timedelta | str | None = None, *, until: datetime | None = None) -> None:
        super().__init__("snoozed")
        self.after, self.until = _one_moment(after, until, optional=False)


class Cancel(HandlerSignal):
    """The work is no longer needed: the job ends `canceled`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "canceled by its handler")


def unforeseen(error: BaseException) -> BaseException | None:
    """Return the error if it is a bug, so that the log shows its traceback; other errors explain themselves."""
    is_clear = isinstance(error, HoldfastError) and not isinstance(error, InternalError)
    return None if is_clear else error


def shown(value: object) -> str:
    """The repr of a value, for use in a message. A custom repr can raise, and so does that of a very long integer."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - the repr is the application's code and may raise anything
        return f"(a {type(value).__name__} that cannot be shown)"


def _in_one_line(message: str) -> str:
    if len(message) <= _LONGEST_LINE and message.isprintable():
        return message
    if len(message) > _LONGEST_LINE:
        # Keep both ends: the message starts with what is wrong and ends with what to do.
        message = f"{message[: _LONGEST_LINE // 2]} … {message[-_LONGEST_LINE // 3 :]}"
    line = " ".join(message.splitlines())
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def _one_moment(
    after: timedelta | str | None, at: datetime | None, *, optional: bool
) -> tuple[timedelta | None, datetime | None]:
    # Imported here to avoid a cycle: duration.py imports InvalidInput from this module.
    from holdfast.domain.duration import to_aware, to_timedelta

    if after is not None and at is not None:
        raise InvalidInput("give a duration or a time, not both")
    if after is None and at is None and not optional:
        raise InvalidInput('give a duration, as in Snooze("5m"), or a time, as in Snooze(until=…)')
    return (
        None if after is None else to_timedelta(after, "after"),
        None if at is None else to_aware(at, "at"),
    )
