"""What one attempt does to the outside world: its steps, what it sent, and the crash that ends it.

A crash is an exception that `except Exception` does not catch. From then on nothing that the run does takes effect,
except for what a server does itself when a client dies: it rolls back.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from holdfast.testing.places import place

_LONGEST_TEXT = 120
# Statements that only prepare for another one: a crash after them is the same as after the statement before.
_QUIET = re.compile(r"(BEGIN|START\s+TRANSACTION|SAVEPOINT|SET|SHOW)\b", re.IGNORECASE)
_UNDOING = re.compile(
    r"(ROLLBACK(?!\s+PREPARED)|ABORT|RELEASE|RESET|DISCARD|UNLISTEN|DEALLOCATE|CLOSE)\b"
    r"|SELECT pg_advisory_unlock_all\(\)",
    re.IGNORECASE,
)
# asyncpg runs this query for types that it sees for the first time.
_DRIVERS_OWN = "typeinfo_tree"
_WITHOUT_EFFECT = ("GET", "HEAD", "OPTIONS", "TRACE")
# Methods whose repetition has no further effect, according to HTTP (RFC 9110, 9.2.2).
_IDEMPOTENT = ("PUT", "DELETE")


class Crash(BaseException):
    """The worker dies here. It is not an Exception, so a handler does not treat it as an error."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a handler did to the outside world. `place` is the line in the application's code."""

    number: int
    text: str
    place: str | None

    def __str__(self) -> str:
        return self.text if self.place is None else f"{self.text}  ({self.place})"


@dataclass(frozen=True, slots=True)
class Request:
    """An answered HTTP request. `key` is its Idempotency-Key, and `digest` is the digest of its body.

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
    """`crash_after` is the number of the step after which the run dies; None for a clean run.

    `late` has the steps that tasks and threads of the handler took after it had returned. Each function in `background`
    returns whether one of them has ended.
    """

    def __init__(self, crash_after: int | None = None) -> None:
        self.steps: list[Step] = []
        self.requests: list[Request] = []
        self.calls: list[str] = []
        self.late: list[Step] = []
        self.background: list[Callable[[], bool]] = []
        self.statements: list[str] = []
        """The SQL of all statements, including those that are not steps."""
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
        """Record a step. Raise Crash if it was the one to crash after."""
        where = place()
        with self._lock:
            match effect:
                case Request():
                    self.requests.append(effect)
                case str():
                    self.calls.append(effect)
            # The step was in progress when another task or thread of the handler crashed, and has still happened.
            self.refuse_if_crashed()
            self.steps.append(Step(len(self.steps) + 1, text, where))
            if self.has_returned:
                self.late.append(self.steps[-1])
            self.has_crashed = len(self.steps) == self._crash_after
            self.refuse_if_crashed()


TRACE: ContextVar[Trace | None] = ContextVar("holdfast_trace", default=None)


def refuse_if_crashed() -> None:
    """Call this at the start of an operation that becomes a step only when it ends."""
    trace = TRACE.get()
    if trace is not None:
        trace.refuse_if_crashed()


class Taking:
    """A step in progress. `is_put_off`: nothing has happened yet, and it becomes a step only when it does."""

    __slots__ = ("is_put_off",)

    def __init__(self) -> None:
        self.is_put_off = False


@contextmanager
def step(text: str, *, effect: Request | str | None = None) -> Iterator[Taking]:
    """Make the block one step of the run that this code belongs to, if any."""
    trace, taking = TRACE.get(), Taking()
    if trace is None:
        yield taking
        return
    trace.refuse_if_crashed()
    token = TRACE.set(None)
    try:
        yield taking
    except Exception:
        # The operation failed, but the handler may be prepared for that and continue, so the worker can die here.
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
    """Make the block a step if the statement can change anything."""
    trace = TRACE.get()
    if trace is None:
        yield
        return
    trace.connections.add(connection)
    trace.statements.append(sql)
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
