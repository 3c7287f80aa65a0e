"""Users of an embedded server, each in its own process, and functions to inspect the server."""

import asyncio
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from holdfast.store import embedded
from holdfast.store.embedded import EmbeddedAddress

IS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not IS_ROOT, reason="needs root, which PostgreSQL refuses to run as")

# A user of the server in its own process. It skips the rest of the package, which takes half a second to import. All
# imports come before it drops privileges, because Python itself may be in a folder that only root can enter.
USER = """
import os, sys, types
for name, folder in (("holdfast", sys.argv[3]), ("holdfast.store", sys.argv[3] + "/store")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from holdfast.store.embedded import EmbeddedAddress, EmbeddedError, EmbeddedServer
address, run_as = EmbeddedAddress.parse(sys.argv[1]), int(sys.argv[2])
if run_as:
    os.setgroups([]); os.setgid(run_as); os.setuid(run_as)
print("loaded", flush=True)
sys.stdin.readline()
try:
    server = EmbeddedServer.start(address)
except EmbeddedError as error:
    print("refused", error, flush=True)
    sys.exit(1)
print(server.url(), flush=True)
sys.stdin.readline()
server.close()
print("closed", flush=True)
"""


class User:
    def __init__(self, url: str, *, run_as: int = 0, search: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, url, str(run_as), str(Path(embedded.__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({"PYTHONPATH": str(search)} if search else {}),
            start_new_session=True,
        )

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def load(self) -> None:
        assert self.answer() == "loaded"

    def open(self) -> str:
        self.load()
        self.go_on()
        return self.answer()

    def close(self) -> None:
        self.go_on()
        assert self.answer() == "closed"
        assert self.process.wait(30) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def careless(folder: Path, version: int | None = None) -> EmbeddedAddress:
    return EmbeddedAddress(folder, version, durable=False)


def careless_url(folder: Path) -> str:
    return f"embedded:{quote(str(folder))}?durability=off"


def ask(url: str, sql: str) -> object:
    async def fetch() -> object:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            answer: object = await connection.fetchval(sql)
            return answer
        finally:
            await connection.close()

    return asyncio.run(fetch())


def postmaster(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().split()[0])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in 30 s"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Treat a zombie as gone too: some systems take a second, or forever, to reap a dead process."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return sys.platform == "linux"


def assert_down(folder: Path, pid: int) -> None:
    """Assert that no process of the server is left: neither the first one nor any that inherited its lock."""
    wait_until(lambda: is_gone(pid))
    assert not (folder / "postmaster.pid").exists()
    with (folder / "holdfast.server").open("rb") as server:
        fcntl.flock(server, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_used(folder: Path) -> bool:
    with (folder / "holdfast.users").open("rb") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def plain_user_and_wheel(public_folder: Path) -> tuple[int, Path | None]:
    """Return the user ID to run as, and the folder with the wheel if that user cannot read the installed one."""
    if not IS_ROOT:
        return 0, None
    nobody = pwd.getpwnam("nobody")
    package = embedded.installed_package()
    if embedded._can_enter(nobody, package / "pginstall18" / "bin" / "postgres"):
        return nobody.pw_uid, None
    for part in package.parent.glob(f"{package.name}*"):
        shutil.copytree(part, public_folder / "wheel" / part.name)
    return nobody.pw_uid, public_folder / "wheel"
