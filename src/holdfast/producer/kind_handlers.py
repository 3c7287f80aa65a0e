"""What `@app.handler` returns, as type checkers see it: the function itself, which can also enqueue.

At run time it is the function with four more attributes. `Returned` is the type of a call: a coroutine if it is async.
"""

from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any, Generic, Protocol, Unpack, cast, overload

from typing_extensions import TypeVar

from holdfast.domain.connections import AwaitedConnection, BlockingConnection
from holdfast.domain.dead_job import DeadJob
from holdfast.domain.enqueued import Enqueued, SyncEnqueued
from holdfast.domain.errors import HandlerSignal
from holdfast.domain.handlers import HandlerFunction, RunningJob, State
from holdfast.domain.job import NewJob
from holdfast.domain.kinds import Kind, Payload, Result
from holdfast.producer.options import EnqueueOptions
from holdfast.producer.producer import Producer

Wanted = TypeVar("Wanted", default=Any)
Returned = TypeVar("Returned", covariant=True, default=Any)


class SyncKindHandler(Generic[Payload, Result]):
    """`handler.sync`: enqueues from blocking code."""

    def __init__(self, kind: Kind[Payload, Result], app: Producer) -> None:
        self._kind = kind
        self._app = app

    @overload
    def enqueue(
        self: "SyncKindHandler[None, Result]",
        payload: None = None,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncEnqueued[Result]: ...

    @overload
    def enqueue(
        self, payload: Payload, *, conn: BlockingConnection | None = None, **options: Unpack[EnqueueOptions]
    ) -> SyncEnqueued[Result]: ...

    def enqueue(
        self, payload: object = None, *, conn: BlockingConnection | None = None, **options: Unpack[EnqueueOptions]
    ) -> SyncEnqueued[Result]:
        return self._app.sync.enqueue(cast("Kind[object, Result]", self._kind), payload, conn=conn, **options)


class KindHandler(Protocol[Payload, Result, Returned]):
    __name__: str

    @property
    def kind(self) -> Kind[Payload, Result]:
        """The kind that the function handles, for producers and other apps."""

    @property
    def sync(self) -> SyncKindHandler[Payload, Result]:
        """The same for blocking code: `handler.sync.enqueue(payload)`."""

    def __call__(self, job: RunningJob[Payload, Any], /) -> Returned: ...

    @overload
    def job(
        self: "KindHandler[None, Result, Any]", payload: None = None, **options: Unpack[EnqueueOptions]
    ) -> NewJob[Result]: ...

    @overload
    def job(self, payload: Payload, **options: Unpack[EnqueueOptions]) -> NewJob[Result]: ...

    @overload
    async def enqueue(
        self: "KindHandler[None, Result, Any]",
        payload: None = None,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued[Result]: ...

    @overload
    async def enqueue(
        self, payload: Payload, *, conn: AwaitedConnection | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued[Result]: ...


class HandlerOf(Protocol[Payload, Wanted, State]):
    """The decorator for a Kind: the function must take its payload and return its result.

    If the function annotates the state, the type must be what the app's lifespan yields.
    """

    @overload
    def __call__(
        self, function: Callable[[RunningJob[Payload, State]], Coroutine[Any, Any, Wanted | HandlerSignal]], /
    ) -> KindHandler[Payload, Wanted, Coroutine[Any, Any, Wanted]]: ...

    @overload
    def __call__(
        self, function: Callable[[RunningJob[Payload, State]], Wanted | HandlerSignal], /
    ) -> KindHandler[Payload, Wanted, Wanted]: ...


class AnyHandler(Protocol[State]):
    """The decorator for a kind given by name: the function's annotations define payload and result."""

    @overload
    def __call__(
        self, function: Callable[[RunningJob[Payload, State]], Coroutine[Any, Any, Result]], /
    ) -> KindHandler[Payload, Result, Coroutine[Any, Any, Result]]: ...

    @overload
    def __call__(
        self, function: Callable[[RunningJob[Payload, State]], Result], /
    ) -> KindHandler[Payload, Result, Result]: ...


class HandlerOfDeaths(Protocol[Payload, State]):
    """The decorator for the deaths of a Kind's jobs: the function must take a DeadJob with the Kind's payload."""

    def __call__(
        self, function: Callable[[RunningJob[DeadJob[Payload], State]], Returned], /
    ) -> Callable[[RunningJob[DeadJob[Payload], State]], Returned]: ...


def make_enqueuing(function: HandlerFunction, kind: Kind[Any, Any], app: Producer) -> None:
    """Add the attributes of a KindHandler to a function.

    Other callables stay unchanged: an object is sent to a child process with all its attributes, and these cannot be.
    """
    if not isinstance(function, FunctionType):
        return

    def job(payload: object = None, **options: Unpack[EnqueueOptions]) -> NewJob:
        return app.job(cast("Kind[object, Any]", kind), payload, **options)

    async def enqueue(
        payload: object = None, *, conn: AwaitedConnection | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        return await app.enqueue(cast("Kind[object, Any]", kind), payload, conn=conn, **options)

    for name, value in (("kind", kind), ("job", job), ("enqueue", enqueue), ("sync", SyncKindHandler(kind, app))):
        setattr(function, name, value)
