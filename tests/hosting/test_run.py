"""`run_worker` and `run_tick`: what they open, in which order they close it, and how signals and errors end them."""

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast, InvalidInput, RunningJob, StoreUnavailable, run_tick, run_worker
from holdfast.types import TickReport
from tests.worker.harness import eventually

ROOT = Path(__file__).parents[2]
Lifespan = Callable[[Holdfast], AbstractAsyncContextManager[None]]


@pytest.fixture(autouse=True)
def process_state_is_restored() -> Iterator[None]:
    """Check that each call undoes every change it made to the process."""

    def state() -> object:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
        return handlers, ours, gc.get_threshold(), gc.get_freeze_count()

    # Otherwise the objects frozen by a call could not be distinguished from those frozen by the test session.
    gc.unfreeze()
    before = state()
    yield
    eventually(lambda: state() == before, "everything is as it was")
    gc.freeze()


class Shop:
    """An app with one handler, and a resource that has to be open while the handler runs."""

    def __init__(self) -> None:
        self.app = Holdfast("memory:", lifespan=self.lifespan)
        self.notes: list[str] = []
        self.is_resource_open = False
        self.app.handler("sell")(self.sell)

    async def sell(self, job: RunningJob[object]) -> None:
        assert self.is_resource_open
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(self.notes.append, "sold")

    @asynccontextmanager
    async def lifespan(self, app: Holdfast) -> AsyncIterator[None]:
        assert self.app.is_open
        self.is_resource_open = True
        self.notes.append("entered")
        await self.app.enqueue("sell")
        try:
            yield
        finally:
            assert self.app.is_open
            self.is_resource_open = False
            self.notes.append("left")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def worked(app: Holdfast, lifespan: Lifespan) -> None:
    app.lifespan = lifespan
    assert run_worker(app) == 0


def ticked(app: Holdfast, lifespan: Lifespan) -> None:
    app.lifespan = lifespan
    report = run_tick(app)
    assert report.is_fine


both = pytest.mark.parametrize("run", [worked, ticked])
Run = Callable[[Holdfast, Lifespan], None]


@both
def test_the_lifespan_opens_before_the_first_handler_and_closes_after_the_last(run: Run) -> None:
    shop = Shop()
    run(shop.app, shop.lifespan)
    assert shop.notes == ["entered", "sold", "left"]
    assert not shop.app.is_open
    run(shop.app, shop.lifespan)
    assert shop.notes == ["entered", "sold", "left"] * 2


def test_a_tick_reports_what_the_chosen_runners_did() -> None:
    shop = Shop()
    report = run_tick(shop.app, runners=["maintenance", "queue"])
    assert [part.runner for part in report.runners] == ["maintenance", "queue"]
    assert report.runners[1].processed == 1


def test_a_worker_reports_its_ticks_on_its_event_loop() -> None:
    shop, told = Shop(), list[tuple[str, int]]()

    def tell(report: TickReport) -> None:
        assert asyncio.get_running_loop().is_running()
        assert shop.app.is_open
        told.extend((part.runner, part.processed) for part in report.runners if not part.is_idle)

    assert run_worker(shop.app, runners=["queue"], on_tick=tell) == 0
    assert told == [("queue", 1)]


def test_an_async_on_tick_is_refused() -> None:
    async def tell(report: TickReport) -> None: ...

    with pytest.raises(InvalidInput, match="on_tick: give a plain function"):
        run_worker(Shop().app, on_tick=tell)


@pytest.mark.parametrize("run", [run_worker, run_tick])
def test_unknown_runners_are_refused_before_anything_is_opened(
    run: Callable[..., object],
) -> None:
    shop = Shop()
    with pytest.raises(InvalidInput, match="runners: 'quue' is not known"):
        run(shop.app, runners=["quue"])
    assert not shop.notes
    assert not shop.app.is_open


@both
def test_an_error_in_the_lifespan_reaches_the_caller_and_the_app_is_closed(run: Run) -> None:
    app, pools = Shop().app, dict[str, None]()

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        yield pools["ours"]

    with pytest.raises(KeyError, match="ours"):
        run(app, lifespan)
    assert not app.is_open


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "press Ctrl-C again to interrupt them  signal=SIGINT"),
        (signal.SIGTERM, "send a second signal to interrupt them  signal=SIGTERM"),
        (signal.SIGHUP, "send a second signal to interrupt them  signal=SIGHUP"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_signal_stops_the_program_and_the_log_says_how_long_that_may_take(
    number: signal.Signals, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    app, ended = Holdfast("memory:", shutdown="90s"), list[str]()

    @app.handler("sell")
    async def sell(job: RunningJob[object]) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
        ended.append("sold")

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        await app.enqueue("sell")
        yield

    app.lifespan = lifespan
    assert run_worker(app) == 0
    assert ended == ["sold"]
    assert f"stopping: running handlers have 1m30s to finish; {said}" in caplog.text
    (stopping,) = [record for record in caplog.records if record.getMessage().startswith("stopping: ")]
    assert "job_id" not in vars(stopping)


def test_a_program_that_ignores_sighup_still_ignores_it() -> None:
    app, seen = Holdfast("memory:"), list[object]()

    @app.handler("look")
    async def look(job: RunningJob[object]) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        await app.enqueue("look")
        yield

    app.lifespan = lifespan
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_worker(app) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]


def test_the_programs_own_logging_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def state() -> object:
        loggers = [logging.getLogger(name) for name in (None, "holdfast", "holdfast.attempts", "asyncpg.pool")]
        return [(logger.level, logger.handlers[:], logger.filters[:], logger.propagate) for logger in loggers]

    shop, before, factory = Shop(), state(), logging.getLogRecordFactory()
    assert run_worker(shop.app) == 0
    assert (state(), logging.getLogRecordFactory()) == (before, factory)


@both
def test_a_signal_while_the_lifespan_opens_closes_it_and_starts_nothing(run: Run) -> None:
    shop = Shop()

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        await shop.app.enqueue("sell")
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        finally:
            # Closing involves awaits as well, and they still work.
            await asyncio.sleep(0.01)
            shop.notes.append("unwound")
        yield

    run(shop.app, lifespan)
    assert shop.notes == ["unwound"]
    assert not shop.app.is_open


def test_a_signal_swallowed_while_the_lifespan_opens_is_not_forgotten() -> None:
    shop = Shop()

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await shop.app.enqueue("sell")
        yield
        await asyncio.sleep(0)
        shop.notes.append("left")

    shop.app.lifespan = lifespan
    assert run_worker(shop.app) == 0
    assert shop.notes == ["left"]
    assert run_tick(shop.app) == TickReport()


def test_a_store_that_cannot_be_reached_ends_a_tick() -> None:
    app = Holdfast("postgresql://127.0.0.1:1/nowhere")
    app.handler("sell")(print)
    with pytest.raises(StoreUnavailable):
        run_tick(app)
    assert not app.is_open


def test_a_worker_waits_for_a_store_that_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("postgresql://127.0.0.1:1/nowhere")
    app.handler("sell")(print)
    # The outage is logged once, no matter how often the worker retries, and a signal ends the wait.
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert run_worker(app) == 0
    assert len([record for record in caplog.records if "store does not answer" in record.getMessage()]) == 1
    assert not app.is_open


@pytest.mark.parametrize("run", [run_worker, run_tick])
def test_in_other_threads_and_running_loops_the_error_says_what_to_use(run: Callable[[Holdfast], object]) -> None:
    app = Shop().app
    said: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(InvalidInput) as refused:
            run(app)
        said.append(str(refused.value))

    async def inside() -> None:
        elsewhere()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    asyncio.run(inside())
    name = run.__name__
    assert said == [
        f"{name} needs the main thread, which receives signals; elsewhere use app.worker()",
        f"{name} starts its own event loop; inside a running one use app.worker() and app.tick()",
    ]


def test_the_configured_health_port_is_open_while_it_runs() -> None:
    app = Holdfast("memory:", health_port=free_port())
    answers: list[int] = []

    def ask() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{app.settings.health_port}/ready", timeout=10) as answer:
            status: int = answer.status
            return status

    @app.handler("ask")
    async def look(job: RunningJob[object]) -> None:
        answers.append(await asyncio.to_thread(ask))
        os.kill(os.getpid(), signal.SIGTERM)

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        await app.enqueue("ask")
        yield

    app.lifespan = lifespan
    assert run_worker(app) == 0
    assert answers == [200]


def test_a_tick_that_gave_up_on_its_handlers_reports_an_error() -> None:
    app, let_go = Holdfast("memory:", concurrency=1), threading.Event()

    @app.handler("hang", timeout="50ms")
    def hang(job: RunningJob[object]) -> None:
        let_go.wait()

    @asynccontextmanager
    async def lifespan(app: Holdfast) -> AsyncIterator[None]:
        await app.enqueue("hang")
        yield

    app.lifespan = lifespan
    report = run_tick(app, runners=["queue"])
    let_go.set()
    assert [part.error for part in report.runners] == ["too many handlers could not be stopped"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hang", "borrow", "stubborn"])
@pytest.mark.parametrize(
    ("command", "said"), [("tick", "queue {'interrupt': 1}"), ("worker", "exit code 0")], ids=["tick", "worker"]
)
def test_a_handler_that_cannot_be_stopped_does_not_block_the_program(command: str, said: str, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hosting.stuck_program", command, kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert "Traceback" not in done.stderr
    assert "Task was destroyed" not in done.stderr
