"""Real `holdfast worker` processes of bench/runtime/app.py, and the place where they work."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from bench.runtime.app import app
from holdfast.store.postgres.sql_files import quoted
from holdfast_lab.bench.place import Place
from holdfast_lab.faults.proxy import Proxy

LISTENER = "holdfast_listener"
ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60.0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles and the maximum, in milliseconds."""
    ordered = sorted(values)
    at = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {
        "count": len(ordered),
        **{name: round(value * 1000, 1) for name, value in (at | {"max": ordered[-1]}).items()},
    }


class WorkerProcess:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def holder(self) -> str:
        return self.log.partition("holder=")[2].split()[0]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def started(self) -> None:
        await until(lambda: "worker started" in self.log, "the worker starts")

    async def ended(self) -> None:
        # Without the timeout of `wait`, which would check only every 50 ms.
        async with asyncio.timeout(_PATIENCE_SECONDS):
            code = await asyncio.to_thread(self._process.wait)
        assert code == 0, self.log

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Scene:
    """A schema on a PostgreSQL, and the workers on it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._number = 0

    @asynccontextmanager
    async def worker(self, *options: str, listen_url: str | None = None) -> AsyncIterator[WorkerProcess]:
        self._number += 1
        log = self.place.folder / f"worker-{self._number}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        if listen_url is not None:
            environment["HOLDFAST_LISTEN_URL"] = listen_url
        where = ["--store", self.place.url, "--schema", self.place.schema]
        command = [sys.executable, "-m", "holdfast", "worker", "--app", "bench.runtime.app", *where, *options]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220 - starting one does not block
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        worker = WorkerProcess(process, log)
        try:
            await worker.started()
            yield worker
            worker.send(signal.SIGTERM)
            await worker.ended()
        finally:
            worker.kill()

    async def rows(self, sql: str, *arguments: object) -> list[Any]:
        """Run SQL in which `holdfast.` stands for the schema."""
        return await self.place.connection.fetch(sql.replace("holdfast.", f"{quoted(self.place.schema)}."), *arguments)

    async def value(self, sql: str, *arguments: object) -> Any:  # noqa: ANN401
        return (await self.rows(sql, *arguments))[0][0]

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not await condition():
            assert time.monotonic() < end, f"did not happen within {_PATIENCE_SECONDS:g} s: {what}"
            await asyncio.sleep(0.005)

    async def top_up(self, kind: str, payload: object, ready: int) -> None:
        """Enqueue jobs, a thousand at a time, until that many are ready."""
        missing = ready - await self.value("SELECT count(*) FROM holdfast.ready")
        while missing > 0:
            await app.enqueue_many([app.job(kind, payload) for _ in range(min(1_000, missing))])
            missing -= 1_000

    async def empty(self) -> None:
        """Delete all remaining jobs, so that the next measurement starts empty."""
        await self.rows("TRUNCATE holdfast.ready, holdfast.lease, holdfast.job, holdfast.finished")

    def listen_url(self, proxy: Proxy | None = None) -> str:
        """The place's address for a listener, with a name that sets it apart from other connections."""
        parts = urlsplit(self.place.url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()} | {"application_name": LISTENER}
        url = urlunsplit(parts._replace(query=urlencode(options)))
        return url if proxy is None else proxy.through(url)

    def proxy(self) -> Proxy:
        return Proxy.before(self.place.url)


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"did not happen within {_PATIENCE_SECONDS:g} s: {what}"
        await asyncio.sleep(0.005)
