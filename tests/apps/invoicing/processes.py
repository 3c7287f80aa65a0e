"""The service, run as real processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.invoicing.settings import Settings
from tests.apps.invoicing.patience import PATIENCE

ROOT = Path(__file__).parents[3]


def environment(**variables: object) -> dict[str, str]:
    """The environment of a process with only `variables` set; their names are given in lowercase."""
    known = {name.upper() for name in Settings.model_fields}
    usual = {
        name: value for name, value in os.environ.items() if name not in known and not name.startswith("HOLDFAST_")
    }
    return {**usual, **{name.upper(): str(value) for name, value in variables.items()}}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "apps.invoicing", *arguments]


async def finished(*arguments: str, **variables: object) -> "subprocess.CompletedProcess[str]":
    """Run a process that ends on its own."""
    return await asyncio.to_thread(
        subprocess.run,
        command(*arguments),
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def started(log: Path, *arguments: str, **variables: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a process; kill it at the end of the block if it is still running."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(*arguments), env=environment(**variables), cwd=ROOT, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def stopped(process: "subprocess.Popen[bytes]") -> int:
    """Send SIGTERM and return the exit code."""
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, PATIENCE)
