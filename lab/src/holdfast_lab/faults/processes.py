"""Real `holdfast worker` processes, and the faults done to them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.settings import variable
from holdfast_lab.faults.record import Record, What


class FaultyProcess:
    """A process to kill, stop and continue. Each of these goes into the record, where it excuses what follows."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, record: Record) -> None:
        self._process = process
        self._record = record
        self.log = log
        self.is_stopped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    async def kill(self) -> None:
        """Send SIGKILL to the process and its children. Noted after its death, so its own last notes come first."""
        self._signal(signal.SIGKILL, is_group=True)
        await asyncio.to_thread(self._process.wait)
        self._record.note(What.KILL, pid=self.pid)

    def stop(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.is_stopped = True
        self._record.note(What.CUT_OFF, pid=self.pid)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_stopped = False
        self._record.note(What.BACK, pid=self.pid)

    async def stop_for(self, seconds: float) -> None:
        self.stop()
        await asyncio.sleep(seconds)
        self.go_on()

    def terminate(self) -> None:
        """Send SIGTERM to ask for an orderly shutdown."""
        self._signal(signal.SIGTERM)
        self._record.note(What.TERMINATE, pid=self.pid)

    async def ended(self, seconds: float) -> float | None:
        """How long it took to end, or None if it did not end in time."""
        started = time.monotonic()
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - started

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _signal(self, number: signal.Signals, *, is_group: bool = False) -> None:
        if self.is_alive:
            (os.killpg if is_group else os.kill)(self.pid, number)


def start_process(
    module: Sequence[str], log: Path, record: Record, settings: Mapping[str, str], given: Mapping[str, str]
) -> FaultyProcess:
    """Start a Python module in a new session, with only these Holdfast settings, and `given` as it is."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {variable(name): value for name, value in settings.items()} | dict(given)
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", *module],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return FaultyProcess(process, log, record)
