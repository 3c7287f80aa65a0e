"""A worker as a process: its event loop, its signals, and an exit that no stuck handler can prevent."""

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

from holdfast.app import Holdfast
from holdfast.cli.errors import explained
from holdfast.cli.options import without_password
from holdfast.cli.stop_signals import StopSignals
from holdfast.errors import StoreUnavailable
from holdfast.http.health import ReadinessProbe
from holdfast.http.health_server import HealthServer
from holdfast.log import get_logger
from holdfast.retry import exponential
from holdfast.runtime.process import Process
from holdfast.worker.settings import WorkerSettings

log = get_logger("holdfast.worker")

_PATIENCE_SECONDS = 1.0
_BACKOFF = exponential(base="100ms", max="2s", jitter="200ms")
_THREADS = "holdfast-"


Work = Callable[[Process], Awaitable[int]]


def run_worker(
    app: Holdfast,
    settings: WorkerSettings,
    runners: Sequence[str] | None,
    work: Work,
    signals: StopSignals,
    *,
    is_patient: bool = False,
) -> int:
    """What `work` returns. Does not return if a handler cannot be stopped: the process then ends here.

    `is_patient`: waits for a store that is away, as a worker does that has met it before.
    """
    _collect_garbage_less_often()
    threads = ThreadPoolExecutor(thread_name_prefix=f"{_THREADS}default")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_default_executor(threads)
        opening = _opened(app, signals, is_patient=is_patient)
        exit_code = runner.run(_work(app, settings, runners, work, signals, opening))
        threads.shutdown(wait=False, cancel_futures=True)
        if runner.run(_tasks_left()) or _threads_left():
            log.error("exiting although handlers that could not be stopped are still running")
            _exit_now(exit_code)
    return exit_code


def _collect_garbage_less_often() -> None:
    # A worker makes tens of objects for each job and hardly any cycles. 50,000 no-op jobs took 2.4 and 2.9 s of
    # processor time so, and 3.7 and 4.0 s with the defaults (two pairs on a busy machine; their rates did not agree).
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _work(
    app: Holdfast,
    settings: WorkerSettings,
    runners: Sequence[str] | None,
    work: Work,
    signals: StopSignals,
    opening: Awaitable[bool],
) -> int:
    try:
        if not await opening:
            return 0
        process = app.worker(settings, runners=runners)
        log.info(
            "app opened",
            store=without_password(app.settings.store),
            kinds=",".join(sorted(handler.kind for handler in app.handlers)) or "none",
            queues=",".join(settings.queues) or "those of the handlers",
            runners=",".join(process.runner_names),
        )
        loop = asyncio.get_running_loop()
        signals.then(lambda: _soon(loop, process.stop))
        return await work(process)
    finally:
        await app.close()


async def _opened(app: Holdfast, signals: StopSignals, *, is_patient: bool) -> bool:
    """False if a signal came before; a store that does not answer makes nobody wait then."""
    loop = asyncio.get_running_loop()
    opening = asyncio.ensure_future(_opened_at_last(app) if is_patient else app.open())
    signals.then(lambda: _soon(loop, opening.cancel))
    try:
        await opening
    except asyncio.CancelledError:
        if not signals.received:
            raise
    return not signals.received


async def _opened_at_last(app: Holdfast) -> None:
    """A server that is restarted is away for a moment: who starts then is to be there when it is back."""
    random = Random()  # noqa: S311 - spreads tries, guards nothing
    for failures in count(1):
        try:
            await app.open()
        except StoreUnavailable as error:
            if failures == 1:
                log.warning("no store yet, trying again until it answers", error=explained(error).line)
        else:
            return
        await asyncio.sleep(_BACKOFF.delay(failures, random).total_seconds())


async def run_in_background(app: Holdfast, process: Process) -> int:
    """Until a signal, with the health port open if there is to be one."""
    settings = app.settings
    if settings.health_port is None:
        return await process.run()
    subscriber = process.subscriber if settings.health_broker else None
    probe = ReadinessProbe(app, broker_connected=None if subscriber is None else lambda: subscriber.is_connected)
    async with HealthServer(
        settings.health_host,
        settings.health_port,
        ready=probe.look,
        keeper_alive=lambda: process.is_keeping,
        is_stopping=lambda: process.is_stopping,
    ):
        return await process.run()


def _soon(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)


async def _tasks_left() -> bool:
    """Whether an async handler ignores its cancellation; closing the event loop would wait for it for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, pending = await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
    return bool(pending)


def _threads_left() -> bool:
    """Whether a thread that a handler borrowed (asyncio.to_thread) still runs; the interpreter would wait for it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_THREADS) and not thread.daemon]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _exit_now(exit_code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
