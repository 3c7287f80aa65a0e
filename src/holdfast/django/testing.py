"""For tests of a Django project: run its jobs and look at them, in the transaction of the test.

Everything happens in the thread of the test and on its connections. So handlers see what the test wrote, and the test
rolls all of it back. docs/django.md has an example.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.db import DatabaseError, connections

from holdfast.app import Holdfast, _Opened
from holdfast.django.framework import DjangoFramework, tidy_connection
from holdfast.domain.event_loop import running_loop
from holdfast.domain.framework import TransactionLeftOpen
from holdfast.domain.handlers import Handler, Isolation, RunningJob
from holdfast.logs.records import get_logger
from holdfast.store.opening import of_postgres
from holdfast.store.postgres.connection_store import ConnectionStore
from holdfast.testing.drain import Drain, DrainReport
from holdfast.testing.one_by_one import OneByOne
from holdfast.testing.tested_app import AppUnderTest

__all__ = ["assert_enqueued", "assert_nothing_enqueued", "enqueued", "run_jobs"]

log = get_logger("holdfast.django")

_SERIALIZED = "_test_serialized_contents"

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class _Jobs(AppUnderTest):
    _drain_name = "run_jobs"

    def _new_drain(self, most: int) -> Drain:
        return _Drain(self.app, most, _in_this_thread, _apart)

    async def declare(self) -> None:
        await self.app.declare()


class _Drain(OneByOne):
    async def report(self, errors_before: Mapping[UUID, Sequence[Any]]) -> DrainReport:
        report = await super().report(errors_before)
        if report.unhandled:
            kinds = sorted({job.kind for job in report.unhandled})
            log.warning("due jobs have no handler; put it in jobs.py of an installed application", kinds=kinds)
        return report


def _in_this_thread(handler: Handler) -> Handler:
    function = handler.function if iscoroutinefunction(handler.function) else sync_to_async(handler.function)

    async def tidied(job: RunningJob[Any]) -> object:
        depths = await sync_to_async(_Depths)()
        try:
            value = await function(job)
        except BaseException:
            await sync_to_async(depths.restore)()
            raise
        if await sync_to_async(depths.restore)():
            raise TransactionLeftOpen
        return value

    return replace(handler, isolation=Isolation.ASYNC, function=tidied)


class _Depths:
    """Ends what an attempt leaves open: its own atomic blocks in the transaction of a `TestCase`, and any transaction
    on a connection without one.
    """

    def __init__(self) -> None:
        open_ones = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
        self._blocks = {each.alias: len(each.atomic_blocks) for each in open_ones}

    def restore(self) -> bool:
        """Return whether something was left open and is rolled back."""
        left_open = False
        for connection in connections.all(initialized_only=True):
            blocks = self._blocks.get(connection.alias)
            if blocks is None:
                left_open |= tidy_connection(connection)
                if hasattr(connection, _SERIALIZED):
                    # A new connection must know it too, or later tests with `serialized_rollback` have no data.
                    setattr(connections[connection.alias], _SERIALIZED, getattr(connection, _SERIALIZED))
                continue
            while len(connection.atomic_blocks) > blocks:
                left_open = True
                error = TransactionLeftOpen()
                connection.atomic_blocks[-1].__exit__(type(error), error, None)
        return left_open


@asynccontextmanager
async def _apart() -> AsyncIterator[None]:
    savepoints = await sync_to_async(_Savepoints)()
    yield
    await sync_to_async(savepoints.end)()


class _Savepoints:
    """An attempt that breaks the transaction of the test is rolled back.

    Otherwise its `transaction.on_commit` callbacks run, as its commit would have run them in production.
    """

    def __init__(self) -> None:
        open_ones = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
        self._points = [(each, each.savepoint(), len(each.run_on_commit)) for each in open_ones]

    def end(self) -> None:
        for connection, savepoint, callbacks in self._points:
            try:
                connection.savepoint_commit(savepoint)
            except DatabaseError:
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
                del connection.run_on_commit[callbacks:]
            while len(connection.run_on_commit) > callbacks:
                _, call, _ = connection.run_on_commit.pop(callbacks)
                call()


def _in_test(
    method: Callable[Concatenate[_Jobs, Arguments], Coroutine[Any, Any, Answer]],
) -> Callable[Arguments, Answer]:
    """The method as a blocking function, on the app of the project and the connection of the calling thread."""

    @wraps(method)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        config = apps.get_app_config("holdfast")
        app: Holdfast = config.app
        store = ConnectionStore(sync_to_async(DjangoFramework(config.alias).answered), app.settings.db_schema)

        async def work() -> Answer:
            parts = _Opened(AsyncExitStack())
            parts.store = of_postgres(store)
            async with parts.exits:
                # Other threads may open the app at the same time.
                app._opened[running_loop()] = parts
                try:
                    with app.relays.holding_back():
                        return await method(_Jobs(app), *arguments, **options)
                finally:
                    del app._opened[running_loop()]

        answer: Answer = async_to_sync(work)()
        return answer

    return call


declare = _in_test(_Jobs.declare)
run_jobs = _in_test(_Jobs.drain)
enqueued = _in_test(_Jobs.enqueued)
assert_enqueued = _in_test(_Jobs.assert_enqueued)
assert_nothing_enqueued = _in_test(_Jobs.assert_nothing_enqueued)
