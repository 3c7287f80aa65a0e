"""The processes of the demo: each with its own log, all on one temporary PostgreSQL, and stopped at the end."""

import asyncio
import base64
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from apps.passports.settings import Settings

_START_SECONDS, _WORK_SECONDS, _STOP_SECONDS = 60.0, 90.0, 20.0
# Other workers take over a killed worker's jobs when its leases run out. The default would make the demo a minute long.
LEASE_SECONDS = 4
_VARIABLES = {
    "BPC_DEVELOPMENT": "true",
    "BPC_JOBS_LEASE_SECONDS": str(LEASE_SECONDS),
    "BPC_JOBS_LEASE_RENEW_SECONDS": str(LEASE_SECONDS // 2),
    "BPC_JOBS_CONCURRENCY": "3",
}

Process = subprocess.Popen[str]


class Failed(Exception):
    """The demo did not complete; the message says why."""


def demo_environment(folder: Path) -> dict[str, str]:
    """Variables for the demo's processes, without those that the user has set for a real service."""
    ours = {name.upper() for name in Settings.model_fields}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("HOLDFAST_")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        **kept,
        **_VARIABLES,
        "BPC_DATABASE_URL": f"embedded:{folder}/postgres",
        "BPC_SIGNING_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "BPC_API_PORT": str(port),
    }


@asynccontextmanager
async def started(environment: dict[str, str], log: Path, *command: str, talks: bool = False) -> AsyncIterator[Process]:
    """Start a module of Python as a process. Leaving the block stops it. If it `talks`, `said` reads its lines."""
    with log.open("w") as errors:
        # In another process group, so Ctrl-C reaches only this process, which then stops the others.
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it takes no time
            [sys.executable, "-m", *command],
            env=environment, stdout=subprocess.PIPE if talks else errors, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(asyncio.to_thread(process.wait), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def said(process: Process, log: Path) -> str:
    """The next line that the process prints."""
    line = "" if process.stdout is None else await asyncio.to_thread(process.stdout.readline)
    if not line:
        raise Failed(_last_line(log))
    return line.strip()


@asynccontextmanager
async def started_api(environment: dict[str, str], log: Path) -> AsyncIterator[str]:
    """Start the API, wait until it is ready, and yield its address."""
    url = f"http://127.0.0.1:{environment['BPC_API_PORT']}"
    async with started(environment, log, "apps.passports", "api") as process, httpx.AsyncClient(base_url=url) as client:

        async def is_ready() -> bool:
            if process.poll() is not None:
                raise Failed(_last_line(log))
            try:
                return (await client.get("/v1/health/ready")).is_success
            except httpx.TransportError:
                return False

        await until(is_ready, "the API did not start", _START_SECONDS)
        yield url


async def until(is_so: Callable[[], Awaitable[bool]], otherwise: str, seconds: float = _WORK_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not await is_so():
        if time.monotonic() > end:
            raise Failed(f"{otherwise} within {seconds:.0f} s")
        await asyncio.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{log.stem} ended: {lines[-1] if lines else 'it said nothing'}"
