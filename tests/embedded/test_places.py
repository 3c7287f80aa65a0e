"""Versions, system users, folders, sockets and durability."""

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.store import embedded
from holdfast.store.embedded import EmbeddedAddress, EmbeddedError, EmbeddedServer
from tests.embedded.users import (
    IS_ROOT,
    User,
    ask,
    assert_down,
    careless,
    careless_url,
    only_root,
    plain_user_and_wheel,
    postmaster,
)

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("version", [16, 18])
def test_each_version_can_be_chosen_and_is_kept(folder: Path, version: int) -> None:
    with EmbeddedServer.start(careless(folder, version)) as server:
        assert str(ask(server.url(), "show server_version")).startswith(f"{version}.")
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("select current_user").fetchone() == ("postgres",)
    with EmbeddedServer.start(careless(folder)) as server:
        assert str(ask(server.url(), "show server_version")).startswith(f"{version}.")


def test_a_plain_user_runs_it_in_their_own_folder(public_folder: Path, new_user: Callable[..., User]) -> None:
    run_as, wheel = plain_user_and_wheel(public_folder)
    folder = public_folder / "own" / "pg"
    folder.parent.mkdir()
    uid = run_as or os.geteuid()
    os.chown(folder.parent, uid, -1)
    users = [new_user(careless_url(folder), run_as=run_as, search=wheel) for _ in range(2)]
    urls = [user.open() for user in users]
    assert ask(urls[1], "select 1") == 1
    assert urls[0] == urls[1]
    pid = postmaster(folder)
    assert Path(f"/proc/{pid}").stat().st_uid == folder.stat().st_uid == uid
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if IS_ROOT:
        with EmbeddedServer.start(careless(folder)) as server:
            assert ask(server.url(), "select 1") == 1
        assert postmaster(folder) == pid
    for user in users:
        user.close()
    assert_down(folder, pid)


@only_root
def test_root_runs_the_server_as_another_user_without_opening_a_folder_to_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    folder = closed / "inside" / "pg"
    modes = {path: path.stat().st_mode for path in closed.parents}
    with EmbeddedServer.start(EmbeddedAddress(folder)) as server:
        ask(server.url(), "create table kept as select 42 as answer")
        ask(server.url(), "checkpoint")
        pid = postmaster(folder)
        assert Path(f"/proc/{pid}").stat().st_uid == folder.stat().st_uid != 0
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGKILL)
    with EmbeddedServer.start(EmbeddedAddress(folder)) as server:
        assert ask(server.url(), "select answer from kept") == 42
    assert {path: path.stat().st_mode for path in closed.parents} == modes
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert closed.stat().st_uid == 0


@only_root
def test_root_runs_the_server_in_a_folder_that_others_may_enter(public_folder: Path) -> None:
    with EmbeddedServer.start(careless(public_folder / "pg")) as server:
        assert ask(server.url(), "show data_directory") == str(public_folder / "pg")


@only_root
def test_a_wheel_in_a_folder_closed_to_the_servers_user_is_copied_once(
    folder: Path, tmp_path: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = embedded.installed_package()
    for part in package.parent.glob(f"{package.name}*"):
        shutil.copytree(part, tmp_path / "closed" / part.name, ignore=shutil.ignore_patterns("include", "pginstall"))
    (tmp_path / "closed").chmod(0o700)
    monkeypatch.setattr(embedded, "installed_package", lambda: tmp_path / "closed" / package.name)
    monkeypatch.setattr(embedded, "_COPIES", public_folder / "copies")
    for _ in range(2):
        with EmbeddedServer.start(careless(folder)) as server:
            assert ask(server.url(), "select 1") == 1
            program = Path(f"/proc/{postmaster(folder)}/exe").readlink()
            assert program.is_relative_to(public_folder / "copies")
    assert len(list((public_folder / "copies").iterdir())) == 1
    assert stat.S_IMODE((tmp_path / "closed").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["with a space, a comma and an ü%?#'", "long" * 30])
def test_a_path_unfit_for_a_socket_gets_a_private_socket_folder(made: Path, name: str) -> None:
    folder = made.rename(made.with_name(name))
    address = EmbeddedAddress.parse(careless_url(folder))
    assert address.folder == folder
    with EmbeddedServer.start(address) as server:
        assert ask(server.url(), "select 1") == 1
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        place = Path((folder / "postmaster.pid").read_text().splitlines()[4])
        assert len(str(place / ".s.PGSQL.5432")) < 60
        assert place.stat().st_uid == folder.stat().st_uid
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert not place.exists()


def test_the_server_is_durable_and_private_by_default(folder: Path) -> None:
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "",
        "max_connections": "200",
        "shared_buffers": "128MB",
        "jit": "off",
        "TimeZone": "UTC",
        "server_encoding": "UTF8",
    }
    with EmbeddedServer.start(EmbeddedAddress(folder)) as server:
        assert {name: ask(server.url(), f"show {name}") for name in expected} == expected
        ask(server.url(), 'create database "a/b c"')
        assert ask(server.url("a/b c"), "select current_database()") == "a/b c"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_durable_user_never_gets_a_server_without_durability(made: Path) -> None:
    first = EmbeddedServer.start(careless(made))
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert ask(first.url(), f"show {name}") == "off"
    with pytest.raises(EmbeddedError, match="is in use with durability=off"):
        EmbeddedServer.start(EmbeddedAddress(made))
    assert ask(first.url(), "select 1") == 1
    # Simulate a kill: the server keeps running without users.
    users, first._users = first._users, None
    assert users is not None
    users.close()
    with EmbeddedServer.start(EmbeddedAddress(made)) as second:
        assert ask(second.url(), "show fsync") == "on"
        with EmbeddedServer.start(careless(made)) as third:
            assert ask(third.url(), "show fsync") == "on"
