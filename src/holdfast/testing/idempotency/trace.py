"""What one attempt does to the world outside: its steps, what it sent, and the crash that ends it.

A crash is an exception that no `except Exception` catches. From then on nothing that the run does takes effect, except
for what a server does by itself when a client dies: rolling back.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from holdfast.testing.places import place

_LONGEST_TEXT = 120
# What only opens the way for another statement: a crash behind it is a crash behind the statement before.
_QUIET = re.compile(r"(BEGIN|START\s+TRANSACTION|SAVEPOINT|SET|SHOW)\b", re.IGNORECASE)
_UNDOING = re.compile(
    r"(ROLLBACK(?!\s+PREPARED)|ABORT|RELEASE|RESET|DISCARD|UNLISTEN|DEALLOCATE|CLOSE)\b"
    r"|SELECT pg_advisory_unlock_all\(\)",
    re.IGNORECASE,
)
# asyncpg asks about types that it meets for the first time.
_DRIVERS_OWN = "typeinfo_tree"
_WITHOUT_EFFECT = ("GET", "HEAD", "OPTIONS", "TRACE")
# Sent twice they do what they do sent once; HTTP says so (RFC 9110, 9.2.2).
_IDEMPOTENT = ("PUT", "DELETE")


class Crash(BaseException):
    """The worker dies here. Not an Exception, so that no handler takes it for an error of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a handler did to the world outside. `place` is the line of the application's code."""

    number: int
    text: str
    place: str | None

    def __str__(self) -> str:
        return self.text if self.place is None else f"{self.text}  ({self.place})"


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request that was answered. `key` is its Idempotency-Key, `digest` that of its body.

    A body that is sent as a stream has no digest.
    """

    method: str
    url: str
    key: str | None = None
    digest: str | None = None

    @property
    def has_effect(self) -> bool:
        return self.method not in _WITHOUT_EFFECT

    @property
    def is_idempotent(self) -> bool:
        return self.method in _IDEMPOTENT

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


class Trace:
    """`crash_after` is the number of the step behind which the run dies; None for a clean run.

    `late` has the steps that were taken after the handler had returned, by what it left running: `background` tells
    of each whether it has ended.
    """

    def __init__(self, crash_after: int | None = None) -> None:
        self.steps: list[Step] = []
        self.requests: list[Request] = []
        self.calls: list[str] = []
        self.late: list[Step] = []
        self.background: list[Callable[[], bool]] = []
        self.connections: set[object] = set()
        self.has_returned = False
        self.has_crashed = False
        self.is_over = False
        self._crash_after = crash_after
        self._lock = threading.Lock()

    def refuse_if_crashed(self) -> None:
        if self.has_crashed or self.is_over:
            raise Crash

    def took(self, text: str, *, effect: Request | str | None = None) -> None:
        """A step was taken. Raises Crash if it was the one."""
        where = place()
        with self._lock:
            match effect:
                case Request():
                    self.requests.append(effect)
                case str():
                    self.calls.append(effect)
            # It was under way when another task or thread of the handler crashed, and has happened all the same.
            self.refuse_if_crashed()
            self.steps.append(Step(len(self.steps) + 1, text, where))
            if self.has_returned:
                self.late.append(self.steps[-1])
            self.has_crashed = len(self.steps) == self._crash_after
            self.refuse_if_crashed()


TRACE: ContextVar[Trace | None] = ContextVar("holdfast_trace", default=None)


def refuse_if_crashed() -> None:
    """For what begins here and is a step only at its end."""
    trace = TRACE.get()
    if trace is not None:
        trace.refuse_if_crashed()


class Taking:
    """A step that is being taken. `is_put_off`: nothing has happened yet, and it will be a step when it does."""

    __slots__ = ("is_put_off",)

    def __init__(self) -> None:
        self.is_put_off = False


@contextmanager
def step(text: str, *, effect: Request | str | None = None) -> Iterator[Taking]:
    """What happens inside is one step of the run that this code belongs to, if it belongs to one."""
    trace, taking = TRACE.get(), Taking()
    if trace is None:
        yield taking
        return
    trace.refuse_if_crashed()
    token = TRACE.set(None)
    try:
        yield taking
    except Exception:
        # It did not work, and the handler may be prepared for that: its way goes on, so the worker can die here.
        TRACE.reset(token)
        trace.took(f"{text}  (failed)")
        raise
    except BaseException:
        TRACE.reset(token)
        raise
    TRACE.reset(token)
    if not taking.is_put_off:
        trace.took(text, effect=effect)


@contextmanager
def statement(connection: object, sql: str) -> Iterator[None]:
    """A step if the statement is one that can change anything."""
    trace = TRACE.get()
    if trace is None:
        yield
        return
    trace.connections.add(connection)
    parts = [part for part in map(str.strip, sql.split(";")) if part]
    if all(map(_UNDOING.match, parts)) or _DRIVERS_OWN in sql:
        yield
    elif all(_QUIET.match(part) or _UNDOING.match(part) for part in parts):
        trace.refuse_if_crashed()
        yield
    else:
        with step(shortened(sql)):
            yield


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"
