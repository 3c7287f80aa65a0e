"""The real command, run as a process in a folder with a small app, against a separate database."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.forking import Forking
from tests.databases import Database, Servers

SHOP = '''
import asyncio
import logging
import time
from pathlib import Path

from holdfast import Holdfast, Permanent, RunningJob

app = Holdfast()
log = logging.getLogger("shop")


@app.handler("greet")
async def greet(job: RunningJob[dict[str, str]]) -> dict[str, str]:
    log.info("greeting")
    return {"said": "hello " + job.payload["name"]}


@app.handler("refuse")
async def refuse(job) -> None:
    raise Permanent("NOT_WANTED", "we do not sell [red]fish[/red]")


@app.handler("wait")
async def wait(job) -> None:
    """Runs until the file that the payload names is there."""
    Path(job.payload["started"]).touch()
    while not Path(job.payload["until"]).exists():
        await asyncio.sleep(0.01)


@app.handler("block")
async def block(job) -> None:
    """Blocks the event loop, as no handler should."""
    Path(job.payload["started"]).touch()
    while True:
        time.sleep(0.1)


@app.handler("hang", timeout="300ms", attempts=1)
def hang(job) -> None:
    Path(job.payload["started"]).touch()
    while True:
        time.sleep(0.1)


@app.handler("borrow", attempts=1)
async def borrow(job) -> None:
    await asyncio.to_thread(hang, job)


@app.handler("stubborn", attempts=1)
async def stubborn(job) -> None:
    Path(job.payload["started"]).touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@app.handler("measure", isolation="process")
def measure(job) -> int:
    return len(job.payload)
'''


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    def one_error_line(self) -> str:
        """The output of a refused command: one line, no traceback, nothing on stdout."""
        assert self.code != 0, self.out
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("holdfast: "), line
        return line


class Cli:
    """`holdfast …` in a folder that has shop.py, with the database as its store."""

    def __init__(self, folder: Path, url: str, forking: Forking) -> None:
        self.folder = folder
        self._forking = forking
        self.url = url
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment = {**kept, "HOLDFAST_STORE": url}
        (folder / "shop.py").write_text(SHOP, encoding="utf-8")

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        code = self._forking.run(arguments, self.folder, self.environment, stdin)
        return Done(code, self._read(".out"), self._read(".err"))

    def run_from_nothing(self, *arguments: str) -> Done:
        """Like `run`, but as a person types it: a new interpreter and the installed command."""
        return self.run_program(self._command(arguments))

    def run_program(self, program: Sequence[str]) -> Done:
        done = subprocess.run(
            program, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def in_terminal(self, columns: int, *arguments: str) -> list[str]:
        """The lines that a terminal of that width shows."""
        ours, theirs = os.openpty()
        try:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            environment = {**self.environment, "TERM": "xterm", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
            environment.pop("COLUMNS", None)
            with subprocess.Popen(
                self._command(arguments), cwd=self.folder, env=environment, stdin=theirs, stdout=theirs
            ) as process:
                os.close(theirs)
                seen = b"".join(iter(lambda: _read_or_nothing(ours), b""))
            assert process.returncode == 0
        finally:
            os.close(ours)
        text = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode())
        return [line.rstrip() for line in text.splitlines()]

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the command in the background; stderr goes to the file `log`."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(self._command(arguments), cwd=self.folder, env=self.environment, stderr=log)

    @property
    def log(self) -> str:
        return self._read("log")

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def enqueue(self, kind: str, payload: str = "{}", *options: str) -> str:
        done = self.run("enqueue", "--app", "shop", kind, payload, *options)
        assert done.code == 0, done.err
        return done.out.split()[0]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql.encode()).fetchall()

    def states(self) -> dict[str, str]:
        found = self.rows(
            "SELECT id, 'ready' FROM holdfast.ready UNION ALL SELECT id, 'running' FROM holdfast.lease "
            "UNION ALL SELECT id, state::text FROM holdfast.finished "
            "UNION ALL SELECT id, state::text FROM holdfast.dead_letter"
        )
        return {str(id): state for id, state in found}

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [str(Path(sys.executable).with_name("holdfast")), *arguments]


def _read_or_nothing(terminal: int) -> bytes:
    """Linux raises an error when the other end of a terminal is closed; other systems return nothing more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.fixture
def empty(servers: Servers) -> Iterator[Database]:
    """A database without Holdfast's schema."""
    with servers.get("embedded-18").fresh_database(migrated=False) as database:
        yield database


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    forking = Forking()
    try:
        yield forking
    finally:
        forking.close()


@pytest.fixture
def cli(servers: Servers, tmp_path: Path, forking: Forking) -> Iterator[Cli]:
    with servers.get("embedded-18").emptied_database() as database:
        yield Cli(tmp_path, database.url, forking)
