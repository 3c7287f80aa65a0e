"""Third-party servers that a case starts for itself, each in its own folder and on a free port."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.domain.errors import HoldfastError

_TURN_SECONDS = 0.02
_SHOWN = 2000


class ProgramFailed(HoldfastError):
    """The program did not start."""


class Program:
    """Every call blocks until it is done. Another thread may call `end` while `start` waits; `start` then fails."""

    def __init__(self, folder: Path, answers: Callable[[], bool], seconds: float) -> None:
        """`answers` says whether the program has started. It has `seconds` to do so."""
        self._output = folder / "output"
        self._answers = answers
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        # Held while the process is created, so that `end` cannot miss a process that is not stored yet.
        self._beginning = threading.Lock()

    def start(self, command: Sequence[str | Path], **how: Any) -> None:  # noqa: ANN401
        """Start in a new session, so that only `end` stops it, and not Ctrl-C."""
        with self._beginning, self._output.open("ab") as output:
            process = self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **how,
            )
        try:
            self._wait(process)
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + self._seconds
        while not self._answers():
            if process.poll() is not None or time.monotonic() > end:
                said = self._output.read_text(errors="replace")[-_SHOWN:]
                raise ProgramFailed(f"{Path(str(process.args[0])).name} did not start: {said}")  # type: ignore[index]
            time.sleep(_TURN_SECONDS)

    def end(self, *signals: signal.Signals) -> None:
        """Send these signals in turn until one works in time, to the whole group: some servers run under a script."""
        with self._beginning:
            process, self._process = self._process, None
        if process is None:
            return
        for number in signals:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._seconds)
                return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether a program accepts connections on this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
