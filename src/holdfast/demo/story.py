"""The demo, step by step: enqueue, work, kill a worker, let another one finish, check.

The workers are real `holdfast worker` processes, on a real PostgreSQL in a temporary folder.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from subprocess import Popen

import asyncpg
from rich.console import Console

from holdfast.demo.app import LEDGER, app
from holdfast.demo.checks import Happened, claims
from holdfast.demo.display import Display
from holdfast.demo.orders import Picture, todays_orders, welcome
from holdfast.demo.summary import print_summary
from holdfast.domain.errors import HoldfastError
from holdfast.store.embedded import installed_package

StartWorker = Callable[[Sequence[str], Path], "Popen[bytes]"]

_LEASE = "2s"
_KILL_AFTER = 100
_TURN_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


class _Stuck(HoldfastError):
    """The story got stuck; the message says where, and what the worker logged last."""


async def run_demo(console: Console, start_worker: StartWorker) -> int:
    """Run the demo. The exit code is 0 if all of its claims hold."""
    installed_package()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as folder:
        return await _Story(console, start_worker, Path(folder)).tell()


class _Story:
    def __init__(self, console: Console, start_worker: StartWorker, folder: Path) -> None:
        self._console = console
        self._start_worker = start_worker
        self._folder = folder
        self._store = f"embedded:{folder / 'postgres'}"
        self._log = folder / "workers.log"
        self._display = Display(console)
        self._processes: list[Popen[bytes]] = []
        app.settings = app.settings.model_copy(update={"store": self._store, "db_schema": "holdfast"})

    async def tell(self) -> int:
        started = time.monotonic()
        with self._display as display:
            display.say("Starting PostgreSQL in a temporary folder.")
            display.show(None, "PostgreSQL is starting …")
            async with app:
                try:
                    happened = await self._events()
                finally:
                    await self._end_processes()
                picture = await Picture.take(app)
                checked = await claims(app.opened.url, picture, happened)
        return 0 if print_summary(self._console, picture, checked, time.monotonic() - started) else 1

    async def _events(self) -> Happened:
        display = self._display
        first = self._start("worker 1")
        await self._create_ledger()
        orders = todays_orders(app)
        await app.enqueue_many(orders)
        welcomed, again = await app.enqueue_many([welcome(app)]), await app.enqueue_many([welcome(app)])
        total = len(orders) + 1
        display.say(
            f"Enqueued {total} jobs of {len({job.kind for job in orders})} kinds. Worker 1 is a separate process "
            f"(id {first.pid}); it runs 8 jobs at a time, each under a lease of {_LEASE}."
        )
        await self._until(lambda picture: picture.finished >= _KILL_AFTER and bool(picture.with_error("PROCESS_DIED")),
                          "worker 1 runs jobs; some attempts fail and are retried")  # fmt: skip
        first.kill()
        await asyncio.to_thread(first.wait)
        picture = await Picture.take(app)
        held = frozenset(job.id for job in picture.running)
        display.workers["worker 1"] = "killed"
        display.say(
            f"Worker 1 was killed with kill -9 while it held {len(held)} jobs. The database still shows them as "
            f"running. Starting worker 2.",
            "bold red",
        )
        second = self._start("worker 2")
        await self._until(
            lambda picture: bool(picture.rescued),
            f"worker 2 runs the other jobs; the leases on the {len(held)} lost jobs run out within {_LEASE}",
        )
        display.say("Worker 1's leases ran out. Worker 2 has rescued its jobs and runs them again.", "green")
        await self._until(lambda picture: picture.finished == total, "worker 2 finishes the remaining jobs")
        display.say("All jobs are finished. Asking worker 2 to stop (SIGTERM).")
        display.show(await Picture.take(app), "worker 2 is stopping")
        second.terminate()
        exit_code = await asyncio.to_thread(second.wait)
        return Happened(total, (welcomed[0].id, again[0].id), held, exit_code)

    def _start(self, name: str) -> "Popen[bytes]":
        options = ["--lease", _LEASE, "--poll", "200ms", "--concurrency", "8", "--shutdown", "5s"]
        arguments = ["--app", "holdfast.demo.app:app", "--store", self._store, "--log-level", "warning", *options]
        process = self._start_worker(arguments, self._log)
        self._processes.append(process)
        self._display.workers[name] = f"process {process.pid}"
        return process

    async def _create_ledger(self) -> None:
        connection = await asyncpg.connect(app.opened.url)
        try:
            await connection.execute(LEDGER)
        finally:
            await connection.close()

    async def _until(self, reached: Callable[[Picture], bool], meanwhile: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached(picture := await Picture.take(app)):
            self._display.show(picture, meanwhile)
            process = self._processes[-1]
            if process.poll() is not None:
                raise _Stuck(f"a worker exited unexpectedly with code {process.returncode}{self._last_words()}")
            if time.monotonic() > deadline:
                raise _Stuck(f"stuck for {_PATIENCE_SECONDS:.0f} s while {meanwhile}{self._last_words()}")
            await asyncio.sleep(_TURN_SECONDS)
        self._display.show(picture, meanwhile)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"; its last log line: {lines[-1]}" if lines else ""

    async def _end_processes(self) -> None:
        waiting: list[Awaitable[int]] = []
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                waiting.append(asyncio.to_thread(process.wait))
        await asyncio.gather(*waiting)
