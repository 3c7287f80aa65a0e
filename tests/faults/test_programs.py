"""Servers that a case starts itself: a failed start is reported and leaves nothing behind."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_lab.faults.programs import Program, ProgramFailed

PATIENCE = 60.0


def script(folder: Path, text: str) -> list[str | Path]:
    program = folder / "server"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return [program]


class Written:
    """A number that a program writes to a file. It is complete once its line has ended."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self) -> bool:
        return self.file.exists() and self.file.read_text().endswith("\n")

    @property
    def number(self) -> int:
        return int(self.file.read_text())


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, even if it has not been reaped yet."""
    try:
        os.kill(pid, 0)
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    except ProcessLookupError:
        return True


def test_a_server_runs_until_it_is_ended_and_can_be_started_again(tmp_path: Path) -> None:
    pid = Written(tmp_path / "pid")
    command = script(tmp_path, f"echo $$ > {pid.file}; exec sleep 600")
    program = Program(tmp_path, pid, PATIENCE)
    for _ in range(2):
        program.start(command)
        assert not is_gone(pid.number)
        program.end(signal.SIGTERM, signal.SIGKILL)
        assert is_gone(pid.number)
        pid.file.unlink()
    program.end(signal.SIGTERM)


def test_a_server_that_ends_without_answering_is_reported_with_its_output(tmp_path: Path) -> None:
    command = script(tmp_path, "echo no such port >&2; exit 3")
    with pytest.raises(ProgramFailed, match="server did not start: no such port"):
        Program(tmp_path, lambda: False, PATIENCE).start(command)


def test_a_server_that_does_not_answer_in_time_is_killed_with_its_children(tmp_path: Path) -> None:
    child = Written(tmp_path / "child")
    command = script(tmp_path, f"sleep 600 & echo $! > {child.file}; wait")
    program = Program(tmp_path, lambda: False, 1.0)
    while not child():
        with pytest.raises(ProgramFailed, match="server did not start"):
            program.start(command)
    until(lambda: is_gone(child.number))


def test_a_server_interrupted_during_its_start_is_killed(tmp_path: Path) -> None:
    pid = Written(tmp_path / "pid")

    def interrupted() -> bool:
        if pid():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        Program(tmp_path, interrupted, PATIENCE).start(script(tmp_path, f"echo $$ > {pid.file}; exec sleep 600"))
    until(lambda: is_gone(pid.number))


def test_a_server_ended_while_another_thread_starts_it_does_not_survive(tmp_path: Path) -> None:
    pid = Written(tmp_path / "pid")
    program = Program(tmp_path, lambda: False, PATIENCE)
    failed: list[ProgramFailed] = []

    def start() -> None:
        try:
            program.start(script(tmp_path, f"echo $$ > {pid.file}; exec sleep 600"))
        except ProgramFailed as error:
            failed.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    until(pid)
    program.end(signal.SIGKILL)
    starting.join(PATIENCE)
    assert (len(failed), is_gone(pid.number)) == (1, True)
