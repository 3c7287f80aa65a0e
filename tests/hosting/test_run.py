"""`run_worker` and `run_tick`: what they open, in which order they close it, and that signals and errors end them."""

import asyncio
import gc
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

from holdfast import Holdfast, InvalidInput, RunningJob, StoreUnavailable, TickReport, run_tick, run_worker
from tests.worker.harness import eventually

ROOT = Path(__file__).parents[2]
Around = Callable[[], AbstractAsyncContextManager[object]]


@pytest.fixture(autouse=True)
def everything_is_given_back() -> Iterator[None]:
    """Whatever a call changed in the process, it changes back."""

    def state() -> object:
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
        return handlers, ours, gc.get_threshold(), gc.get_freeze_count()

    # Or what it freezes could not be told from what the tests have.
    gc.unfreeze()
    before = state()
    yield
    eventually(lambda: state() == before, "everything is as it was")
    gc.freeze()


class Shop:
    """An app with one handler, and a resource of its own that has to be open while the handler runs."""

    def __init__(self) -> None:
        self.app = Holdfast("memory:")
        self.notes: list[str] = []
        self.is_resource_open = False
        self.app.handler("sell")(self.sell)

    async def sell(self, job: RunningJob[object]) -> None:
        assert self.is_resource_open
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(self.notes.append, "sold")

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
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


def worked(app: Holdfast, around: Around) -> None:
    assert run_worker(app, around=around) == 0


def ticked(app: Holdfast, around: Around) -> None:
    report = run_tick(app, around=around)
    assert report.is_fine


both = pytest.mark.parametrize("run", [worked, ticked])
Run = Callable[[Holdfast, Around], None]


@both
def test_what_is_around_is_there_from_before_the_first_handler_until_after_the_last(run: Run) -> None:
    shop = Shop()
    run(shop.app, shop.around)
    assert shop.notes == ["entered", "sold", "left"]
    assert not shop.app.is_open
    run(shop.app, shop.around)
    assert shop.notes == ["entered", "sold", "left"] * 2


def test_a_tick_reports_what_the_chosen_runners_did() -> None:
    shop = Shop()
    report = run_tick(shop.app, runners=["maintenance", "queue"], around=shop.around)
    assert [part.runner for part in report.runners] == ["maintenance", "queue"]
    assert report.runners[1].processed == 1


def test_a_worker_tells_of_its_ticks_on_its_loop() -> None:
    shop, told = Shop(), list[tuple[str, int]]()

    def tell(report: TickReport) -> None:
        assert asyncio.get_running_loop().is_running()
        assert shop.app.is_open
        told.extend((part.runner, part.processed) for part in report.runners if not part.is_idle)

    assert run_worker(shop.app, runners=["queue"], on_tick=tell, around=shop.around) == 0
    assert told == [("queue", 1)]


def test_an_async_on_tick_is_refused() -> None:
    async def tell(report: TickReport) -> None: ...

    with pytest.raises(InvalidInput, match="on_tick: give a plain function"):
        run_worker(Shop().app, on_tick=tell)


@pytest.mark.parametrize("run", [run_worker, run_tick])
def test_runners_that_are_not_known_are_refused_before_anything_is_entered(
    run: Callable[..., object],
) -> None:
    shop = Shop()
    with pytest.raises(InvalidInput, match="runners: 'quue' is not known"):
        run(shop.app, runners=["quue"], around=shop.around)
    assert not shop.notes
    assert not shop.app.is_open


@both
def test_an_error_of_what_is_around_is_the_callers_and_the_app_is_closed(run: Run) -> None:
    app, pools = Shop().app, dict[str, None]()

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        yield pools["ours"]

    with pytest.raises(KeyError, match="ours"):
        run(app, around)
    assert not app.is_open


@both
def test_a_signal_while_entering_unwinds_it_and_starts_nothing(run: Run) -> None:
    shop = Shop()

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        await shop.app.enqueue("sell")
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        finally:
            # Closing takes awaits too, and they work.
            await asyncio.sleep(0.01)
            shop.notes.append("unwound")
        yield

    run(shop.app, around)
    assert shop.notes == ["unwound"]
    assert not shop.app.is_open


def test_a_signal_that_was_swallowed_while_entering_is_not_forgotten() -> None:
    shop = Shop()

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await shop.app.enqueue("sell")
        yield
        await asyncio.sleep(0)
        shop.notes.append("left")

    assert run_worker(shop.app, around=around) == 0
    assert shop.notes == ["left"]
    assert run_tick(shop.app, around=around) == TickReport()


def test_a_store_that_cannot_be_reached_ends_a_tick() -> None:
    app = Holdfast("postgresql://127.0.0.1:1/nowhere")
    app.handler("sell")(print)
    with pytest.raises(StoreUnavailable):
        run_tick(app)
    assert not app.is_open


def test_a_worker_waits_for_a_store_that_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("postgresql://127.0.0.1:1/nowhere")
    app.handler("sell")(print)
    # It is told once, however often it is tried, and a signal ends the wait.
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert run_worker(app) == 0
    assert len([record for record in caplog.records if "no store yet" in record.getMessage()]) == 1
    assert not app.is_open


@pytest.mark.parametrize("run", [run_worker, run_tick])
def test_other_threads_and_running_loops_are_told_what_to_use(run: Callable[[Holdfast], object]) -> None:
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
        f"{name} needs the main thread, which gets the signals; elsewhere use app.worker()",
        f"{name} has an event loop of its own; inside of one use app.worker() and app.tick()",
    ]


def test_the_health_port_of_the_settings_is_open_while_it_runs() -> None:
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
    async def around() -> AsyncIterator[None]:
        await app.enqueue("ask")
        yield

    assert run_worker(app, around=around) == 0
    assert answers == [200]


def test_a_tick_that_gave_up_on_its_handlers_is_not_fine() -> None:
    app, let_go = Holdfast("memory:", concurrency=1), threading.Event()

    @app.handler("hang", timeout="50ms")
    def hang(job: RunningJob[object]) -> None:
        let_go.wait()

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        await app.enqueue("hang")
        yield

    report = run_tick(app, runners=["queue"], around=around)
    let_go.set()
    assert [part.error for part in report.runners] == ["too many handlers could not be stopped"]


@pytest.mark.parametrize("kind", ["hang", "borrow", "stubborn"])
@pytest.mark.parametrize(
    ("command", "said"), [("tick", "queue {'interrupt': 1}"), ("worker", "exit code 0")], ids=["tick", "worker"]
)
def test_what_cannot_be_stopped_keeps_the_program_neither_from_going_on_nor_from_ending(
    command: str, said: str, kind: str
) -> None:
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
