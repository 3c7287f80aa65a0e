"""Handles what a handler leaves running when it returns: it gets some time, and then nothing it does takes effect."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from holdfast.domain.handlers import Handler
from holdfast.testing.idempotency.trace import TRACE, Trace

_SECONDS = 1.0
_LOOK_SECONDS = 0.005


def telling_its_end(handler: Handler, trace: Trace) -> Handler:
    """Wrap the handler so it sets `has_returned` of the trace before anything it left running gets a turn."""
    function: Callable[..., Any] = handler.function

    @wraps(function)
    def call(*arguments: Any) -> Any:  # noqa: ANN401
        try:
            return function(*arguments)
        finally:
            trace.has_returned = True

    @wraps(function)
    async def call_async(*arguments: Any) -> Any:  # noqa: ANN401
        try:
            return await function(*arguments)
        finally:
            trace.has_returned = True

    return replace(handler, function=call_async if inspect.iscoroutinefunction(function) else call)


@contextmanager
def tasks_noted() -> Iterator[None]:
    """Record tasks that a run starts in its trace. interception.py does the same for threads."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def made(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        **options: Any,  # noqa: ANN401
    ) -> "asyncio.Future[Any]":
        task = asyncio.Task(coroutine, loop=loop, **options) if before is None else before(loop, coroutine, **options)
        trace = TRACE.get()
        if trace is not None:
            trace.background.append(task.done)
            task.add_done_callback(partial(_without_a_word, trace))
        return task

    loop.set_task_factory(made)  # type: ignore[arg-type]
    try:
        yield
    finally:
        loop.set_task_factory(before)


def _without_a_word(trace: Trace, task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a dead run's task. Otherwise asyncio would complain that it was never retrieved."""
    if (trace.has_crashed or trace.is_over) and not task.cancelled():
        task.exception()


async def all_ended(trace: Trace) -> bool:
    """Whether everything the run started ended soon enough. Anything that did not can take no further step."""
    deadline = time.monotonic() + _SECONDS
    while not (ended := all(is_over() for is_over in trace.background)) and not trace.has_crashed:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    trace.is_over = True
    return ended
