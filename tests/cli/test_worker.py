"""`holdfast worker` as a process: logs, signals and shutdown."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from tests.cli.conftest import Cli
from tests.cli.forking import Forking
from tests.databases import refusing
from tests.worker.harness import eventually


class Workers:
    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        process = self._cli.start("worker", "--app", "shop", "--poll", "50ms", *options)
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def workers(cli: Cli) -> Iterator[Workers]:
    workers = Workers(cli)
    try:
        yield workers
    finally:
        workers.end()


def started(cli: Cli, kind: str) -> Path:
    """Enqueue a job of this kind and return the file that its handler creates when it starts."""
    file = cli.folder / "started"
    cli.enqueue(kind, f'{{"started": "{file}", "until": "{cli.folder / "end"}"}}')
    return file


def test_a_job_goes_from_enqueue_to_its_result_on_an_embedded_store(tmp_path: Path, forking: Forking) -> None:
    address = EmbeddedAddress(tmp_path / "postgres", durable=False)
    # Keep the server in use, so that not every command starts and stops it.
    with EmbeddedServer.start(address) as server:
        cli = Cli(tmp_path, server.url(), forking)
        store = ("--store", f"embedded:{address.folder}?durability=off")
        id = cli.enqueue("greet", '{"name": "Ann"}', "--correlation-id", "order-7", *store)
        worker = cli.start("worker", "--app", "shop.py:app", *store)
        try:
            eventually(lambda: cli.states() == {id: "succeeded"}, "the job succeeds")
            worker.terminate()
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()
        shown = cli.run("jobs", "show", id, *store)
    assert '"said": "hello Ann"' in shown.out
    assert "succeeded" in shown.out
    assert f"greeting  job_id={id} kind=greet attempt=1 correlation_id=order-7" in cli.log


@pytest.mark.parametrize("command", ["worker", "tick"])
def test_a_lifespan_that_fails_to_open_ends_the_command(cli: Cli, command: str) -> None:
    (cli.folder / "broken.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from holdfast import Holdfast\n"
        "@asynccontextmanager\n"
        "async def open_clients(app):\n"
        "    raise ConnectionError('no clients today')\n"
        "    yield\n"
        "app = Holdfast(lifespan=open_clients)\n"
        "app.handler('greet')(print)\n"
    )
    ended = cli.run(command, "--app", "broken")
    assert ended.code == 1
    assert "ConnectionError: no clients today" in ended.err
    assert "the app's lifespan could not be opened" in ended.err


def test_handlers_with_process_isolation_are_found(cli: Cli, workers: Workers) -> None:
    id = cli.enqueue("measure", '{"a": 1, "b": 2}')
    workers.start()
    eventually(lambda: cli.states()[id] == "succeeded", "the job succeeds")
    assert cli.rows("SELECT result::text FROM holdfast.finished") == [("2",)]


def test_a_worker_runs_only_the_jobs_of_its_shard(cli: Cli, workers: Workers) -> None:
    app = Holdfast(cli.url)

    async def enqueue() -> None:
        async with app:
            await app.enqueue_many([app.job("greet", {"name": "Ann"}) for _ in range(20)])

    asyncio.run(enqueue())
    worker = workers.start("--shard", "0/2")
    eventually(lambda: "succeeded" in cli.states().values(), "a job succeeds")
    worker.terminate()
    assert worker.wait(30) == 0
    assert set(cli.states().values()) == {"ready", "succeeded"}
    assert cli.run("tick", "--app", "shop", "--shard", "1/2").code == 0
    assert set(cli.states().values()) == {"succeeded"}


@pytest.mark.fault
def test_an_outage_of_the_store_is_logged_without_a_traceback(cli: Cli, workers: Workers) -> None:
    worker = workers.start()
    eventually(lambda: "app opened" in cli.log, "the worker starts")
    cli.enqueue("greet", '{"name": "Ann"}')
    eventually(lambda: set(cli.states().values()) == {"succeeded"}, "the job succeeds")
    with refusing(cli.url):
        eventually(lambda: "accepting connections" in cli.log, "the outage is told")
    cli.enqueue("greet", '{"name": "Ann"}')
    eventually(lambda: set(cli.states().values()) == {"succeeded"}, "the job succeeds")
    worker.terminate()
    assert worker.wait(30) == 0
    assert "Traceback" not in cli.log, cli.log
    assert "asyncpg" not in cli.log, cli.log


@pytest.mark.fault
def test_a_worker_that_starts_during_an_outage_waits_for_its_end(cli: Cli, workers: Workers) -> None:
    id = cli.enqueue("greet", '{"name": "Ann"}')
    with refusing(cli.url):
        worker = workers.start()
        eventually(lambda: "retrying until it does" in cli.log, "the outage is told")
    eventually(lambda: cli.states() == {id: "succeeded"}, "the job succeeds")
    worker.terminate()
    assert worker.wait(30) == 0
    assert cli.log.count("retrying until it does") == cli.log.count("the store answers") == 1
    assert "Traceback" not in cli.log, cli.log


def test_a_signal_ends_a_worker_that_waits_for_its_store(cli: Cli, workers: Workers) -> None:
    worker = workers.start("--store", "postgresql://postgres@127.0.0.1:1/nowhere")
    eventually(lambda: "retrying until it does" in cli.log, "the outage is told")
    worker.terminate()
    assert worker.wait(30) == 0


def test_the_first_signal_lets_handlers_finish(cli: Cli, workers: Workers) -> None:
    handler_started = started(cli, "wait")
    worker = workers.start()
    eventually(handler_started.exists, "the handler starts")
    worker.send_signal(signal.SIGTERM)
    eventually(lambda: "worker is stopping" in cli.log, "the worker hears of the signal")
    (cli.folder / "end").touch()
    assert worker.wait(30) == 0
    assert list(cli.states().values()) == ["succeeded"]


def test_a_signal_that_is_sent_twice_counts_once(cli: Cli, workers: Workers) -> None:
    """A terminal sends Ctrl-C to the wrapper and to the worker, and the wrapper tells the worker to stop as well."""
    handler_started = started(cli, "wait")
    worker = workers.start()
    eventually(handler_started.exists, "the handler starts")
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGTERM)
    eventually(lambda: "worker is stopping" in cli.log, "the worker hears of the signal")
    (cli.folder / "end").touch()
    assert worker.wait(30) == 0
    assert list(cli.states().values()) == ["succeeded"]


def send_until(cli: Cli, worker: subprocess.Popen[bytes], number: signal.Signals, said: str) -> None:
    """Keep sending the signal, because within a second of the last one it does not count."""

    def is_said() -> bool:
        worker.send_signal(number)
        return said in cli.log

    eventually(is_said, f"the worker says: {said}")


def test_a_second_signal_interrupts_handlers_and_gives_their_jobs_back(cli: Cli, workers: Workers) -> None:
    handler_started = started(cli, "wait")
    worker = workers.start()
    eventually(handler_started.exists, "the handler starts")
    send_until(cli, worker, signal.SIGTERM, "running handlers are interrupted")
    assert worker.wait(30) == 0
    assert list(cli.states().values()) == ["ready"]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_third_signal_ends_it_at_once(cli: Cli, workers: Workers, number: signal.Signals, exit_code: int) -> None:
    handler_started = started(cli, "stubborn")
    worker = workers.start()
    eventually(handler_started.exists, "the handler starts")
    send_until(cli, worker, number, "running handlers are interrupted")

    def ended_by_signals() -> bool:
        worker.send_signal(number)
        return worker.poll() is not None

    eventually(ended_by_signals, "the worker ends")
    assert worker.returncode == exit_code
    assert list(cli.states().values()) == ["running"]


def test_a_handler_that_blocks_the_event_loop_cannot_prevent_the_shutdown(cli: Cli, workers: Workers) -> None:
    handler_started = started(cli, "block")
    worker = workers.start()
    eventually(handler_started.exists, "the handler starts")

    def ended_by_signals() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    eventually(ended_by_signals, "the worker ends")
    assert worker.returncode == 143


@pytest.mark.parametrize("kind", ["hang", "borrow", "stubborn"])
def test_a_handler_that_cannot_be_stopped_cannot_prevent_the_shutdown(cli: Cli, workers: Workers, kind: str) -> None:
    handler_started = started(cli, kind)
    worker = workers.start("--shutdown", "100ms")
    eventually(handler_started.exists, "the handler starts")
    worker.terminate()
    assert worker.wait(30) == 0


def test_a_signal_before_the_worker_is_ready_is_not_lost(cli: Cli, workers: Workers) -> None:
    worker = workers.start("--log-level", "debug")
    eventually(lambda: "app opened" in cli.log, "the store is open")
    worker.terminate()
    assert worker.wait(30) == 0


def test_an_application_that_has_set_up_logging_keeps_its_setup(cli: Cli) -> None:
    own = 'import logging, sys\nlogging.basicConfig(format="OWN %(message)s", level="INFO")\nfrom shop import app\n'
    (cli.folder / "own.py").write_text(own)
    worker = cli.start("worker", "--app", "own")
    try:
        eventually(lambda: "OWN worker started" in cli.log, "the worker starts")
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
    assert all(line.startswith("OWN ") for line in cli.log.splitlines())


def test_the_log_names_a_store_without_its_password_and_an_embedded_one_by_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from holdfast.cli.options import store_of

    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert store_of(Holdfast()) == f"embedded:{tmp_path.resolve()}/postgres"
    assert store_of(Holdfast("postgresql://app:secret@db/shop")) == "postgresql://app:…@db/shop"


def test_a_password_is_not_logged() -> None:
    from holdfast.domain.address import without_password

    assert without_password("postgresql://ann:secret@host/shop") == "postgresql://ann:…@host/shop"
    assert without_password("embedded:/folder") == "embedded:/folder"
    assert "secret" not in without_password("postgresql://host/shop?PassWord=secret&port=1")
