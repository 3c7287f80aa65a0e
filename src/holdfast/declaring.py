"""What application code declares at import time: handlers, schedules, runners, subscribers and its own tables.

Nothing here needs a store. Neighbor: app.py, which passes the declarations to a worker.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from holdfast.domain.cron import DEFAULT_MISSED_LIMIT, Missed
from holdfast.domain.dead_job import DEATHS, pattern_of_deaths
from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import check_pattern
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import (
    HandlerFunction,
    Handlers,
    State,
    make_handler,
    name_of,
    reading_deaths,
)
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.domain.kinds import Kind, Payload, Result, kind_name
from holdfast.domain.limits import check_concurrency, check_lease, check_poll
from holdfast.domain.options import check_options
from holdfast.domain.retry import Backoff
from holdfast.domain.versions import Upgrade
from holdfast.events.deaths import check_not_of_deaths, name_of_deaths
from holdfast.events.subscriptions import Subscribed, kind_for
from holdfast.producer.kind_handlers import AnyHandler, HandlerOf, HandlerOfDeaths, make_enqueuing
from holdfast.producer.producer import Producer
from holdfast.producer.sync import SyncProducer
from holdfast.rabbitmq.relay import RelayTarget
from holdfast.rabbitmq.relays import Relays
from holdfast.runtime.row_queues import RowQueue, RowQueues
from holdfast.scheduling.every_tick import EVERY_TICK
from holdfast.scheduling.schedules import Declarations, job_template, to_timing
from holdfast.store.events import NewSubscription
from holdfast.store.rows.mapping import Rows
from holdfast.worker.hooks import Around, check_around

Function = TypeVar("Function", bound=HandlerFunction)
Runner = TypeVar("Runner", bound=Callable[..., Any])
AroundFunction = TypeVar("AroundFunction", bound=Around)


_SCHEDULE_OPTIONS = ("tz", "name", "payload", "priority", "missed", "missed_limit")


class HandlerPolicy(TypedDict, total=False):
    attempts: int
    backoff: Backoff | str | None
    timeout: Duration
    lease: Duration | None
    limit: int | None
    isolation: str | None
    crashes: int
    upgrades: Mapping[int, Upgrade] | None


class NamedPolicy(HandlerPolicy, total=False):
    """Options that a Kind includes, for a handler whose kind is given by name."""

    queue: str
    version: int


class HandlerOptions(NamedPolicy, total=False):
    payload: Any


class Declaring(Producer, Generic[State]):
    """The decorators of an app, and the declarations they collect."""

    def __init__(self) -> None:
        # Created now, so two threads that use it first at the same time share one.
        self.sync = SyncProducer(self)
        self.handlers = Handlers()
        self.declarations = Declarations()
        self.subscribed = Subscribed()
        self.relays = Relays()
        self.row_queues = RowQueues()
        self.failures = Failures()
        self._arounds: list[Around] = []

    @overload
    def handler(
        self, kind: Kind[Payload, Result], **options: Unpack[HandlerPolicy]
    ) -> HandlerOf[Payload, Result, State]: ...

    @overload
    def handler(self, kind: str, **options: Unpack[HandlerOptions]) -> AnyHandler[State]: ...

    def handler(self, kind: Kind[Any, Any] | str, **options: Unpack[HandlerOptions]) -> Any:
        """Make a function the handler of a kind. It stays an ordinary function and gains `kind`, `job` and `enqueue`.

        For a kind given by name, the annotations `(job: RunningJob[Payload]) -> Result` define payload and result.
        """
        if callable(kind):
            raise InvalidInput('name the kind: write @app.handler("some.kind"), not @app.handler')

        def register(function: HandlerFunction) -> HandlerFunction:
            made = make_handler(kind, function, **options)
            self.handlers.add(made)
            make_enqueuing(function, made.typed, self)
            return function

        return register

    def schedule(
        self,
        timetable: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        payload: object = None,
        priority: int = DEFAULT_PRIORITY,
        missed: str = Missed.ONCE,
        missed_limit: int = DEFAULT_MISSED_LIMIT,
        **options: Unpack[NamedPolicy],
    ) -> Callable[[Function], Function]:
        """Make a job at each occurrence, of the kind that the function handles.

        If it handles none yet, it becomes the handler of kind `name`, which defaults to the function's name.
        """
        check_options("a schedule", options, [*_SCHEDULE_OPTIONS, *NamedPolicy.__annotations__])
        timing = to_timing(timetable, tz, missed, missed_limit)

        def register(function: Function) -> Function:
            kind = self._kind_of(function, name, options)
            job = job_template(self.handlers, kind, payload, priority=priority)
            self.declarations.add_job(kind if name is None else name, timing, job)
            return function

        return register

    def _kind_of(self, function: HandlerFunction, name: str | None, policy: NamedPolicy) -> str:
        """The kind that the function handles. If it handles none yet, register it."""
        kinds = [handler.kind for handler in self.handlers.of(function)]
        if not kinds:
            kind = name_of(function) if name is None else name
            self.handlers.add(make_handler(kind, function, **policy))
            return kind
        if len(kinds) > 1:
            raise InvalidInput(f"{', '.join(kinds)} have the same function; give each schedule its own function")
        if policy:
            raise InvalidInput(f"{', '.join(policy)}: set this on the handler of {kinds[0]!r}")
        return kinds[0]

    def runner(
        self,
        name: str,
        timetable: str,
        *,
        tz: str = "UTC",
        missed: str = Missed.ONCE,
        missed_limit: int = DEFAULT_MISSED_LIMIT,
        lock: str | None = None,
    ) -> Callable[[Runner], Runner]:
        """Run the function itself at each occurrence, inside a process of the app, on one replica at a time.

        `every tick`: when each process starts, in every `holdfast tick`, and with each poll of a worker.
        """
        is_every_tick = timetable == EVERY_TICK
        timing = to_timing("every 1s" if is_every_tick else timetable, tz, missed, missed_limit)

        def register(function: Runner) -> Runner:
            self.declarations.add_inline(name, timing, function, lock, is_every_tick=is_every_tick)
            return function

        return register

    def rows(
        self,
        mapping: Rows,
        *,
        concurrency: int | None = None,
        lease: Duration | None = None,
        poll: Duration | None = None,
    ) -> None:
        """Use an application's own table as a queue. The runner's name is `rows:` plus the mapping's name."""
        if not isinstance(mapping, Rows):
            raise InvalidInput(f"app.rows: {mapping!r} is not a mapping; give Rows(name=…, table=…, …)")
        queue = RowQueue(
            mapping,
            None if concurrency is None else check_concurrency(concurrency),
            None if lease is None else check_lease(to_timedelta(lease, "lease")),
            None if poll is None else check_poll(to_timedelta(poll, "poll")),
        )
        self.row_queues.add(queue)

    def error(
        self, exception: type[BaseException], *, code: str, retryable: bool = True, after: Duration | None = None
    ) -> None:
        """Set the error code of an exception type, and whether the job may be retried."""
        self.failures.register(exception, code=code, retryable=retryable, after=after)

    def around(self, function: AroundFunction) -> AroundFunction:
        """Wrap every attempt, in the worker's process: `async def timed(job, call)` that ends `return await call()`.

        Its result or exception decides how the attempt ends. The function declared first is the outermost.
        """
        self._arounds.append(check_around(function))
        return function

    def on(
        self,
        pattern: str,
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]:
        """Make a job for each event that matches `pattern`, such as `invoice.paid`, `invoice.*`, or `*` for all.

        The function is its handler. The kind is `name`, the kind that the function handles, or the function's name.
        """
        if callable(pattern):
            raise InvalidInput('name the events: write @app.on("invoice.paid"), not @app.on')
        check_options("a subscriber", options, ["name", "priority", *HandlerOptions.__annotations__])
        check_pattern(pattern)

        def register(function: Function) -> Function:
            kind = kind_for(self.handlers, function, name)
            handler = next((each for each in self.handlers.of(function) if each.kind == kind), None)
            if handler is not None and options:
                raise InvalidInput(f"{', '.join(options)}: set this on the handler of {kind!r}")
            new = make_handler(kind, function, **options) if handler is None else handler
            if handler is None and pattern.startswith(DEATHS):
                new = reading_deaths(new)
            # Refuse before anything is added, because the caller may catch the error and try again.
            subscription = NewSubscription(kind, pattern, new.queue, priority)
            if handler is None:
                self.handlers.add(new)
            self.subscribed.add(subscription)
            return function

        return register

    @overload
    def on_dead(
        self,
        kind: Kind[Payload, Any],
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> HandlerOfDeaths[Payload, State]: ...

    @overload
    def on_dead(
        self,
        kind: str,
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]: ...

    def on_dead(
        self,
        kind: Kind[Any, Any] | str,
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> Any:
        """Whenever a job of this kind ends `failed` or `dead`, for any reason, make a job with a `DeadJob` as payload.

        The function is its handler, and its kind is `name` or `<kind>.dead`. `invoice.*` and `*` match many kinds and
        need a name. The death of such a job does not make another one.
        """
        if callable(kind):
            raise InvalidInput('name the kind: write @app.on_dead("invoice.send"), not @app.on_dead')
        check_options("on_dead", options, ["name", "priority", *HandlerOptions.__annotations__])
        dying = kind_name(kind)
        pattern = pattern_of_deaths(dying)
        own = name_of_deaths(dying, name)

        def register(function: HandlerFunction) -> HandlerFunction:
            check_not_of_deaths(self.subscribed, dying)
            return self.on(pattern, name=own, priority=priority, **options)(function)

        return register

    def relay(
        self,
        pattern: str,
        *,
        exchange: str,
        name: str | None = None,
        url: str | None = None,
        mandatory: bool = False,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        limit: int = 100,
    ) -> None:
        """Forward events to a topic exchange of RabbitMQ, each at least once, however long the broker is down.

        The broker is the one in the settings, or `url`. With `mandatory`, an event waits until a queue is bound for it.
        `limit` is the most events that one worker forwards at once.
        """
        kind = f"relay.{exchange}" if name is None else name
        target = RelayTarget(exchange, url, mandatory)
        subscription = NewSubscription(kind, pattern, queue, priority)
        self.handlers.add(self.relays.handler(kind, queue, limit))
        self.subscribed.add(subscription)
        self.relays.add(kind, target)
