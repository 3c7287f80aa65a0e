"""Commands as processes forked from one that has already imported everything.

`python -m tests.cli.forking` reads one request per line and answers with the exit code. Importing takes most of a
second, so starting a hundred commands from scratch would take a minute longer.
"""

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_IMPORTED = ("holdfast.cli.load_app", "holdfast.app", "rich.table", "rich.text", "rich.padding", "rich.console")
_ROOT = Path(__file__).parents[2]


class Forking:
    """The tests' end of the connection: start it once, then call `run` as often as needed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forking"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: bytes) -> int:
        """Return the exit code; the output of the command is in `folder`, in the files .out and .err."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        (folder / ".in").write_bytes(stdin)
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=30)


def _serve() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    # Otherwise each command, when it exits, would scan all imported objects and copy their pages.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_the_command(request["arguments"], Path(request["folder"]), request["environment"])
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _be_the_command(arguments: list[str], folder: Path, environment: dict[str, str]) -> NoReturn:
    from holdfast.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["holdfast", *arguments]
    for number, name in enumerate((".in", ".out", ".err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file = os.open(name, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    # Open new streams: the old standard input has read ahead and may contain the next request.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    main()
    raise AssertionError("main returned")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve()
