"""Wraps everything through which a handler reaches the outside world, for the duration of a check.

Drivers are in databases.py and HTTP clients in requests.py. This module wraps the stores, and threads, which pass the
trace on.
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
from holdfast.testing.idempotency.requests import of_http_client, of_httpx, of_requests, of_webhooks
from holdfast.testing.idempotency.trace import TRACE, Crash, refuse_if_crashed, shortened, step

# The libraries are wrapped for the whole process, and two checks at once would unwrap them in the wrong order.
_ALONE = threading.Lock()


@contextmanager
def intercepted(also: Sequence[str]) -> Iterator[None]:
    """Record every step of a run until the block ends. `also` names functions whose calls count as steps, too."""
    if not _ALONE.acquire(blocking=False):
        raise InvalidInput("another idempotency check runs in this process; await it before you start the next one")
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
        *of_webhooks(),
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
            # Collect the connections of dead runs while their warnings are still suppressed.
            gc.collect()


def _stores() -> Iterator[Patch]:
    def wrapped(verb: str, original: Method) -> Method:
        @wraps(original)
        async def call(store: object, given: object) -> Any:  # noqa: ANN401
            with step(_shown_verb(verb, given if isinstance(given, Sequence) else [given])):
                return await original(store, given)

        return call

    for store in (MemoryStore, PostgresStore):
        for verb in ("enqueue", "cancel", "retry", "delete"):
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
    """Pass the context on to threads. They do not inherit it, so their steps would belong to no run."""
    start: Method = threading.Thread.start
    submit: Method = ThreadPoolExecutor.submit

    @wraps(start)
    def start_in_context(thread: threading.Thread) -> None:
        # A daemon thread rarely belongs to the handler. It usually belongs to a pool that the handler used first, but
        # others will use later. In a handler's thread, which is itself a daemon, every new thread is one.
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
        # The pool may start a thread for this call, and that thread serves other callers later.
        outside = copy_context()
        outside.run(TRACE.set, None)
        future = outside.run(submit, pool, copy_context().run, partial(call, *arguments, **options))
        trace.background.append(future.done)
        return future

    yield threading.Thread, "start", start_in_context
    yield ThreadPoolExecutor, "submit", submit_in_context


def _until_the_crash(call: Callable[[], None]) -> None:
    """Suppress the crash: nothing waits for a thread's exception. The handler continues but takes no further step."""
    with suppress(Crash):
        call()


def _named(path: str) -> Patch:
    owner_path, _, name = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(owner_path)
        found = inspect.getattr_static(owner, name)
        # A class holds static and class methods in wrapper objects, which the replacements need as well.
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
            # A task or future is already running. Any other awaitable does nothing until it is awaited.
            taking.is_put_off = inspect.isawaitable(result) and not asyncio.isfuture(result)
        return awaited(result) if taking.is_put_off else result

    @wraps(original)
    async def call_async(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with step(text, effect=path):
            result: Awaitable[object] = original(*arguments, **options)
            return await result

    replacement = call_async if inspect.iscoroutinefunction(original) else call
    return owner, name, replacement if wrapping is None else wrapping(replacement)
