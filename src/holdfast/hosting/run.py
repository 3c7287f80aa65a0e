"""`run_worker` and `run_tick`: an app's worker as the main function of a program."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from random import Random
from signal import Signals
from typing import Generic, TypeVar

from holdfast.app import Holdfast
from holdfast.domain.address import without_password
from holdfast.domain.duration import to_text
from holdfast.domain.errors import AccessRefused, InvalidInput, StoreUnavailable
from holdfast.domain.retry import exponential
from holdfast.hosting.program import run_program
from holdfast.hosting.stop_signals import StopSignals
from holdfast.http.health import ReadinessProbe
from holdfast.http.health_server import HealthServer
from holdfast.logs.formats import START
from holdfast.logs.records import get_logger
from holdfast.runtime.background import OnTick
from holdfast.runtime.process import Process
from holdfast.runtime.tick import TickReport

log = get_logger("holdfast.worker")
start = get_logger(START)

_BACKOFF = exponential(base="100ms", max="2s", jitter="200ms")

Value = TypeVar("Value")


def run_worker(
    app: Holdfast,
    *,
    runners: Sequence[str] | None = None,
    on_tick: OnTick | None = None,
) -> int:
    """Run the app's handlers and schedules until SIGTERM, SIGHUP or Ctrl-C. Return the exit code for `sys.exit`.

    The first signal lets running handlers finish and releases the other jobs, a second one interrupts the handlers, and
    a third one exits at once. A signal within a second of the one before is ignored. The code is 0, or 1 if the worker
    gave up because too many handlers could not be stopped, or none could be started. Handlers that cannot be stopped do
    not keep this function from returning or the program from exiting.

    This opens and closes the app, on its own event loop. The app's lifespan is entered when the app is open, and left
    when no handler is running anymore, before the app is closed. If the store does not answer, the worker waits for it,
    even at startup.

    `on_tick` is called on that loop after each tick in which a runner did something or failed, and at the end with what
    ended since then. If it raises, the error is logged once and the worker continues.

    This does not set up logging; records go to the loggers below "holdfast". To log like `holdfast worker`, call
    `holdfast.logs.setup_logging()` first.
    """

    async def work(process: Process) -> int:
        return await _run_with_health(app, process, on_tick)

    return _run(_Hosted(app, runners, work, unstarted=0, is_patient=True), "run_worker")


def run_tick(app: Holdfast, *, runners: Sequence[str] | None = None) -> TickReport:
    """Run everything that is due, once, with the same signals, lifespan and logging as `run_worker`.

    A signal ends the tick early, but cleanly; if it arrives before the store is open, the report is empty. Raises
    StoreUnavailable if the store cannot be reached. If the store goes away later, the report has an error.
    """
    return _run(_Hosted(app, runners, Process.tick, unstarted=TickReport()), "run_tick")


@dataclass(frozen=True, slots=True)
class _Hosted(Generic[Value]):
    app: Holdfast
    runners: Sequence[str] | None
    work: Callable[[Process], Awaitable[Value]]
    unstarted: Value
    """The result if a signal arrives before the work begins."""
    is_patient: bool = False
    """Whether to wait for an unreachable store at startup, as a running worker does."""


def _run(hosted: _Hosted[Value], name: str) -> Value:
    if threading.current_thread() is not threading.main_thread():
        raise InvalidInput(f"{name} needs the main thread, which receives signals; elsewhere use app.worker()")
    if asyncio._get_running_loop() is not None:
        raise InvalidInput(f"{name} starts its own event loop; inside a running one use app.worker() and app.tick()")
    with StopSignals() as signals:
        return run_program(lambda: _host(hosted, signals))


async def _host(hosted: _Hosted[Value], signals: StopSignals) -> Value:
    answer, loop = hosted.unstarted, asyncio.get_running_loop()

    def stop(process: Process) -> None:
        _log_stopping(signals.received or Signals.SIGTERM, hosted.app.settings.shutdown)
        process.stop()

    def hurry(process: Process) -> None:
        log.warning("stopping: running handlers are interrupted; one more signal ends the process at once")
        process.hurry()

    async with AsyncExitStack() as ending:
        process = await _started(hosted, signals, ending)
        if process is not None:
            signals.then(lambda: _soon(loop, partial(stop, process)), lambda: _soon(loop, partial(hurry, process)))
            answer = await hosted.work(process)
    return answer


def _log_stopping(received: Signals, shutdown: timedelta) -> None:
    again = "press Ctrl-C again" if received is Signals.SIGINT else "send a second signal"
    said = f"stopping: running handlers have {to_text(shutdown)} to finish; {again} to interrupt them"
    log.info(said, signal=received.name)


async def _started(hosted: _Hosted[Value], signals: StopSignals, ending: AsyncExitStack) -> Process | None:
    """Open the app and return its process, or None if a signal came first, even while the store does not answer."""
    app, loop, task = hosted.app, asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101
    is_starting, process = True, None

    def stop() -> None:
        if is_starting:
            task.cancel()

    signals.then(lambda: _soon(loop, stop))
    try:
        await (_opened_at_last(app) if hosted.is_patient else app.open())
        ending.push_async_callback(app.close)
        process = app.worker(runners=hosted.runners)
        _log_opened(app, process)
    except asyncio.CancelledError:
        if not signals.received:
            raise
    finally:
        is_starting = False
    if not signals.received:
        return process
    # The signal has been handled. What is closed now must not see itself as canceled.
    while task.cancelling():
        task.uncancel()
    return None


async def _opened_at_last(app: Holdfast) -> None:
    random = Random()  # noqa: S311 - spreads tries, guards nothing
    for failures in count(1):
        try:
            await app.open()
        except AccessRefused:
            # A password or a grant has to be set, and the person who starts the worker is there to do it.
            raise
        except StoreUnavailable as error:
            if failures == 1:
                log.warning("the store does not answer; retrying until it does", error=str(error).partition("\n")[0])
        else:
            if failures > 1:
                log.warning("the store answers", after_failures=failures - 1)
            return
        await asyncio.sleep(_BACKOFF.delay(failures, random).total_seconds())


def _log_opened(app: Holdfast, process: Process) -> None:
    settings = app.settings
    start.info(
        "app opened",
        store=without_password(settings.store),
        schema=settings.db_schema,
        kinds=sorted(handler.kind for handler in app.handlers) or "none",
        queues=process.queues or "none",
        slots=settings.concurrency,
        runners=process.runner_names,
    )


async def _run_with_health(app: Holdfast, process: Process, on_tick: OnTick | None) -> int:
    """Run until a signal arrives, with the health port open if one is set."""
    settings = app.settings
    if settings.health_port is None:
        return await process.run(on_tick)
    subscriber = process.subscriber if settings.health_broker else None
    probe = ReadinessProbe(
        app,
        broker_connected=None if subscriber is None else lambda: subscriber.is_connected,
        not_started=lambda: process.not_started,
    )
    server = HealthServer(
        settings.health_host,
        settings.health_port,
        ready=probe.look,
        keeper_alive=lambda: process.is_keeping,
        is_stopping=lambda: process.is_stopping,
    )
    try:
        async with server:
            return await process.run(on_tick)
    finally:
        probe.give_up()


def _soon(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    if not loop.is_closed():
        # A signal handler runs in the context of whatever it interrupts, such as a job's handler.
        loop.call_soon_threadsafe(stop, context=Context())
