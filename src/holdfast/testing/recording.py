"""`enqueue_in` and its like for an app in memory, which has no transaction: they do at once what a commit would do.

What the connection is decides, as in production, whether the answer has to be awaited.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self, SupportsIndex, TypeVar, Unpack
from unittest.mock import AsyncMock, patch

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import NewJob
from holdfast.producer.arguments import check_connection_comes_first, check_jobs, given_job
from holdfast.producer.producer import EnqueueOptions, PublishOptions
from holdfast.producer.publish import Published
from holdfast.store.contract import Enqueued
from holdfast.testing.places import place

Value = TypeVar("Value")


@contextmanager
def recording(app: Holdfast) -> Iterator[None]:
    """Complains at the end of the block of an answer that an async caller seems to have forgotten to await."""
    forgotten: dict[int, str] = {}

    def answered(
        connection: object,
        verb: str,
        work: Callable[[], Coroutine[object, object, Value]],
        twin: Callable[[Value], Any],
    ) -> Any:  # noqa: ANN401
        is_awaited = _is_awaited(connection)
        if is_awaited:
            return work()
        answer = finished(work())
        if is_awaited is False:
            return answer
        answer = twin(answer)
        if _is_in_loop():
            forgotten[id(answer)] = f"app.{verb} at {place()}"
            # Kept by the answer, and keeping it: an id is not used twice meanwhile.
            object.__setattr__(answer, "_forgotten", (forgotten, answer))
        return answer

    def enqueue_in(
        connection: object, job: NewJob | str, payload: object = None, **options: Unpack[EnqueueOptions]
    ) -> Any:  # noqa: ANN401
        check_connection_comes_first(connection, "app.enqueue_in")
        new = given_job(app.job, job, payload, options)

        async def work() -> Enqueued:
            (enqueued,) = await app.enqueue_many([new])
            return enqueued

        return answered(connection, "enqueue_in", work, _Recorded.of)

    def enqueue_many_in(connection: object, jobs: Iterable[NewJob]) -> Any:  # noqa: ANN401
        new = check_jobs(jobs)
        return answered(connection, "enqueue_many_in", lambda: app.enqueue_many(new), _RecordedMany)

    def publish_in(connection: object, type: str, payload: object = None, **options: Unpack[PublishOptions]) -> Any:  # noqa: ANN401
        check_connection_comes_first(connection, "app.publish_in")
        return answered(connection, "publish_in", lambda: app.publish(type, payload, **options), _RecordedEvent.of)

    with ExitStack() as exits:
        for stand_in in (enqueue_in, enqueue_many_in, publish_in):
            exits.enter_context(patch.object(app, stand_in.__name__, stand_in))
        yield
    if forgotten:
        raise AssertionError(
            f"{', '.join(forgotten.values())}: the answer was neither awaited nor read, and with an async connection "
            f"nothing would have been done. Await it; or, if that code is blocking, give it a stand-in for its "
            f"connection that has a blocking `execute`"
        )


class _Awaitable:
    """A blocking caller uses it, an async one awaits it; the kind of its connection is not known here."""

    _forgotten: "tuple[dict[int, str], object] | None" = None

    def _noticed(self) -> None:
        if self._forgotten is not None:
            self._forgotten[0].pop(id(self), None)

    def __await__(self) -> Generator[None, None, Self]:
        self._noticed()
        yield from ()
        return self

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        if not name.startswith("_"):
            self._noticed()
        return super().__getattribute__(name)


class _Recorded(_Awaitable, Enqueued):
    @classmethod
    def of(cls, answer: Enqueued) -> Self:
        return cls(answer.id, answer.is_new, answer.replaced)


class _RecordedEvent(_Awaitable, Published):
    @classmethod
    def of(cls, answer: Published) -> Self:
        return cls(answer.event_id, answer.jobs)


class _RecordedMany(_Awaitable, list[Enqueued]):
    def __len__(self) -> int:
        self._noticed()
        return super().__len__()

    def __iter__(self) -> Iterator[Enqueued]:
        self._noticed()
        return super().__iter__()

    def __getitem__(self, index: SupportsIndex | slice) -> Any:  # noqa: ANN401
        self._noticed()
        return super().__getitem__(index)


def _is_awaited(connection: object) -> bool | None:
    """Whether its library is async; None for a stand-in from which that cannot be seen."""
    execute = getattr(connection, "execute", None)
    if execute is None:
        return None
    return isinstance(execute, AsyncMock) or inspect.iscoroutinefunction(inspect.unwrap(execute))


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def finished(coroutine: Coroutine[object, object, Value]) -> Value:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Value = end.value
        return result
    coroutine.close()
    raise InvalidInput("this cannot be done without an event loop; use `async with in_memory(app)`")
