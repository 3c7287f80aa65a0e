"""Wraps everything through which a handler reaches the world outside, for as long as a check lasts.

Drivers are in databases.py, HTTP clients in requests.py; here are the stores, and threads, which hand the trace on.
"""

import asyncio
import gc
import inspect
import pkgutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import NewEvent
from holdfast.domain.job import NewJob
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.store import PostgresStore
from holdfast.testing.idempotency.databases import of_asyncpg, of_psycopg
from holdfast.testing.idempotency.patches import Method, Patch
from holdfast.testing.idempotency.requests import of_http_client, of_httpx, of_requests
from holdfast.testing.idempotency.trace import TRACE, Crash, refuse_if_crashed, shortened, step

# The libraries are wrapped for the whole process, and two that wrap them would unwrap them in the wrong order.
_ALONE = threading.Lock()


@contextmanager
def intercepted(also: Sequence[str]) -> Iterator[None]:
    """Every step of a run is seen until the block is left. `also` names functions of which a call is a step, too."""
    if not _ALONE.acquire(blocking=False):
        raise InvalidInput("another idempotency check runs in this process; await one before you begin the next")
    try:
        with _wrapped(also):
            yield
    finally:
        _ALONE.release()


@contextmanager
def _wrapped(also: Sequence[str]) -> Iterator[None]:
    patches = [
        *of_asyncpg(),
        *of_psycopg(),
        *of_httpx(),
        *of_requests(),
        *of_http_client(),
        *_stores(),
        *_threads(),
        *map(_named, also),
    ]
    with ExitStack() as exits:
        for owner, name, replacement in patches:
            exits.enter_context(patch.object(owner, name, replacement))
        try:
            yield
        finally:
            # While the connections of dead runs still end without a word.
            gc.collect()


def _stores() -> Iterator[Patch]:
    def wrapped(verb: str, original: Method) -> Method:
        @wraps(original)
        async def call(store: object, given: object) -> Any:  # noqa: ANN401
            with step(_shown_verb(verb, given if isinstance(given, Sequence) else [given])):
                return await original(store, given)

        return call

    for store in (MemoryStore, PostgresStore):
        for verb in ("enqueue", "cancel", "retry"):
            yield store, verb, wrapped(verb, getattr(store, verb))
    for events in (MemoryEvents, PostgresEvents):
        yield events, "publish", wrapped("publish", events.publish)


def _shown_verb(verb: str, given: Sequence[object]) -> str:
    return shortened(f"{verb} {', '.join(map(_shown_one, given))}")


def _shown_one(given: object) -> str:
    match given:
        case NewJob():
            return f"{given.kind} {given.payload}"
        case NewEvent():
            return f"{given.type} {given.payload}"
        case _:
            return str(given)


def _threads() -> Iterator[Patch]:
    """A thread does not inherit the context of whoever starts it, and its steps would be nobody's."""
    start: Method = threading.Thread.start
    submit: Method = ThreadPoolExecutor.submit

    @wraps(start)
    def start_in_context(thread: threading.Thread) -> None:
        # What is made a daemon is seldom the handler's own, but a pool that it was the first to use, and not the last.
        # In the thread of a handler, itself a daemon, every thread is one.
        trace = TRACE.get()
        if trace is not None and (not thread.daemon or threading.current_thread().daemon):
            vars(thread)["run"] = partial(copy_context().run, _until_the_crash, thread.run)
            trace.background.append(lambda: not thread.is_alive())
        start(thread)

    @wraps(submit)
    def submit_in_context(
        pool: ThreadPoolExecutor,
        call: Callable[..., object],
        /,
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        trace = TRACE.get()
        if trace is None:
            return submit(pool, call, *arguments, **options)
        # The thread that may be started for it serves others later.
        outside = copy_context()
        outside.run(TRACE.set, None)
        future = outside.run(submit, pool, copy_context().run, partial(call, *arguments, **options))
        trace.background.append(future.done)
        return future

    yield threading.Thread, "start", start_in_context
    yield ThreadPoolExecutor, "submit", submit_in_context


def _until_the_crash(call: Callable[[], None]) -> None:
    """Nobody waits for what a thread raises. The handler that goes on takes no further step."""
    with suppress(Crash):
        call()


def _named(path: str) -> Patch:
    owner_path, _, name = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
        found = inspect.getattr_static(owner, name)
        # A class has its static and class methods in a wrapping, which their replacement needs as well.
        wrapping = type(found) if isinstance(found, staticmethod | classmethod) else None
        original = getattr(owner, name) if wrapping is None else found.__func__
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"also: {path!r} names no function; write it like package.module.function") from error
    text = f"call of {path}"

    async def awaited(result: Awaitable[object]) -> object:
        try:
            refuse_if_crashed()
        except Crash:
            if inspect.iscoroutine(result):
                result.close()
            raise
        with step(text, effect=path):
            return await result

    @wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with step(text, effect=path) as taking:
            result = original(*arguments, **options)
            # A task or future is under way already. Anything else does nothing before it is awaited.
            taking.is_put_off = inspect.isawaitable(result) and not asyncio.isfuture(result)
        return awaited(result) if taking.is_put_off else result

    @wraps(original)
    async def call_async(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with step(text, effect=path):
            result: Awaitable[object] = original(*arguments, **options)
            return await result

    replacement = call_async if inspect.iscoroutinefunction(original) else call
    return owner, name, replacement if wrapping is None else wrapping(replacement)
