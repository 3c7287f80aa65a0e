"""The README's code runs unchanged: its modules, its commands and its SQL."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from holdfast.store.opening import server_url

README = Path(__file__).parents[2] / "README.md"


# What the README's examples leave to the reader.
ORDER = """
import asyncio, sys
from tasks import Invoice, app

{order}

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.execute("CREATE TABLE orders (number integer)")
    await order(connection)
    await connection.close()

asyncio.run(main())
"""
REMIND = """
from tasks import Invoice, app

{remind}

remind(18, "bob@example.com")
"""
EVENTS = """
import asyncio, sys
import asyncpg
from tasks import Invoice, app, pay, send_invoice

{send_now}

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    async with app:
        await app.declare()
        await pay(connection, 21)
        print(await send_now(22, "kim@example.com"))
    await connection.close()

asyncio.run(main())
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Reader:
    """A person with an empty folder, the README and the `holdfast` command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "HOLDFAST_HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        # The test uses the server too, which keeps it running between the commands and makes the test faster.
        self.store = f"embedded:{folder / 'home' / 'postgres'}"

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True)

    def states(self) -> dict[str, str]:
        listed = json.loads(self.run("holdfast", "jobs", "list", "--json"))
        return {job["id"]: job["state"] for job in listed}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    reader = Reader(tmp_path)
    (tmp_path / "tasks.py").write_text(blocks("python")[0], encoding="utf-8")
    return reader


async def test_following_the_readme_works(reader: Reader) -> None:
    (session,) = blocks("console")
    export, enqueue, work, list_jobs = [
        shlex.split(line.removeprefix("$ "), comments=True) for line in session.strip().splitlines()
    ]
    variable, _, app = export[1].partition("=")
    reader.environment[variable] = app
    async with server_url(reader.store) as server:
        reader.run(*enqueue)
        reader.run(sys.executable, "-c", ORDER.format(order=blocks("python")[1]), server)
        connection = await asyncpg.connect(server)
        (sql,) = blocks("sql")
        await connection.execute(sql)
        await connection.close()
        (reader.folder / "tasks.py").write_text(blocks("python")[0] + blocks("python")[4], encoding="utf-8")
        worker = reader.start(*work)
        said = reader.run(sys.executable, "-c", EVENTS.format(send_now=blocks("python")[2]), server)
        assert said == "{'sent': 22}\n"
        while set(reader.states().values()) != {"succeeded"}:
            assert worker.poll() is None, "the worker ended by itself"
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
        assert worker.returncode == 0
        assert len(reader.states()) == 5
        assert "succeeded" in reader.run(*list_jobs)
        reader.run(sys.executable, "-c", REMIND.format(remind=blocks("python")[3]))
        assert sorted(reader.states().values()) == ["ready", *["succeeded"] * 5]
        report = json.loads(reader.run("holdfast", "tick", "--json"))
        assert [part["runner"] for part in report["runners"]] == ["schedules", "queue", "maintenance"]
        (declared,) = json.loads(reader.run("holdfast", "schedules", "list", "--json"))
        assert declared["name"] == "close_the_day"
