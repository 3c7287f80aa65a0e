"""Handlers: the function that runs jobs of a kind, with its payload type and policy.

Neighbors: app.py offers `@app.handler`, worker/executor.py runs what is registered here.
"""

import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple
from uuid import UUID

from typing_extensions import TypeVar

from holdfast.domain.connections import Rows
from holdfast.domain.crash_points import reach
from holdfast.domain.dead_job import for_deaths
from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import HandlerSignal, InvalidInput
from holdfast.domain.event import PublishedEvent
from holdfast.domain.failures import outcome_of_value
from holdfast.domain.job import DEFAULT_QUEUE, Lease, check_attempts, check_name
from holdfast.domain.json_text import LARGEST_RESULT, Json, encode
from holdfast.domain.kinds import NOTHING, Kind, Payload, encode_payload
from holdfast.domain.lifecycle import (
    DEFAULT_ATTEMPTS,
    DEFAULT_CRASHES,
    KEPT_ERRORS,
    PLAIN_SUCCESS,
    Move,
    Transition,
    after_outcome,
)
from holdfast.domain.limits import check_lease
from holdfast.domain.options import options_of
from holdfast.domain.outcome import Retried
from holdfast.domain.retry import DEFAULT_BACKOFF, Backoff, to_backoff
from holdfast.domain.statement import Statement
from holdfast.domain.versions import FIRST_VERSION, Upgrade, check_upgrades

State = TypeVar("State", default=Any)
"""The value that an app's lifespan yields."""

_RANDOM = Random()  # noqa: S311 - guards nothing
DEFAULT_TIMEOUT = timedelta(minutes=5)
MOST_CRASHES = 1000


class Isolation(StrEnum):
    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


_TOO_LATE = (
    "the lease was renewed after the transaction's first statement; under repeatable read and serializable "
    "call finish_in before anything else, or use read committed"
)


@dataclass(frozen=True, slots=True)
class FinishInTransaction:
    """The SQL that finishes a job in its handler's own transaction. `end_sql` is for outcomes other than success."""

    sql: str
    end_sql: str | None = None

    def statement(self, lease: Lease, result: Json | None) -> Statement[None]:
        return Statement.in_text(self.sql, (lease.id, lease.claim, result), _finished, conflict=_TOO_LATE)

    def end_statement(self, lease: Lease, transition: Transition) -> Statement[None]:
        if self.end_sql is None:
            raise InvalidInput("finish_in: a row of your own table can only succeed here; raise the outcome instead")
        error = None if transition.error is None else encode(transition.error.as_dict())
        ending = (transition.move.value, transition.state.value, transition.delay, transition.at, error, KEPT_ERRORS)
        return Statement.in_text(self.end_sql, (lease.id, lease.claim, *ending), _finished, conflict=_TOO_LATE)


@dataclass(slots=True)
class RunningJob(Generic[Payload, State]):
    """The job as its handler sees it.

    `fence` rises with every claim of the job: pass it to systems that can reject an older one. `state` is the value
    that the app's lifespan yielded in this process.
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
    state: State = None  # type: ignore[assignment]  # without a lifespan
    _finishing: Callable[[], None] = lambda: None
    """Called before the lease is locked, to announce that the handler's own transaction may hold the lock."""
    finish_requested: Move | None = field(default=None, init=False)
    """How the handler's own transaction may have ended the job."""

    @property
    def id(self) -> UUID:
        return self.lease.id

    @property
    def fence(self) -> int:
        return self.lease.fence

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job becomes a dead letter if this attempt fails. Attempts that lost their lease do not count."""
        return self.attempt - self.losses >= self.max_attempts

    @property
    def event(self) -> PublishedEvent | None:
        """The event that made this job, or None if it was enqueued in another way."""
        return PublishedEvent.of(self.headers)

    def progress(self, value: object) -> None:
        """Report how far the work is. The latest report is saved when the lease is next renewed."""
        self._report(encode(value, name="progress", limit=LARGEST_RESULT))

    def finish_in(self, connection: object, result: object = None) -> Awaitable[None]:
        """Finish the job inside the caller's transaction: its writes and this outcome commit together or not at all.

        The job succeeds, unless `result` is a `Permanent`, `Cancel` or `Snooze`: then it fails, is canceled or runs
        again later. With an async connection, await the call. Raises StaleLease if the lease was lost; the transaction
        then cannot commit. Under repeatable read, call it before anything else, so that no renewal gets in between.
        """
        if self._finish_in is None:
            raise InvalidInput(
                "finish_in needs a PostgreSQL store, but this job's store has no transactions; in a test, use "
                "holdfast.testing.on_postgres"
            )
        if isinstance(result, HandlerSignal):
            transition = self._ending(result)
            statement = self._finish_in.end_statement(self.lease, transition)
        else:
            transition = PLAIN_SUCCESS
            encoded = None if result is None else encode(result, name="result", limit=LARGEST_RESULT)
            statement = self._finish_in.statement(self.lease, encoded)
        self._finishing()
        reach("finish_in.before")
        executed = statement.execute_on(connection)
        self.finish_requested = transition.move
        return executed if executed is not None else _nothing()

    def _ending(self, signal: HandlerSignal) -> Transition:
        outcome = outcome_of_value(signal)
        if isinstance(outcome, Retried):
            raise InvalidInput(f"finish_in: {type(signal).__name__} does not end the job; raise it instead")
        return after_outcome(
            outcome,
            attempt=self.attempt,
            losses=self.losses,
            max_attempts=self.max_attempts,
            backoff=DEFAULT_BACKOFF,
            random=_RANDOM,
        )


def _finished(rows: Rows) -> None:  # noqa: ARG001 - they are empty
    reach("finish_in.after")


class _Nothing:
    """A finished awaitable. Unlike a coroutine, it can be dropped without a warning, as blocking callers do."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def _nothing() -> Awaitable[None]:
    return typing.cast(Awaitable[None], _Nothing())


CURRENT_JOB: ContextVar[RunningJob[Any] | None] = ContextVar("holdfast_current_job", default=None)

HandlerFunction = Callable[[RunningJob[Any]], Any]


class Room(NamedTuple):
    """How many jobs of a kind the handler can take right now, and in how many seconds it may be able to take more."""

    most: float = math.inf
    more_in: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One kind's function and policy. `limit` caps how many jobs of the kind one worker process runs at once; `crashes`
    caps how many workers a job may take down while it runs alone.

    `room` lowers the limit temporarily: a handler that cannot work now leaves its jobs in the store, unclaimed.
    """

    kind: str
    typed: Kind[Any, Any]
    function: HandlerFunction
    queue: str
    attempts: int
    backoff: Backoff
    timeout: timedelta
    lease: timedelta | None
    limit: int | None
    isolation: Isolation
    crashes: int = DEFAULT_CRASHES
    room: Callable[[], Room] = Room
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    """Converts each older version of the payload to the next."""

    @property
    def payload_type(self) -> Any:  # noqa: ANN401
        return self.typed.payload

    @property
    def version(self) -> int:
        """The payload version that the function takes. Newer jobs are given back; older ones go through `upgrades`."""
        return self.typed.version


class Handlers:
    """The registry that maps each kind to its handler."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        if handler.kind in self._by_kind:
            raise InvalidInput(f"kind {handler.kind!r} already has a handler; give each kind one handler")
        self._by_kind[handler.kind] = handler

    def get(self, kind: str) -> Handler | None:
        return self._by_kind.get(kind)

    def of(self, function: HandlerFunction) -> list[Handler]:
        """The handlers registered for this function."""
        return [handler for handler in self if handler.function is function]

    def kind_of(self, name: str) -> Kind[Any, Any] | None:
        """The kind as its handler in this app declares it, if there is one."""
        handler = self.get(name)
        return None if handler is None else handler.typed

    def encode_payload(self, kind: str, payload: object) -> Json:
        """The payload as JSON text, checked if the kind has a handler here; None becomes an empty object."""
        return encode_payload(self.kind_of(kind), payload)

    def queue_of(self, kind: str) -> str:
        handler = self.get(kind)
        return DEFAULT_QUEUE if handler is None else handler.queue

    @property
    def versions(self) -> dict[str, int]:
        return {handler.kind: handler.version for handler in self}

    def version_of(self, kind: str) -> int:
        handler = self.get(kind)
        return FIRST_VERSION if handler is None else handler.version

    def __getitem__(self, kind: str) -> Handler:
        return self._by_kind[kind]

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)


@options_of("a handler")
def make_handler(
    kind: Kind[Any, Any] | str,
    function: HandlerFunction,
    *,
    payload: Any = None,  # noqa: ANN401
    queue: str | None = None,
    attempts: int = DEFAULT_ATTEMPTS,
    backoff: Backoff | str | None = None,
    timeout: Duration = DEFAULT_TIMEOUT,
    lease: Duration | None = None,
    limit: int | None = None,
    isolation: str | None = None,
    crashes: int = DEFAULT_CRASHES,
    version: int | None = None,
    upgrades: Mapping[int, Upgrade] | None = None,
) -> Handler:
    """Create a handler. Checks as much as possible at program start, instead of when the first job arrives."""
    typed = _typed(kind, function, payload=payload, queue=queue, version=version)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit: {limit!r} is not a number of at least 1")
    if not isinstance(crashes, int) or isinstance(crashes, bool) or not 1 <= crashes <= MOST_CRASHES:
        raise InvalidInput(f"crashes: {crashes!r} is not a number from 1 to {MOST_CRASHES}")
    return Handler(
        kind=typed.name,
        typed=typed,
        function=function,
        queue=typed.queue,
        attempts=check_attempts(attempts),
        backoff=to_backoff(backoff),
        timeout=_positive(timeout, "timeout"),
        lease=None if lease is None else check_lease(to_timedelta(lease, "lease")),
        limit=limit,
        isolation=_isolation(function, isolation),
        crashes=crashes,
        upgrades=check_upgrades(upgrades or {}, typed.version),
    )


def reading_deaths(handler: Handler) -> Handler:
    """This handler, able to read every job that a death makes."""
    typed = handler.typed
    if typed.payload in (NOTHING, Json):
        return handler
    payload = for_deaths(typed.payload)
    return replace(
        handler,
        typed=Kind(typed.name, payload, returns=typed.returns, queue=typed.queue, version=typed.version),
    )


def _typed(
    kind: Kind[Any, Any] | str, function: HandlerFunction, *, payload: object, queue: str | None, version: int | None
) -> Kind[Any, Any]:
    """The kind that was given, or one derived from the function's annotations."""
    if isinstance(kind, Kind):
        given = {"payload": payload, "queue": queue, "version": version}
        if twice := [name for name, value in given.items() if value is not None]:
            raise InvalidInput(f"{', '.join(twice)}: set this in Kind({kind.name!r}, …), which producers use too")
        _check_signature(kind.name, function)
        return kind
    check_name("kind", kind)
    _check_signature(kind, function)
    payload_type, result_type = _annotated(function, is_payload_given=payload is not None)
    given_type = payload_type if payload is None else payload
    return Kind.inferred(
        kind,
        given_type,
        result_type,
        queue=DEFAULT_QUEUE if queue is None else queue,
        version=FIRST_VERSION if version is None else version,
    )


def name_of(function: HandlerFunction) -> str:
    """The default kind of a handler: its function's name."""
    name: str = getattr(function, "__name__", "")
    if name == "<lambda>":
        raise InvalidInput("kind: a lambda has no name; set name=")
    return name


def _check_signature(kind: str, function: HandlerFunction) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"handler of {kind!r}: contains a yield, so calling it would run nothing; return a list")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise InvalidInput(f"handler of {kind!r}: must take the job as its one argument ({error})") from None


def _isolation(function: HandlerFunction, wanted: str | None) -> Isolation:
    is_async = inspect.iscoroutinefunction(function)
    if wanted is None:
        return Isolation.ASYNC if is_async else Isolation.THREAD
    try:
        isolation = Isolation(wanted)
    except ValueError:
        raise InvalidInput(f'isolation: {wanted!r} is not known; use "process", or leave it out') from None
    if isolation is Isolation.ASYNC and not is_async:
        raise InvalidInput('isolation: a `def` handler cannot run on the event loop; leave it out, or use "process"')
    if isolation is Isolation.THREAD and is_async:
        raise InvalidInput('isolation: an `async def` handler cannot run in a thread; leave it out, or use "process"')
    if isolation is Isolation.PROCESS:
        _check_importable(function)
    return isolation


def _check_importable(function: HandlerFunction) -> None:
    """Check as much as possible now: the function's name is bound only after all of its decorators have run."""
    inner = function.func if isinstance(function, partial) else function
    name = getattr(inner, "__qualname__", "")
    if "<" in name:
        raise InvalidInput(f"isolation: a child process cannot import {name}; define it at the top level of a module")


def _annotated(function: HandlerFunction, *, is_payload_given: bool) -> tuple[Any, Any]:
    """The P and R in `def handle(job: RunningJob[P]) -> R`; Any for what is not annotated."""
    inner = inspect.unwrap(function)
    first = next(iter(inspect.signature(inner).parameters), "")
    payload: Any = Any
    if not is_payload_given:
        try:
            payload = _hint(inner, first)
        except NameError as error:
            # Treating this as "no type" would pass the handler a dict where it expects an object.
            raise InvalidInput(
                f"the type of {first!r} cannot be resolved: {error}; define it before the handler, or give a Kind"
            ) from error
        payload = typing.get_args(payload)[0] if typing.get_origin(payload) is RunningJob else Any
    try:
        result = _hint(inner, "return")
    except NameError:
        result = Any
    return Any if isinstance(payload, typing.TypeVar) else payload, result


def _hint(function: HandlerFunction, name: str) -> Any:  # noqa: ANN401
    """The resolved annotation of one parameter or of the return value."""
    annotations = {each: hint for each, hint in getattr(function, "__annotations__", {}).items() if each == name}
    scope = getattr(function, "__globals__", {})
    return typing.get_type_hints(SimpleNamespace(__annotations__=annotations), scope).get(name, Any)


def _positive(value: Duration, name: str) -> timedelta:
    duration = to_timedelta(value, name)
    if not duration:
        raise InvalidInput(f"{name}: must be more than zero")
    return duration
