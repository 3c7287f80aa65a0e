"""The examples as real processes: a shop with its own database, its server on a real socket and `holdfast worker`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.databases import Servers
from tests.worker.harness import eventually

_EXAMPLES = Path(__file__).parents[2] / "examples"
_PROGRAMS = Path(sys.executable).parent
_CREATE_TABLES = {
    "fastapi_shop": ("python", "shop.py"),
    "flask_shop": ("flask", "--app", "shop:web", "create-tables"),
}
_SECONDS_TO_STOP = 30


@dataclass(frozen=True, slots=True)
class Program:
    """A process whose output goes to a file."""

    process: "subprocess.Popen[bytes]"
    output: Path

    @property
    def log(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def address(self) -> str:
        """Where the server listens, as soon as it says so."""
        pattern = r"(?:running on|Listening at:) (http://\S+)"
        eventually(lambda: re.search(pattern, self.log) or self.process.poll() is not None, "the server listens")
        found = re.search(pattern, self.log)
        assert found is not None, self.log
        return found[1]

    def stopped(self) -> int:
        """The exit code after a SIGTERM."""
        self.process.terminate()
        return self.process.wait(_SECONDS_TO_STOP)

    def troubles(self) -> list[str]:
        """The lines of the log that are not information."""
        trouble = re.compile(r"warn|error|critical|traceback", re.IGNORECASE)
        return [line for line in self.log.splitlines() if trouble.search(line)]


class Shop:
    """One of the examples, with a database of its own."""

    def __init__(self, example: str, url: str, folder: Path, exits: ExitStack) -> None:
        self.url = url
        self._code = _EXAMPLES / example
        self._folder = folder
        self._exits = exits
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        # psycopg warns of a connection that a fork leaves to its parent, as it should.
        warnings = "default,ignore:<psycopg.Connection object"
        self._environment = {**kept, "DATABASE_URL": url, "PYTHONWARNINGS": warnings, "PYTHONUNBUFFERED": "1"}

    def run(self, *command: str) -> None:
        done = subprocess.run(
            self._found(command), cwd=self._code, env=self._environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def start(self, *command: str, **environment: str) -> Program:
        """Killed at the end if it is not stopped before."""
        output = self._folder / f"{command[0]}-{len(list(self._folder.iterdir()))}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                self._found(command), cwd=self._code, env=self._environment | environment, stdout=log, stderr=log
            )
        self._exits.callback(process.wait)
        self._exits.callback(process.kill)
        return Program(process, output)

    def start_worker(self) -> Program:
        return self.start("holdfast", "worker", "--app", "shop:app", "--poll", "50ms")

    def client(self, server: Program) -> "Client":
        # A new connection for each request: uvicorn closes the one on which an endpoint has failed.
        limits = httpx.Limits(max_keepalive_connections=0)
        return Client(self._exits.enter_context(httpx.Client(base_url=server.address(), timeout=30, limits=limits)))

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(sql.encode(), parameters)
            return [] if cursor.description is None else cursor.fetchall()

    def cut_connections(self) -> int:
        """How many the server closed without a word to the programs."""
        return len(
            self.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )

    def jobs(self) -> int:
        """How many there are, in any state."""
        ((count,),) = self.rows(
            "SELECT (SELECT count(*) FROM holdfast.ready) + (SELECT count(*) FROM holdfast.lease)"
            " + (SELECT count(*) FROM holdfast.finished) + (SELECT count(*) FROM holdfast.dead_letter)"
        )
        return int(count)

    def _found(self, command: tuple[str, ...]) -> list[str]:
        return [str(_PROGRAMS / command[0]), *command[1:]]


class Client:
    """What both examples offer."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def place(self, customer: str, quantity: int = 1) -> httpx.Response:
        return self.http.post("/orders", json={"customer": customer, "quantity": quantity})

    def order_newsletter(self, to: str) -> httpx.Response:
        return self.http.post("/newsletters", params={"to": to})

    def receipt(self, order: int, wait: float = 15) -> httpx.Response:
        return self.http.post(f"/orders/{order}/receipt", params={"wait": wait})

    def is_confirmed(self, placed: httpx.Response) -> bool:
        return bool(self.http.get(f"/orders/{placed.json()['id']}").json()["is_confirmed"])

    def confirmed(self, *placed: httpx.Response) -> None:
        """Returns when the jobs of all orders have run."""
        for each in placed:
            assert each.status_code == 201, each.text
            eventually(lambda each=each: self.is_confirmed(each), "the order is confirmed")  # type: ignore[misc]

    def sent(self, ordered: httpx.Response) -> object:
        """What the handler returned, as soon as the job has succeeded."""
        assert ordered.status_code == 202, ordered.text
        job: dict[str, object] = {}

        def has_succeeded() -> bool:
            job.update(self.http.get(ordered.json()["status"]).json())
            return job["state"] == "succeeded"

        eventually(has_succeeded, "the job succeeds")
        return job["result"]


@contextmanager
def opened_shop(servers: Servers, example: str, folder: Path) -> Iterator[Shop]:
    with servers.get("embedded-18").fresh_database() as database, ExitStack() as exits:
        shop = Shop(example, database.url, folder, exits)
        shop.run(*_CREATE_TABLES[example])
        yield shop
