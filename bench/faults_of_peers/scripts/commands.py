"""The commands of every peer's script, and the handlers under test, which are the same for all peers.

    install | produce | work

`produce` reads orders line by line and answers each one. This module needs only the standard library, because it runs
in the peer's interpreter; for the same reason it loads the recorder's client from its file."""

import asyncio
import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

WORK, THREAD = "work", "thread"
"""An async handler, and one that works in a thread, in the way that the peer offers for blocking code."""
SLOTS = 8
"""Concurrent jobs per worker, as in Holdfast's laboratory."""
LEASE_SECONDS = float(os.environ.get("FAULTS_LEASE", "3"))

Job = dict[str, Any]


class Script(Protocol):
    async def install(self) -> None: ...

    async def open(self) -> None:
        """Get ready to produce."""

    async def close(self) -> None: ...

    async def enqueue(self, kind: str, jobs: list[Job]) -> list[Any]:
        """Enqueue all jobs in one call. Returns the ids that the peer gave them."""

    async def work(self) -> None:
        """Run one worker until it is told to stop."""


def url() -> str:
    return os.environ["BENCH_URL"]


def _recorder_client() -> Any:  # noqa: ANN401
    """Load holdfast_lab.faults.record without importing Holdfast."""
    name = "faults_record"
    path = Path(__file__).parents[3] / "lab" / "src" / "holdfast_lab" / "faults" / "record.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look up their module here.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_client: Any = _recorder_client()
_record: Any = _client.Record.of_environment() if os.environ.get("FAULTS_RECORD") else None


@contextmanager
def attempt(job: Job, peers_id: object) -> Iterator[None]:
    """Note one attempt under a unique token. The reader of the notes numbers the attempts in order."""
    token = uuid.uuid4().hex
    identity = uuid.UUID(job["job"])
    _record.note(_client.What.START, identity, token=token, id=str(peers_id), how=job["how"])
    try:
        yield
        _record.note(_client.What.EFFECT, identity, token=token)
    except BaseException as error:
        _record.note(_client.What.END, identity, token=token, how=type(error).__name__)
        raise
    _record.note(_client.What.END, identity, token=token, how=_client.DONE)


async def handle(job: Job, peers_id: object) -> None:
    with attempt(job, peers_id):
        if job["how"] == "wait":
            await asyncio.sleep(job["seconds"])
        else:
            _block(job)


def handle_in_thread(job: Job, peers_id: object) -> None:
    with attempt(job, peers_id):
        _block(job)


def _block(job: Job) -> None:
    if job["how"] == "spin":
        until = time.monotonic() + job["seconds"]
        while time.monotonic() < until:
            sum(range(1000))
    else:
        time.sleep(job["seconds"])


def answer(script: Script) -> None:
    (command,) = sys.argv[1:]
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "install": script.install,
        "produce": lambda: _produce(script),
        "work": lambda: _work(script),
    }
    asyncio.run(_awaited(steps[command]()))


async def _awaited(step: Awaitable[None]) -> None:
    await step


async def _work(script: Script) -> None:
    print("worker started", flush=True)
    await script.work()


async def _produce(script: Script) -> None:
    is_open = False
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        reply: dict[str, Any]
        try:
            if not is_open:
                await script.open()
                is_open = True
            reply = {"ids": [str(each) for each in await script.enqueue(order["kind"], order["jobs"])]}
        except Exception as error:  # noqa: BLE001 - no error of the peer's driver says whether the jobs exist
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
            is_open = False
            await _closed(script)
        print(json.dumps(reply), flush=True)


async def _closed(script: Script) -> None:
    try:
        await asyncio.wait_for(script.close(), 5)
    except Exception as error:  # noqa: BLE001 - a broken connection may fail to close
        print(f"closing: {error!r}", file=sys.stderr, flush=True)
