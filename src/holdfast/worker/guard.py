"""Cleans up what handlers' processes leave behind when their worker dies in any way.

The kernel kills the processes themselves (processes.py), but not programs that they started. A small program in its own
session knows the process groups and kills them once the worker is gone. While the worker is alive, it does this itself.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

_PROGRAM = Path(__file__).with_name("guard_program.py")
_END_SECONDS = 5.0


class Guard:
    """Starts the program with the first group, and again with the next group if it was killed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._program: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            if self._program is None or not self._told(f"{group}\n"):
                self._end_program()
                self._start()

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._told(f"-{group}\n")

    def close(self) -> None:
        with self._lock:
            self._end_program()

    def _start(self) -> None:
        # Without site packages or application modules, it takes only ten milliseconds and a few megabytes.
        self._program = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        self._told("".join(f"{group}\n" for group in self._groups))

    def _told(self, lines: str) -> bool:
        """Send lines to the program. Returns False if it is gone, for example because it was killed."""
        if self._program is None or self._program.stdin is None:
            return False
        try:
            self._program.stdin.write(lines.encode())
        except OSError:
            return False
        return True

    def _end_program(self) -> None:
        """Close the program's input, which makes it end by itself."""
        if self._program is None or self._program.stdin is None:
            return
        with contextlib.suppress(OSError):
            self._program.stdin.close()
        try:
            self._program.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        self._program = None
