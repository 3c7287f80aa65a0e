"""Starts worker processes for commands that need them, and cleans up after a signal."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from holdfast.cli.errors import FAILED

Value = TypeVar("Value")


def run_to_end(work: Coroutine[Any, Any, Value]) -> Value:
    """Run `work`. A signal unwinds it like Ctrl-C does, so no server or temporary folder is left behind."""
    received: list[int] = []

    async def cancelable() -> Value:
        task = asyncio.create_task(work)

        def cancel(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)
        return await task

    try:
        return asyncio.run(cancelable())
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0] if received else FAILED) from None


def start_worker(arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start `holdfast worker …` in a new process whose settings come only from its arguments."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", "holdfast", "worker", *arguments]
    with log.open("ab") as output:
        # In a new session, so Ctrl-C in the terminal reaches only this process, which stops the worker.
        return subprocess.Popen(  # noqa: S603
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
