"""What an application's code declares at import time: handlers, schedules, runners, subscribers and its own tables.

Nothing here needs a store. Neighbour: app.py, which hands it all to a worker.
"""

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack

from holdfast.domain.cron import DEFAULT_MISSED_LIMIT, Missed
from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import check_pattern
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import HandlerFunction, Handlers, make_handler, name_of
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE
from holdfast.domain.limits import check_concurrency, check_lease, check_poll
from holdfast.domain.options import check_options
from holdfast.domain.retry import Backoff
from holdfast.events.subscriptions import Subscribed, kind_for
from holdfast.rabbitmq.relay import RelayTarget
from holdfast.rabbitmq.relays import Relays
from holdfast.runtime.row_queues import RowQueue, RowQueues
from holdfast.scheduling.schedules import Declarations, job_template, to_timing
from holdfast.store.events import NewSubscription
from holdfast.store.rows.mapping import Rows

Function = TypeVar("Function", bound=HandlerFunction)
Runner = TypeVar("Runner", bound=Callable[..., Any])


_SCHEDULE_OPTIONS = ("tz", "name", "payload", "priority", "missed", "missed_limit")


class HandlerPolicy(TypedDict, total=False):
    queue: str
    attempts: int
    backoff: Backoff | str | None
    timeout: Duration
    lease: Duration | None
    limit: int | None
    isolation: str | None
    crashes: int


class HandlerOptions(HandlerPolicy, total=False):
    payload: Any


class Declaring:
    """The decorators of an app, and what they gathered."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.declarations = Declarations()
        self.subscribed = Subscribed()
        self.relays = Relays()
        self.row_queues = RowQueues()
        self.failures = Failures()

    def handler(self, kind: str, **options: Unpack[HandlerOptions]) -> Callable[[Function], Function]:
        """Make a function the handler of a kind. It stays an ordinary function."""
        if callable(kind):
            raise InvalidInput('name the kind: write @app.handler("some.kind"), not @app.handler')

        def register(function: Function) -> Function:
            self.handlers.add(make_handler(kind, function, **options))
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
        **options: Unpack[HandlerPolicy],
    ) -> Callable[[Function], Function]:
        """Make a job per occurrence: for the handler below, or of kind `name`, whose handler the function becomes."""
        check_options("a schedule", options, [*_SCHEDULE_OPTIONS, *HandlerPolicy.__annotations__])
        timing = to_timing(timetable, tz, missed, missed_limit)

        def register(function: Function) -> Function:
            kind = self._kind_of(function, name, options)
            job = job_template(self.handlers, kind, payload, priority=priority)
            self.declarations.add_job(kind if name is None else name, timing, job)
            return function

        return register

    def _kind_of(self, function: HandlerFunction, name: str | None, policy: HandlerPolicy) -> str:
        """The kind whose handler the function is; if it is none yet, it becomes one."""
        kinds = [handler.kind for handler in self.handlers.of(function)]
        if not kinds:
            kind = name_of(function) if name is None else name
            self.handlers.add(make_handler(kind, function, **policy))
            return kind
        if len(kinds) > 1:
            raise InvalidInput(f"{', '.join(kinds)} have the same function; schedule each with a function of its own")
        if policy:
            raise InvalidInput(f"{', '.join(policy)}: say this where {kinds[0]!r} gets its handler")
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
        """Run the function itself at each occurrence, inside a process of the app, on one replica at a time."""
        timing = to_timing(timetable, tz, missed, missed_limit)

        def register(function: Runner) -> Runner:
            self.declarations.add_inline(name, timing, function, lock)
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
        """Work on an application's own table as on a queue; the runner is called `rows:` and the mapping's name."""
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
        """Give an exception type its code, and say whether the attempt may be tried again."""
        self.failures.register(exception, code=code, retryable=retryable, after=after)

    def on(
        self,
        pattern: str,
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]:
        """Make a job of each event whose type is `pattern`, or begins like it: `invoice.paid`, `invoice.*`, or `*`.

        The function is its handler. The kind is `name`, or the one that the function handles, or the function's name.
        """
        if callable(pattern):
            raise InvalidInput('name the events: write @app.on("invoice.paid"), not @app.on')
        check_options("a subscriber", options, ["name", "priority", *HandlerOptions.__annotations__])
        check_pattern(pattern)

        def register(function: Function) -> Function:
            kind = kind_for(self.handlers, function, name)
            handler = next((each for each in self.handlers.of(function) if each.kind == kind), None)
            if handler is not None and options:
                raise InvalidInput(f"{', '.join(options)}: say this where {kind!r} gets its handler")
            new = make_handler(kind, function, **options) if handler is None else handler
            # Whatever could be refused is refused before anything is added: it may be caught and put right.
            subscription = NewSubscription(kind, pattern, new.queue, priority)
            if handler is None:
                self.handlers.add(new)
            self.subscribed.add(subscription)
            return function

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
        """Pass events on to a topic exchange of RabbitMQ: each at least once, however long the broker is away.

        The broker is that of the settings, or of `url`. With `mandatory` an event waits until a queue is bound for it.
        `limit` is how many one worker has under way at once.
        """
        kind = f"relay.{exchange}" if name is None else name
        target = RelayTarget(exchange, url, mandatory)
        subscription = NewSubscription(kind, pattern, queue, priority)
        self.handlers.add(self.relays.handler(kind, queue, limit))
        self.subscribed.add(subscription)
        self.relays.add(kind, target)
