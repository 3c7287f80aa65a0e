"""`run_worker` and `run_tick`: an app's worker as the main function of a program."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, TypeVar

from holdfast.app import Holdfast
from holdfast.domain.address import without_password
from holdfast.domain.errors import AccessRefused, InvalidInput, StoreUnavailable
from holdfast.domain.retry import exponential
from holdfast.hosting.program import run_program
from holdfast.hosting.stop_signals import StopSignals
from holdfast.http.health import ReadinessProbe
from holdfast.http.health_server import HealthServer
from holdfast.log import get_logger
from holdfast.runtime.background import OnTick
from holdfast.runtime.process import Process
from holdfast.runtime.tick import TickReport

log = get_logger("holdfast.worker")

_BACKOFF = exponential(base="100ms", max="2s", jitter="200ms")

Value = TypeVar("Value")
Around = Callable[[], AbstractAsyncContextManager[object]]


def run_worker(
    app: Holdfast,
    *,
    runners: Sequence[str] | None = None,
    on_tick: OnTick | None = None,
    around: Around | None = None,
) -> int:
    """Run the app's handlers and schedules until SIGTERM or Ctrl-C; the exit code for `sys.exit`.

    The first signal lets running handlers finish and gives the rest back, a second one exits at once. The code is 0, or
    1 if so many handlers could not be stopped that the worker gave up. What cannot be stopped keeps neither this
    function from returning nor the program from ending.

    It opens the app and closes it, on an event loop of its own. `around` is for what else has to be opened on that
    loop: it is entered when the app is open, and left when no handler is running any more, before the app is closed. A
    store that does not answer is waited for, at the start too: who starts while a server is restarted is there when it
    is back.

    `on_tick` is called on that loop after each tick in which a runner did something or failed, and at the end with what
    ended since. If it raises, that is logged once and the worker goes on.

    Logging is left to the program: nothing is set up here, and lines go to the loggers below "holdfast".
    """

    async def work(process: Process) -> int:
        return await _run_with_health(app, process, on_tick)

    return _run(_Hosted(app, runners, around, work, unstarted=0, is_patient=True), "run_worker")


def run_tick(app: Holdfast, *, runners: Sequence[str] | None = None, around: Around | None = None) -> TickReport:
    """Run everything that is due, once, with the same signals, `around` and logging as `run_worker`.

    A signal ends the tick early, in order; one that comes before the store is open makes the report empty. A store that
    cannot be reached is StoreUnavailable; one that goes away later is an error in the report.
    """
    return _run(_Hosted(app, runners, around, Process.tick, unstarted=TickReport()), "run_tick")


@dataclass(frozen=True, slots=True)
class _Hosted(Generic[Value]):
    app: Holdfast
    runners: Sequence[str] | None
    around: Around | None
    work: Callable[[Process], Awaitable[Value]]
    unstarted: Value
    """The answer if a signal came before the work could begin."""
    is_patient: bool = False
    """Waits for a store that is away, as a worker does that has met it before."""


def _run(hosted: _Hosted[Value], name: str) -> Value:
    if threading.current_thread() is not threading.main_thread():
        raise InvalidInput(f"{name} needs the main thread, which gets the signals; elsewhere use app.worker()")
    if asyncio._get_running_loop() is not None:
        raise InvalidInput(f"{name} has an event loop of its own; inside of one use app.worker() and app.tick()")
    with StopSignals() as signals:
        return run_program(lambda: _host(hosted, signals))


async def _host(hosted: _Hosted[Value], signals: StopSignals) -> Value:
    answer, loop = hosted.unstarted, asyncio.get_running_loop()
    async with AsyncExitStack() as ending:
        process = await _started(hosted, signals, ending)
        if process is not None:
            signals.then(lambda: _soon(loop, process.stop))
            answer = await hosted.work(process)
    return answer


async def _started(hosted: _Hosted[Value], signals: StopSignals, ending: AsyncExitStack) -> Process | None:
    """None if a signal came before; a store that does not answer makes nobody wait then."""
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
        # In this very task, for that is where it will be left: some context managers insist on it.
        if hosted.around is not None:
            await ending.enter_async_context(hosted.around())
    except asyncio.CancelledError:
        if not signals.received:
            raise
    finally:
        is_starting = False
    if not signals.received:
        return process
    # We have heard it; what is closed now must not take itself for canceled.
    while task.cancelling():
        task.uncancel()
    return None


async def _opened_at_last(app: Holdfast) -> None:
    random = Random()  # noqa: S311 - spreads tries, guards nothing
    for failures in count(1):
        try:
            await app.open()
        except AccessRefused:
            # A password or a grant has to be set, and whoever starts the worker is there to do it.
            raise
        except StoreUnavailable as error:
            if failures == 1:
                log.warning("no store yet, trying again until it answers", error=str(error).partition("\n")[0])
        else:
            return
        await asyncio.sleep(_BACKOFF.delay(failures, random).total_seconds())


def _log_opened(app: Holdfast, process: Process) -> None:
    log.info(
        "app opened",
        store=without_password(app.settings.store),
        kinds=",".join(sorted(handler.kind for handler in app.handlers)) or "none",
        queues=",".join(app.settings.queues) or "those of the handlers",
        runners=",".join(process.runner_names),
    )


async def _run_with_health(app: Holdfast, process: Process, on_tick: OnTick | None) -> int:
    """Until a signal, with the health port open if there is to be one."""
    settings = app.settings
    if settings.health_port is None:
        return await process.run(on_tick)
    subscriber = process.subscriber if settings.health_broker else None
    probe = ReadinessProbe(app, broker_connected=None if subscriber is None else lambda: subscriber.is_connected)
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
        loop.call_soon_threadsafe(stop)
