"""The guard kills the leftover processes of a worker's handlers, even after the guard itself was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.harness import eventually, is_alive

_WORKER = """
import os, signal, subprocess, sys, time
from holdfast.worker.guard import Guard

guard = Guard()

def group():
    program = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    guard.watch(program.pid)
    return program.pid

def guards():
    listed = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    return [int(pid) for pid in listed if "guard_program" in open(f"/proc/{pid}/cmdline").read()]

case = sys.argv[1]
watched, left = [group()], []
if case == "guard killed":
    while not guards():
        time.sleep(0.01)
    (program,) = guards()
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
watched.append(group())
left.append(group())
guard.forget(left[0])
if case == "worker forked":
    left.append(os.fork())
    if not left[-1]:
        time.sleep(600)
if case == "guard closed":
    guard.close()
    assert not guards()
print(*watched, *left, flush=True)
if case != "guard closed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.fault
@pytest.mark.parametrize("case", ["worker killed", "guard killed", "worker forked", "guard closed"])
def test_watched_process_groups_end_with_their_worker_but_unwatched_ones_do_not(case: str, tmp_path: Path) -> None:
    output = tmp_path / "pids"
    with output.open("wb") as pids:
        code = subprocess.run([sys.executable, "-c", _WORKER, case], stdout=pids, check=False).returncode
    first, second, *left = map(int, output.read_text().split())
    assert code == (0 if case == "guard closed" else -signal.SIGKILL)
    assert left
    try:
        eventually(lambda: not is_alive(first) and not is_alive(second), "the watched groups are dead")
        assert all(map(is_alive, left))
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
