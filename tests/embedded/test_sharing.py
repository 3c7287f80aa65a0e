"""Several processes share one server, and none of them can break it for the others."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer, stop
from tests.embedded.users import (
    IS_ROOT,
    User,
    ask,
    assert_down,
    careless,
    careless_url,
    is_gone,
    is_used,
    postmaster,
    wait_until,
)

pytestmark = pytest.mark.postgres


@pytest.mark.fault
def test_eight_processes_racing_for_a_fresh_folder_get_one_server(folder: Path, new_user: Callable[..., User]) -> None:
    users = [new_user(careless_url(folder)) for _ in range(8)]
    for user in users:
        user.load()
    for user in users:
        user.go_on()
    urls = {user.answer() for user in users}
    assert len(urls) == 1
    assert ask(urls.pop(), "select 1") == 1
    assert (folder / "log").read_text().count("starting PostgreSQL") == 1
    pid = postmaster(folder)
    for user in users[1:]:
        user.close()
    assert not is_gone(pid)
    users[0].close()
    assert_down(folder, pid)


@pytest.mark.fault
def test_a_killed_user_does_not_stop_the_server_for_the_others(made: Path, new_user: Callable[..., User]) -> None:
    starter, other = new_user(careless_url(made)), new_user(careless_url(made))
    starter.open()
    url = other.open()
    pid = postmaster(made)
    starter.kill()
    assert ask(url, "select 1") == 1
    assert postmaster(made) == pid
    other.close()
    assert_down(made, pid)


@pytest.mark.fault
def test_after_all_users_were_killed_the_next_one_finds_the_same_server_and_its_data(
    made: Path, new_user: Callable[..., User]
) -> None:
    users = [new_user(careless_url(made)) for _ in range(2)]
    urls = [user.open() for user in users]
    ask(urls[0], "create table kept as select 42 as answer")
    pid = postmaster(made)
    for user in users:
        user.kill()
    assert not is_used(made)
    with EmbeddedServer.start(careless(made)) as server:
        assert postmaster(made) == pid
        assert ask(server.url(), "select answer from kept") == 42
    assert_down(made, pid)


@pytest.mark.fault
def test_a_killed_postmaster_is_replaced_and_committed_data_is_kept(made: Path) -> None:
    with EmbeddedServer.start(EmbeddedAddress(made)) as first:
        ask(first.url(), "create table kept as select 42 as answer")
        pid = postmaster(made)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid))
        with EmbeddedServer.start(EmbeddedAddress(made)) as second:
            assert postmaster(made) != pid
            assert second.url() == first.url()
            assert ask(first.url(), "select answer from kept") == 42
        pid = postmaster(made)
    assert_down(made, pid)


@pytest.mark.fault
def test_ctrl_c_in_the_terminal_of_the_first_user_does_not_reach_the_server(
    made: Path, new_user: Callable[..., User]
) -> None:
    starter = new_user(careless_url(made))
    url = starter.open()
    pid = postmaster(made)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if starter.process.poll() is None:
            os.killpg(starter.process.pid, number)
    starter.process.wait(30)
    assert os.getsid(pid) != starter.process.pid
    assert ask(url, "select 1") == 1
    assert postmaster(made) == pid


@pytest.mark.fault
def test_a_user_killed_while_creating_the_cluster_leaves_no_obstacle(
    folder: Path, new_user: Callable[..., User]
) -> None:
    starter = new_user(careless_url(folder))
    starter.load()
    starter.go_on()
    wait_until(lambda: (folder / "holdfast.building" / "PG_VERSION").exists())
    starter.kill()
    assert not (folder / "PG_VERSION").exists()
    with EmbeddedServer.start(careless(folder)) as server:
        assert ask(server.url(), "select 1") == 1
    assert not (folder / "holdfast.building").exists()


@pytest.mark.fault
def test_a_cluster_whose_last_step_was_interrupted_is_completed(folder: Path) -> None:
    EmbeddedServer.start(careless(folder, 16)).close()
    built = folder / "holdfast.built"
    built.mkdir()
    shutil.chown(built, folder.stat().st_uid)
    for name in ("base", "postgresql.conf", "PG_VERSION"):
        (folder / name).rename(built / name)
    with EmbeddedServer.start(careless(folder)) as server:
        assert str(ask(server.url(), "show server_version")).startswith("16.")
    assert not built.exists()


@pytest.mark.fault
def test_a_stale_pid_file_with_the_pid_of_another_process_is_no_obstacle(made: Path) -> None:
    server = EmbeddedServer.start(careless(made))
    text = (made / "postmaster.pid").read_text()
    pid = text.split()[0]
    server.close()
    owner = made.stat().st_uid
    with subprocess.Popen(["sleep", "60"], user=owner if IS_ROOT else None) as living:
        (made / "postmaster.pid").write_text(text.replace(pid, str(living.pid), 1))
        with EmbeddedServer.start(careless(made)) as server:
            assert ask(server.url(), "select 1") == 1
        assert living.poll() is None
        living.kill()


def test_several_uses_in_one_process_share_the_server_until_the_last_is_closed(made: Path) -> None:
    servers = [EmbeddedServer.start(careless(made)) for _ in range(3)]
    pid = postmaster(made)
    for server in servers[:2]:
        server.close()
        server.close()
        assert ask(servers[2].url(), "select 1") == 1
    servers[2].close()
    assert_down(made, pid)


def test_stop_ends_the_server_even_while_it_is_in_use(made: Path) -> None:
    with EmbeddedServer.start(careless(made)) as server:
        pid = postmaster(made)
        assert stop(made)
        assert_down(made, pid)
        assert not stop(made)
        with pytest.raises(OSError, match=r"."):
            ask(server.url(), "select 1")
    assert not stop(made / "nowhere")
    assert not (made / "nowhere").exists()


@pytest.mark.fault
def test_closing_a_server_whose_folder_was_recreated_leaves_the_new_one_alone(made: Path) -> None:
    first = EmbeddedServer.start(careless(made))
    pid = postmaster(made)
    shutil.rmtree(made)
    with EmbeddedServer.start(careless(made)) as second:
        first.close()
        assert ask(second.url(), "select 1") == 1
    with contextlib.suppress(ProcessLookupError):  # it may already have noticed that its files are gone
        os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: is_gone(pid))
