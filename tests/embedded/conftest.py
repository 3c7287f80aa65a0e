"""Folders for embedded servers. Each server is stopped when its test ends."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.embedded import EmbeddedServer, stop
from tests.embedded.users import (
    User,
    careless,
)


@pytest.fixture
def new_user() -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def start(url: str, *, run_as: int = 0, search: Path | None = None) -> User:
        users.append(User(url, run_as=run_as, search=search))
        return users[-1]

    yield start
    for user in users:
        user.kill()
        for pipe in (user.process.stdin, user.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "pg"
    yield folder
    stop(folder)
    # Each folder has forty megabytes, and pytest would keep the folders of all tests until the end.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "pg"
    EmbeddedServer.start(careless(folder)).close()
    return folder


@pytest.fixture
def made(folder: Path, template: Path) -> Path:
    """A folder with a database cluster, copied because that takes a tenth of the time of creating one."""
    subprocess.run(["cp", "-a", template, folder], check=True)
    return folder


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every system user may enter, unlike pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="hf", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for found in folder.glob("**/postmaster.pid"):
            stop(found.parent)
