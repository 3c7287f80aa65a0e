"""`holdfast …` as real processes, with an app of tests/runtime/apps, against the test's database."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.worker.harness import PATIENCE, Database, eventually

ROOT = Path(__file__).parents[2]


class Command:
    """One process. Its stdout and stderr go to files, so it never blocks on a full pipe."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str], out: Path, log: Path) -> None:
        self._out = out
        self._log = log
        with out.open("wb") as stdout, log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def has_logged(self, text: str) -> None:
        eventually(lambda: text in self.log or not self.is_running, f"it logs {text!r}")
        assert text in self.log, self.log

    def exit_code(self, seconds: float = PATIENCE) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds:g} s:\n{self.log}") from None

    def end(self) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()


class Commands:
    """Starts commands, and kills those still running at the end."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._started: list[Command] = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment |= {
            "HOLDFAST_STORE": database.url,
            "HOLDFAST_TEST_URL": database.url,
            "HOLDFAST_TEST_FOLDER": str(folder),
        }

    def start(self, *arguments: str, **variables: str) -> Command:
        """`variables` are settings by name: poll="1h" becomes HOLDFAST_POLL."""
        number = len(self._started)
        settings = {f"HOLDFAST_{name.upper()}": value for name, value in variables.items()}
        out, log = self._folder / f"command-{number}.out", self._folder / f"command-{number}.log"
        command = Command(arguments, self.environment | settings, out, log)
        self._started.append(command)
        return command

    def end_all(self) -> None:
        for command in self._started:
            command.end()
