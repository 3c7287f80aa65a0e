"""Servers of others that a case starts for itself, in a folder of its own and on a free port."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.domain.errors import HoldfastError

_TURN_SECONDS = 0.02
_SHOWN = 2000


class ProgramFailed(HoldfastError):
    """It did not start."""


class Program:
    """Every call blocks until it is done. `end` may come from another thread while `start` waits, which fails then."""

    def __init__(self, folder: Path, answers: Callable[[], bool], seconds: float) -> None:
        """`answers`: whether it has started, which may take that many seconds."""
        self._output = folder / "output"
        self._answers = answers
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        # Nobody looks for the process between its beginning and the note that it is there.
        self._beginning = threading.Lock()

    def start(self, command: list[str | Path], **how: Any) -> None:  # noqa: ANN401
        """In a session of its own, so that it ends when it is told to, and not by Ctrl-C."""
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
        """By the first of these that it obeys in time. Some are scripts with the server beside them: both get it."""
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
