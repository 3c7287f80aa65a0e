"""Handlers: which function does the work of a kind, with which payload type and policy.

Neighbours: app.py offers `@app.handler`, worker/executor.py runs what is registered here.
"""

import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from holdfast.domain.connections import Rows
from holdfast.domain.crash_points import reach
from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import PublishedEvent
from holdfast.domain.job import DEFAULT_QUEUE, Lease, check_attempts, check_name
from holdfast.domain.json_text import LARGEST_RESULT, Json, decode, encode
from holdfast.domain.lifecycle import DEFAULT_ATTEMPTS, DEFAULT_CRASHES
from holdfast.domain.limits import check_lease
from holdfast.domain.options import options_of
from holdfast.domain.retry import Backoff, to_backoff
from holdfast.domain.statement import Statement

Payload = TypeVar("Payload")

DEFAULT_TIMEOUT = timedelta(minutes=5)
MOST_CRASHES = 1000


class Isolation(StrEnum):
    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class FinishInTransaction:
    """The SQL with which a handler finishes its job inside its own transaction."""

    sql: str

    def statement(self, lease: Lease, result: Json | None) -> Statement[None]:
        return Statement.in_text(self.sql, (lease.id, lease.claim, result), _finished)


@dataclass(slots=True, kw_only=True)
class RunningJob(Generic[Payload]):
    """The job as its handler sees it.

    `fence` rises with every claim of the job: pass it on to systems that can refuse an older one.
    """

    lease: Lease
    kind: str
    queue: str
    payload: Payload
    headers: dict[str, Any]
    tenant: str
    correlation_id: str
    attempt: int
    losses: int
    max_attempts: int
    created_at: datetime
    deadline: datetime
    _report: Callable[[Json], None]
    _finish_in: FinishInTransaction | None
    _finishing: Callable[[], None] = lambda: None
    """Hears, before the lease is locked, that a transaction of the handler's may be what locks it."""
    finish_requested: bool = field(default=False, init=False)

    @property
    def id(self) -> UUID:
        return self.lease.id

    @property
    def fence(self) -> int:
        return self.lease.fence

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job is a dead letter if this attempt fails. Those that lost their lease do not count."""
        return self.attempt - self.losses >= self.max_attempts

    @property
    def event(self) -> PublishedEvent | None:
        """The event that made this job; None if it was enqueued by other means."""
        return PublishedEvent.of(self.headers)

    def progress(self, value: object) -> None:
        """Note how far the work is. The newest note is written with the next renewal of the lease."""
        self._report(encode(value, name="progress", limit=LARGEST_RESULT))

    def finish_in(self, connection: object, result: object = None) -> Awaitable[None]:
        """Succeed inside the caller's transaction: its writes and this outcome commit together or not at all.

        Await it with an async connection. Raises StaleLease when the lease was lost; such a transaction cannot commit.
        Under repeatable read call it first, so that no renewal comes between.
        """
        if self._finish_in is None:
            raise InvalidInput(
                "finish_in needs a PostgreSQL store, and this job lives in one that has no transactions; in a test use "
                "holdfast.testing.on_postgres"
            )
        encoded = None if result is None else encode(result, name="result", limit=LARGEST_RESULT)
        self._finishing()
        reach("finish_in.before")
        executed = self._finish_in.statement(self.lease, encoded).execute_on(connection)
        self.finish_requested = True
        return executed if executed is not None else _nothing()


def _finished(rows: Rows) -> None:  # noqa: ARG001 - there is nothing in them
    reach("finish_in.after")


class _Nothing:
    """A finished awaitable: unlike a coroutine it may be dropped without a warning, as blocking callers do."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def _nothing() -> Awaitable[None]:
    return typing.cast(Awaitable[None], _Nothing())


CURRENT_JOB: ContextVar[RunningJob[Any] | None] = ContextVar("holdfast_current_job", default=None)

HandlerFunction = Callable[[RunningJob[Any]], Any]


class Room(NamedTuple):
    """How many jobs of a kind have room at this moment, and in how many seconds there may be more."""

    most: float = math.inf
    more_in: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One kind's function and policy. `limit` caps how many of the kind one worker process runs at once, `crashes` how
    many workers a job may take down while it runs alone.

    `room` lowers that for a while: a handler that cannot work now leaves its jobs in the store, unclaimed.
    """

    kind: str
    function: HandlerFunction
    payload_type: Any
    queue: str
    attempts: int
    backoff: Backoff
    timeout: timedelta
    lease: timedelta | None
    limit: int | None
    isolation: Isolation
    adapter: TypeAdapter[Any] | None
    crashes: int = DEFAULT_CRASHES
    room: Callable[[], Room] = Room

    def read_payload(self, payload: Json) -> Any:  # noqa: ANN401
        """The typed payload; pydantic's ValidationError if it does not fit. For `Json` it is the text itself."""
        if self.payload_type is Json:
            return payload
        return decode(payload) if self.adapter is None else self.adapter.validate_json(payload)

    def encode_payload(self, payload: object) -> Json:
        """The payload as JSON text, checked against the kind's type before it is enqueued."""
        text = encode(payload)
        if self.adapter is None or self.payload_type is object:
            return text
        try:
            self.adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidInput(f"payload of {self.kind!r}: {describe_validation(error)}") from error
        return text


class Handlers:
    """The registry: kind to handler."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        if handler.kind in self._by_kind:
            raise InvalidInput(f"kind {handler.kind!r} has a handler already; give each kind one handler")
        self._by_kind[handler.kind] = handler

    def get(self, kind: str) -> Handler | None:
        return self._by_kind.get(kind)

    def of(self, function: HandlerFunction) -> list[Handler]:
        """Those that this function is the function of."""
        return [handler for handler in self if handler.function is function]

    def encode_payload(self, kind: str, payload: object) -> Json:
        """As JSON text, checked if the kind has a handler here; None is an empty one."""
        handler = self.get(kind)
        value = {} if payload is None else payload
        return encode(value) if handler is None else handler.encode_payload(value)

    def queue_of(self, kind: str) -> str:
        handler = self.get(kind)
        return DEFAULT_QUEUE if handler is None else handler.queue

    def __getitem__(self, kind: str) -> Handler:
        return self._by_kind[kind]

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)


@options_of("a handler")
def make_handler(
    kind: str,
    function: HandlerFunction,
    *,
    payload: Any = None,  # noqa: ANN401
    queue: str = DEFAULT_QUEUE,
    attempts: int = DEFAULT_ATTEMPTS,
    backoff: Backoff | str | None = None,
    timeout: Duration = DEFAULT_TIMEOUT,
    lease: Duration | None = None,
    limit: int | None = None,
    isolation: str | None = None,
    crashes: int = DEFAULT_CRASHES,
) -> Handler:
    """Check everything that can be checked when the program starts rather than when the first job comes."""
    check_name("kind", kind)
    _check_signature(kind, function)
    payload_type = payload if payload is not None else _annotated_payload(function)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit: {limit!r} is not a number of at least 1")
    if not isinstance(crashes, int) or isinstance(crashes, bool) or not 1 <= crashes <= MOST_CRASHES:
        raise InvalidInput(f"crashes: {crashes!r} is not a number from 1 to {MOST_CRASHES}")
    return Handler(
        kind=kind,
        function=function,
        payload_type=payload_type,
        queue=check_name("queue", queue),
        attempts=check_attempts(attempts),
        backoff=to_backoff(backoff),
        timeout=_positive(timeout, "timeout"),
        lease=None if lease is None else check_lease(to_timedelta(lease, "lease")),
        limit=limit,
        isolation=_isolation(function, isolation),
        adapter=_adapter(kind, payload_type),
        crashes=crashes,
    )


def name_of(function: HandlerFunction) -> str:
    """The kind of a handler for which nobody names one."""
    name: str = getattr(function, "__name__", "")
    if name == "<lambda>":
        raise InvalidInput("kind: a lambda has no name; say name=")
    return name


def _check_signature(kind: str, function: HandlerFunction) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"handler of {kind!r}: has a yield, so a call would run nothing of it; return a list")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise InvalidInput(f"handler of {kind!r}: must take the job as its one argument ({error})") from None


def describe_validation(error: ValidationError) -> str:
    """The wrong fields with their paths, in one line."""
    problems = []
    for problem in error.errors(include_url=False, include_input=False)[:5]:
        path = ".".join(str(part) for part in problem["loc"]) or "(whole payload)"
        problems.append(f"{path}: {problem['msg']}")
    return "; ".join(problems)


def _isolation(function: HandlerFunction, wanted: str | None) -> Isolation:
    is_async = inspect.iscoroutinefunction(function)
    if wanted is None:
        return Isolation.ASYNC if is_async else Isolation.THREAD
    try:
        isolation = Isolation(wanted)
    except ValueError:
        raise InvalidInput(f"isolation: {wanted!r} is not one of {', '.join(Isolation)}") from None
    if isolation is Isolation.ASYNC and not is_async:
        raise InvalidInput("isolation: a `def` handler cannot run on the event loop; use thread or process")
    if isolation is Isolation.THREAD and is_async:
        raise InvalidInput("isolation: an `async def` handler cannot run in a thread; use async or process")
    return isolation


def _annotated_payload(function: HandlerFunction) -> Any:  # noqa: ANN401
    """The P of `def handle(job: RunningJob[P])`, or None."""
    inner = inspect.unwrap(function)
    first = next(iter(inspect.signature(inner).parameters), "")
    annotations = {name: hint for name, hint in getattr(inner, "__annotations__", {}).items() if name == first}
    try:
        hints = typing.get_type_hints(SimpleNamespace(__annotations__=annotations), getattr(inner, "__globals__", {}))
    except NameError as error:
        # Taken for "no type", it would hand the handler a dict where it expects an object, with the first job.
        raise InvalidInput(
            f"the type of {first!r} cannot be resolved: {error}; define it before the handler, or pass payload="
        ) from error
    annotation = hints.get(first)
    if typing.get_origin(annotation) is not RunningJob:
        return None
    (payload_type,) = typing.get_args(annotation)
    return None if isinstance(payload_type, TypeVar) or payload_type is Any else payload_type


def _adapter(kind: str, payload_type: Any) -> TypeAdapter[Any] | None:  # noqa: ANN401
    if payload_type is None or payload_type is Json:
        return None
    try:
        return TypeAdapter(payload_type)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidInput(
            f"payload type of {kind!r}: {payload_type!r} cannot be checked; use a dataclass, a pydantic model, a "
            f"TypedDict or dict ({str(error).splitlines()[0]})"
        ) from error


def _positive(value: Duration, name: str) -> timedelta:
    duration = to_timedelta(value, name)
    if not duration:
        raise InvalidInput(f"{name}: must be more than zero")
    return duration
