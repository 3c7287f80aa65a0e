"""A signal that arrives before `holdfast worker` or `holdfast tick` has imported its own code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.harness import eventually

PROGRAMS = ([str(Path(sys.executable).with_name("holdfast"))], [sys.executable, "-m", "holdfast"])
# Stands in for the first slow import of the command line.
_SLOW = "import pathlib, time\npathlib.Path({!r}).touch()\ntime.sleep(60)\n"


def _ended_while_importing(folder: Path, command: list[str], number: signal.Signals) -> int:
    is_importing = folder / "is_importing"
    (folder / "typer.py").write_text(_SLOW.format(str(is_importing)), encoding="utf-8")
    with subprocess.Popen(command, cwd=folder, env={"PYTHONPATH": str(folder)}) as process:
        try:
            eventually(is_importing.exists, "the command imports its code")
            process.send_signal(number)
            return process.wait(10)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("command", ["worker", "tick"])
@pytest.mark.parametrize("program", PROGRAMS, ids=["holdfast", "module"])
def test_a_signal_during_the_imports_ends_it_with_exit_code_0(
    tmp_path: Path, program: list[str], command: str, number: signal.Signals
) -> None:
    assert _ended_while_importing(tmp_path, [*program, command, "--app", "shop"], number) == 0


def test_a_signal_to_another_command_is_not_reported_as_success(tmp_path: Path) -> None:
    command = [*PROGRAMS[1], "enqueue", "worker"]
    assert _ended_while_importing(tmp_path, command, signal.SIGTERM) == -signal.SIGTERM
