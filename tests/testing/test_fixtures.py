"""The pytest plugin: fixtures that need no configuration, work with each async plugin, and cost nothing if unused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.projects import SOURCE, run_pytest

pytestmark = pytest.mark.long

APP = """
from holdfast import Holdfast, RunningJob

app = Holdfast("postgresql://nobody@nowhere.invalid/never")

@app.handler("greet")
async def greet(job: RunningJob[dict[str, str]]) -> str:
    return f"hello {job.payload['name']}"
"""
PLAIN = """
import asyncio
from app import app

def test_one(holdfast_memory):
    jobs = holdfast_memory(app)
    asyncio.run(app.enqueue("greet", {"name": "Ada"}))
    asyncio.run(jobs.assert_enqueued("greet", {"name": "Ada"}, count=1))
    report = asyncio.run(jobs.drain())
    assert [job.result for job in report.succeeded] == ["hello Ada"]

def test_two(holdfast_memory):
    asyncio.run(holdfast_memory(app).assert_nothing_enqueued())
    assert app.is_open

def test_three():
    assert not app.is_open
"""
AWAITING = """
import pytest
from app import app

{mark}
async def test_one(holdfast_memory):
    jobs = holdfast_memory(app)
    await app.enqueue("greet", {{"name": "Ada"}})
    report = await jobs.drain()
    assert [job.result for job in report.succeeded] == ["hello Ada"]

{mark}
async def test_two(holdfast_memory):
    for _ in range(2):
        async with holdfast_memory(app) as jobs:
            assert app.is_open
            await app.enqueue("greet", {{"name": "Ada"}})
            await jobs.assert_enqueued("greet", count=1)
        assert not app.is_open

def test_three():
    assert not app.is_open
"""
POSTGRES = """
import asyncio
import asyncpg
import pytest
from app import app

@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    assert asyncio.get_event_loop() is loop, "as it was, after the fixture has ended"
    asyncio.set_event_loop(None)
    loop.close()

def test_zero(loop, holdfast_database):
    assert asyncio.get_event_loop() is loop

async def enqueue_and_roll_back(jobs):
    connection = await asyncpg.connect(jobs.url)
    transaction = connection.transaction()
    await transaction.start()
    await app.enqueue(app.job("greet", {"name": "nobody"}), conn=connection)
    await transaction.rollback()
    await connection.close()

async def test_one(holdfast_postgres):
    async with holdfast_postgres(app) as jobs:
        await app.enqueue("greet", {"name": "Ada"})
        await enqueue_and_roll_back(jobs)
        await jobs.assert_enqueued("greet", count=1)
        await jobs.advance("1h")
        report = await jobs.drain()
        assert [job.result for job in report.succeeded] == ["hello Ada"]

async def test_two(holdfast_postgres):
    async with holdfast_postgres(app) as jobs:
        await jobs.assert_nothing_enqueued()

async def test_four(holdfast_database, holdfast_postgres):
    async with holdfast_postgres(app, holdfast_database) as jobs:
        assert jobs.url == holdfast_database
        await app.enqueue("greet", {"name": "Ada"})
        await jobs.assert_enqueued("greet", count=1)

async def test_three(holdfast_database):
    connection = await asyncpg.connect(holdfast_database)
    assert await connection.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
    await connection.close()
"""
FORGOTTEN = """
from app import app

def test_one(holdfast_postgres):
    holdfast_postgres(app)
"""
LEFTOVERS = """
import asyncpg
from app import app

LEFT = ["holdfast_test_" + "0" * 32, "holdfast_template_of_another_release"]

async def test_one(holdfast_database, holdfast_postgres):
    connection = await asyncpg.connect(holdfast_database)
    mine = await connection.fetchval("SELECT current_database()")
    for name in LEFT:
        await connection.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    await connection.close()
    for _ in range(2):
        async with holdfast_postgres(app) as jobs:
            connection = await asyncpg.connect(jobs.url)
            names = {row["datname"] for row in await connection.fetch("SELECT datname FROM pg_database")}
            await connection.close()
            assert not names & set(LEFT)
            assert mine in names, "its test goes on, though nobody is connected to it"
            templates = {name for name in names if name.startswith("holdfast_template")}
            assert len(templates) == 1, "made once, and kept"
"""


def test_blocking_tests_need_no_other_plugin(tmp_path: Path) -> None:
    without = ("-p", "no:asyncio", "-p", "no:anyio", "-W", "error")
    assert "3 passed" in run_pytest(tmp_path, *without, files={"app.py": APP, "test_it.py": PLAIN})


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("", ("-p", "no:anyio", "-o", "asyncio_mode=auto")),
        ("@pytest.mark.anyio", ("-p", "no:asyncio", "-k", "asyncio or three")),
    ],
    ids=["pytest-asyncio", "anyio"],
)
def test_async_tests_run_with_either_plugin(tmp_path: Path, mark: str, arguments: tuple[str, ...]) -> None:
    assert "3 passed" in run_pytest(
        tmp_path, *arguments, files={"app.py": APP, "test_it.py": AWAITING.format(mark=mark)}
    )


def test_one_server_provides_a_separate_database_for_each_test(tmp_path: Path) -> None:
    assert "5 passed" in run_pytest(tmp_path, "-o", "asyncio_mode=auto", files={"app.py": APP, "test_it.py": POSTGRES})
    assert not list((tmp_path / "home").glob("**/postmaster.pid")), "the server was left running"


def test_a_postgres_block_that_is_never_entered_is_an_error(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, files={"app.py": APP, "test_it.py": FORGOTTEN}, fails=True)
    assert "1 passed, 1 error" in output
    assert "use `async with holdfast_postgres(app) as jobs:`" in output


def test_leftover_databases_of_killed_sessions_are_dropped(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, "-o", "asyncio_mode=auto", files={"app.py": APP, "test_it.py": LEFTOVERS})


def test_the_plugin_imports_nothing_into_a_session_that_does_not_use_it() -> None:
    loaded = "import holdfast.testing.pytest_plugin, json, sys; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", loaded], env=environment, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    ours = [name for name in modules if name.startswith("holdfast")]
    assert ours == ["holdfast", "holdfast.testing", "holdfast.testing.pytest_plugin"]
    assert not {"asyncpg", "pydantic", "psycopg"} & set(modules)
