"""`app.sync` without a connection of the caller's: scripts, threads, forks and views use an app with no event loop."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest

from holdfast import Holdfast, InvalidInput, JobFailed, JobState, Kind, Permanent, RunningJob, StoreUnavailable
from holdfast.producer.sync import SyncProducer
from holdfast.store.embedded import stop
from holdfast.store.postgres.migrate import Applied
from holdfast.testing import in_memory
from holdfast.types import JobFilter
from tests.databases import Servers
from tests.worker.harness import Database, fast, working

ROOT = Path(__file__).parents[2]
Answer = TypeVar("Answer")

THREADS = 8
DOUBLE = Kind("double", int, returns=int)


@pytest.fixture
def database(servers: Servers, threads_end: None) -> Iterator[Database]:
    with servers.get("embedded-18").emptied_database() as made, closing(Database(made.name, made.url)) as database:
        yield database


@pytest.fixture
def app(database: Database) -> Iterator[Holdfast]:
    app = Holdfast(database.url)
    try:
        yield app
    finally:
        app.sync.close()


def with_handlers(app: Holdfast) -> Holdfast:
    @app.handler(DOUBLE)
    def double(job: RunningJob[int]) -> int:
        if job.payload < 0:
            raise Permanent("NEGATIVE", "too small")
        return 2 * job.payload

    return app


async def in_thread(function: Callable[..., Answer], *arguments: object) -> Answer:
    return await asyncio.to_thread(function, *arguments)


def from_threads(function: Callable[[int], Answer]) -> list[Answer]:
    """Called in every thread at the same moment."""
    all_of_them = Barrier(THREADS)

    def call(number: int) -> Answer:
        all_of_them.wait(10)
        return function(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(call, range(THREADS)))


def connections(database: Database) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    ((count,),) = database.query(query, database.name)
    assert isinstance(count, int)
    return count


def run(name: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.producer.blocking_program", name, url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.postgres
def test_every_verb_works_without_an_event_loop(app: Holdfast) -> None:
    first = app.sync.enqueue("a.kind", {"number": 1}, key="one")
    assert (first.is_new, app.sync.enqueue("a.kind", key="one").is_new) == (True, False)
    many = app.sync.enqueue_many([app.job("a.kind", {"number": number}) for number in range(3)])
    assert len({each.id for each in many}) == 3
    assert app.sync.publish("nobody.listens").jobs == ()
    found = app.sync.jobs.find("a.kind", "one")
    assert found is not None
    assert (found.id, found.payload) == (first.id, {"number": 1})
    assert app.sync.jobs.get(first.id) == found
    assert len(app.sync.jobs.list(JobFilter(kind="a.kind"), 10)) == 4
    assert [(each.queue, each.due) for each in app.sync.jobs.backlog()] == [("default", 4)]
    assert app.sync.wait(first.id, "0s").state is JobState.READY
    assert app.sync.wait_for("a.kind", "one", "0s").id == first.id
    assert list(app.sync.wait_many([first.id, many[0].id], "0s")) == [first.id, many[0].id]
    assert app.sync.cancel([first.id]) == ["canceled"]
    assert app.sync.retry([first.id]) == ["ready"]
    assert app.sync.cancel([first.id]) == ["canceled"]
    assert app.sync.delete([first.id]) == ["deleted"]
    assert app.sync.jobs.count()[JobState.READY] == 3
    assert app.sync.run(lambda: app.schedules.list()) == []


@pytest.mark.postgres
async def test_blocking_code_waits_for_a_typed_result(database: Database) -> None:
    app = with_handlers(Holdfast(database.url))
    async with app, working(app, fast()):
        enqueued = await in_thread(app.sync.enqueue, DOUBLE, 21)
        assert await in_thread(enqueued.result, "30s") == 42
        failing = await in_thread(app.sync.enqueue, DOUBLE, -1)
        with pytest.raises(JobFailed, match="NEGATIVE"):
            await in_thread(failing.result, "30s")
    await in_thread(app.sync.close)


@pytest.mark.postgres
def test_threads_share_one_event_loop_and_its_connections(app: Holdfast, database: Database) -> None:
    assert len(set(from_threads(lambda number: app.sync.enqueue("a.kind", {"number": number}).id))) == THREADS
    assert sum(thread.name == "holdfast-portal" for thread in threading.enumerate()) == 1
    app.sync.close()
    assert not any(thread.name == "holdfast-portal" for thread in threading.enumerate())
    assert connections(database) == 0
    assert app.sync.jobs.count()[JobState.READY] == THREADS


@pytest.mark.postgres
def test_an_app_can_be_open_on_an_event_loop_in_every_thread(app: Holdfast, database: Database) -> None:
    async def enqueue(number: int) -> None:
        async with app:
            enqueued = await app.enqueue("a.kind", {"number": number})
            assert (await app.wait(enqueued.id, "0s")).payload == {"number": number}

    from_threads(lambda number: asyncio.run(enqueue(number)))
    assert app.sync.jobs.count()[JobState.READY] == THREADS


@pytest.mark.postgres
def test_every_call_is_answered_while_another_thread_closes(app: Holdfast) -> None:
    over = threading.Event()

    def count(_: int) -> int:
        answered = 0
        while not over.is_set():
            with suppress(StoreUnavailable):
                app.sync.jobs.count()
            answered += 1
        return answered

    with ThreadPoolExecutor(4) as threads:
        counted = threads.map(count, range(4))
        for _ in range(40):
            app.sync.close()
        over.set()
        assert all(counted)


@pytest.mark.postgres
async def test_an_app_that_is_open_elsewhere_says_so(app: Holdfast) -> None:
    async def enqueue() -> None:
        await app.enqueue("a.kind")

    async with app:
        with pytest.raises(InvalidInput, match=r"^the app is not open on this event loop; use `async with app:`$"):
            await in_thread(asyncio.run, enqueue())
        with pytest.raises(InvalidInput, match="already open"):
            await app.open()
    with pytest.raises(InvalidInput, match="not open"):
        await app.enqueue("a.kind")


@pytest.mark.postgres
async def test_in_a_coroutine_the_message_never_leads_back_to_sync(app: Holdfast) -> None:
    await in_thread(app.sync.jobs.count)
    with pytest.raises(InvalidInput, match=r"use await app\.enqueue"):
        app.sync.enqueue("a.kind")
    with pytest.raises(InvalidInput, match=r"^the app is not open on this event loop; use `async with app:`$"):
        await app.enqueue("a.kind")


def test_without_an_event_loop_the_message_names_sync() -> None:
    line = r"^the app is not open; use app\.sync, such as app\.sync\.run\(.*\), or in a coroutine `async with app:`$"
    with pytest.raises(InvalidInput, match=line) as raised:
        Holdfast("postgresql://nobody@127.0.0.1:1/nothing").schedules  # noqa: B018
    assert raised.value.__context__ is None


@pytest.mark.postgres
def test_it_migrates_a_database_that_has_no_tables_yet(servers: Servers) -> None:
    with (
        servers.get("embedded-18").fresh_database(migrated=False) as made,
        closing(Database(made.name, made.url)),
        closing(Holdfast(made.url).sync) as sync,
    ):
        assert sync.migrate().migrations
        assert sync.migrate() == Applied()
        assert sync.enqueue("a.kind").is_new


@pytest.mark.postgres
def test_a_coroutine_instead_of_a_function_is_refused(app: Holdfast) -> None:
    app.sync.jobs.count()
    line = r"^work: pass a function: app\.sync\.run\(lambda: app\.schedules\.list\(\)\)$"
    with pytest.raises(InvalidInput, match=line):
        app.sync.run(app.schedules.list())  # type: ignore[arg-type]
    assert app.sync.run(app.schedules.list) == []


@pytest.mark.postgres
async def test_it_refuses_to_block_a_thread_with_a_running_event_loop(app: Holdfast) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("enqueue", lambda: app.sync.enqueue("a.kind")),
        ("jobs.count", lambda: app.sync.jobs.count()),
    ]
    for verb, call in calls:
        instead = rf"use await app\.{verb} or await asyncio\.to_thread\(app\.sync\.{verb}, …\)$"
        with pytest.raises(InvalidInput, match=rf"app\.sync\.{verb} would block .* {instead}"):
            call()
    with pytest.raises(InvalidInput, match="await the coroutine itself"):
        app.sync.run(app.declare)


@pytest.mark.postgres
@pytest.mark.fault
def test_a_fork_connects_anew_and_leaves_its_parents_connections_alone(database: Database) -> None:
    ended = run("forks", database.url)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (0, "", 1), ended.stderr
    said = sorted(str(payload) for (payload,) in database.query("SELECT payload ->> 'from' FROM holdfast.job"))
    assert said == ["the child", "the parent", "the parent again", "the parent at the end"]


@pytest.mark.postgres
@pytest.mark.fault
async def test_a_fork_is_not_open_where_its_parent_was(app: Holdfast) -> None:
    async with app:
        await app.enqueue("a.kind")
        assert await asyncio.to_thread(_is_open_in_fork, app) == 0
        await app.enqueue("a.kind")
        assert (await app.jobs.count())[JobState.READY] == 2


def _is_open_in_fork(app: Holdfast) -> int:
    child = os.fork()
    if not child:
        os._exit(int(app.is_open))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.postgres
def test_a_script_ends_by_itself_and_quietly(database: Database) -> None:
    ended = run("enqueues", database.url)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "a.kind" in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert len(database.query("SELECT id FROM holdfast.job")) == 1
    assert connections(database) == 0


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["enqueues_in_an_exit_handler", "starts_in_an_exit_handler_of_python_3_12"])
def test_an_exit_handler_that_runs_after_it_has_closed_learns_why(database: Database, name: str) -> None:
    ended = run(name, database.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("the program is ending and app.sync is closed; ")


@pytest.mark.postgres
def test_a_daemon_thread_that_calls_while_the_program_ends_learns_why(database: Database) -> None:
    ended = run("enqueues_in_threads_until_the_end", database.url)
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 4), ended
    for line in ended.stdout.splitlines():
        assert line.startswith("StoreUnavailable: the program is ending and app.sync is closed; "), line
        assert line.endswith("; None"), line


@pytest.mark.postgres
def test_an_exit_handler_that_was_registered_after_the_first_call_can_enqueue(database: Database) -> None:
    ended = run("enqueues_in_a_late_exit_handler", database.url)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert len(database.query("SELECT id FROM holdfast.job")) == 1


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["enqueues_for_a_handler", "ends_as_python_3_12_does"])
def test_a_script_on_an_embedded_store_ends_quietly_and_stops_the_server(tmp_path: Path, name: str) -> None:
    ended = run(name, f"embedded:{tmp_path}?durability=off")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not stop(tmp_path), "the server was still running"


@pytest.mark.postgres
def test_ctrl_c_ends_a_wait(database: Database) -> None:
    command = [sys.executable, "-m", "tests.producer.blocking_program", "waits", database.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted True\n"
        assert process.wait(30) == 0


@pytest.mark.postgres
@pytest.mark.fault
def test_a_cut_connection_costs_one_call_at_most(app: Holdfast, database: Database) -> None:
    app.sync.enqueue("a.kind")
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    assert database.query(cut, database.name)
    with suppress(StoreUnavailable):
        # It may have been sent before the loss was noticed.
        app.sync.jobs.count()
    assert app.sync.jobs.count()[JobState.READY] == 1


def test_a_store_that_is_away_is_tried_again_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Holdfast("postgresql://nobody@127.0.0.1:1/nothing")
    opened: list[None] = []
    original: Callable[[], Awaitable[None]] = app.open

    async def open() -> None:
        opened.append(None)
        await original()

    monkeypatch.setattr(app, "open", open)
    with closing(app.sync):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                app.sync.enqueue("a.kind")
    assert len(opened) == 2


async def test_in_memory_blocking_code_and_handlers_use_the_jobs_of_the_test() -> None:
    app = with_handlers(Holdfast("memory:"))

    @app.handler("starts")
    def starts(job: RunningJob[None]) -> None:
        app.sync.enqueue(DOUBLE, 4)

    async with in_memory(app) as tested:
        await in_thread(app.sync.enqueue, "starts")
        await tested.drain()
        (job,) = await tested.enqueued(DOUBLE)
        assert await in_thread(lambda: app.sync.wait(job.id, "10s").result) == 8


def test_two_threads_that_ask_for_sync_first_get_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    app, both = Holdfast("memory:"), Barrier(2)
    make = SyncProducer.__init__

    def make_together(self: SyncProducer, app: Holdfast) -> None:
        both.wait(10)
        make(self, app)

    monkeypatch.setattr(SyncProducer, "__init__", make_together)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: app.sync, range(2))
    assert first is second
