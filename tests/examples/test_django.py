"""examples/django_shop, with a real worker and real servers, on a database that now and then cuts a connection."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
import pytest

from tests.databases import Servers
from tests.django.projects import ROOT, Project, project_in
from tests.examples.patience import until

pytestmark = pytest.mark.long

FOLDER = ROOT / "examples" / "django_shop"


@pytest.fixture(scope="module")
def shop(servers: Servers) -> Iterator[Project]:
    with project_in(FOLDER, servers) as project:
        project.manage("migrate")
        yield project


@pytest.fixture
def database(shop: Project) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        yield connection


@contextmanager
def running(shop: Project, program: list[str], output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Ends in order by SIGTERM, with the exit code 0."""
    process = shop.start(program, output)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(shop: Project, output: Path, *options: str) -> Iterator[Callable[..., tuple[int, object]]]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    program = [sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", f"127.0.0.1:{port}", *options]

    def ask(path: str, **form: str) -> tuple[int, object]:
        data = urlencode(form).encode() if form else None
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, None

    with running(shop, program, output) as process:
        until(lambda: process.poll() is not None or is_listening(port))
        yield ask


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def working(shop: Project, output: Path) -> Iterator[None]:
    with running(shop, shop.command("holdfast", "worker", "--concurrency", "2"), output):
        yield


def jobs(database: psycopg.Connection) -> dict[str, int]:
    found = database.execute(
        "SELECT 'ready', count(*) FROM holdfast.ready UNION ALL SELECT 'leased', count(*) FROM holdfast.lease "
        "UNION ALL SELECT state::text, count(*) FROM holdfast.finished GROUP BY state"
    )
    return {name: number for name, number in found if number}


def confirmed(database: psycopg.Connection) -> int:
    return len(database.execute("SELECT FROM shop_order WHERE confirmed_at IS NOT NULL").fetchall())


def cut_whoever_waits(database: psycopg.Connection) -> None:
    """For the lock of a row, in a handler or in a view."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    until(lambda: bool(database.execute(cut).fetchall()))


@contextmanager
def locked(shop: Project, order: int) -> Iterator[None]:
    with psycopg.connect(shop.url) as other:
        other.execute("SELECT FROM shop_order WHERE id = %s FOR UPDATE", [order])
        yield


def placed(answer: tuple[int, object]) -> int:
    status, body = answer
    assert status == 201
    assert isinstance(body, dict)
    return int(body["order"])


def test_the_tests_of_the_shop_pass(shop: Project) -> None:
    assert "Ran 2 tests" in shop.manage("test", "--noinput")


@pytest.mark.parametrize(
    "options",
    [pytest.param([], marks=pytest.mark.long, id="threads"), pytest.param(["--preload", "--workers", "2"], id="forks")],
)
def test_orders_of_many_threads_are_confirmed_and_refused_ones_leave_nothing(
    shop: Project, database: psycopg.Connection, tmp_path: Path, options: list[str]
) -> None:
    before, done = confirmed(database), jobs(database).get("succeeded", 0)
    with (
        working(shop, tmp_path / "worker.log"),
        serving(shop, tmp_path / "web.log", "--threads", "4", *options) as ask,
        ThreadPoolExecutor(8) as threads,
    ):
        customers = [f"{number}@{'example.com' if number % 2 else 'elsewhere.test'}" for number in range(40)]
        answers = list(threads.map(lambda customer: ask("/orders/", customer=customer)[0], customers))
        assert answers == [400, 201] * 20
        until(lambda: confirmed(database) == before + 20)
        until(lambda: jobs(database) == {"succeeded": done + 20})
    assert "Traceback" not in (tmp_path / "worker.log").read_text() + (tmp_path / "web.log").read_text()


def test_a_cut_connection_costs_one_error_at_most(shop: Project, database: psycopg.Connection, tmp_path: Path) -> None:
    with serving(shop, tmp_path / "web.log", "--threads", "2") as ask:
        order = placed(ask("/orders/", customer="ann@example.com"))
        with ThreadPoolExecutor(1) as thread, locked(shop, order):
            asked = thread.submit(ask, f"/orders/{order}/note/", note="lost")
            cut_whoever_waits(database)
            assert asked.result() == (500, None)
        assert [ask(f"/orders/{order}/note/", note="kept")[0] for _ in range(6)] == [200] * 6

        with working(shop, tmp_path / "worker.log"):
            with locked(shop, order):
                cut_whoever_waits(database)
            until(lambda: ask(f"/orders/{order}/") == (200, {"order": order, "note": "kept", "confirmed": True}))
            more = [placed(ask("/orders/", customer="joe@example.com")) for _ in range(10)]
            until(lambda: ask(f"/orders/{more[-1]}/") == (200, {"order": more[-1], "note": "", "confirmed": True}))
            until(lambda: set(jobs(database)) == {"succeeded"})
    log = (tmp_path / "worker.log").read_text()
    assert log.count("attempt did not succeed") == 1, log
    errors = database.execute("SELECT error->>'type' FROM holdfast.attempt_error").fetchall()
    assert errors == [("OperationalError",)]


def is_anything_waiting(database: psycopg.Connection) -> bool:
    """Whether a handler waits for a row that the test has locked."""
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return database.execute(waiting).rowcount > 0


def test_a_worker_that_is_told_to_stop_finishes_its_job(
    shop: Project, database: psycopg.Connection, tmp_path: Path
) -> None:
    with serving(shop, tmp_path / "web.log") as ask:
        order = placed(ask("/orders/", customer="ann@example.com"))
        log = tmp_path / "worker.log"
        worker = shop.start(shop.command("holdfast", "worker"), log)
        try:
            with locked(shop, order):
                # A job that is only leased is given back.
                until(lambda: is_anything_waiting(database))
                os.kill(worker.pid, signal.SIGTERM)
                until(lambda: "stopping" in log.read_text())
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()
        assert ask(f"/orders/{order}/") == (200, {"order": order, "note": "", "confirmed": True})
