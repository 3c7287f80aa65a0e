"""What a newcomer meets first: help, version, migrate."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.forking import Forking
from tests.databases import Database

COMMANDS = [
    (), ("demo",), ("worker",), ("enqueue",), ("jobs",), ("jobs", "list"), ("jobs", "show"), ("jobs", "wait"),
    ("jobs", "retry"), ("jobs", "cancel"), ("migrate",), ("declare",), ("doctor",), ("settings",), ("bench",),
    ("schedules",), ("schedules", "list"), ("schedules", "add"), ("schedules", "remove"), ("schedules", "pause"),
    ("schedules", "resume"), ("schedules", "run"), ("runs",), ("runs", "list"),
    ("subscriptions",), ("subscriptions", "list"), ("subscriptions", "add"), ("subscriptions", "remove"),
    ("rows",), ("rows", "check"), ("rows", "migration"),
]  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, forking: Forking) -> Cli:
    """Without a database: nothing here may need one."""
    return Cli(tmp_path, "postgresql://127.0.0.1:1/nowhere", forking)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: holdfast{''.join(f' {word}' for word in command)} ")
    assert all(len(line) <= 80 for line in done.out.splitlines())


@pytest.mark.parametrize("command", [(), ("jobs",), ("schedules",), ("runs",), ("subscriptions",), ("rows",)])
def test_a_command_that_needs_another_shows_the_choice(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command)
    assert done.code == 0
    assert "Commands:" in done.out


def test_the_version_is_the_package_s(cli: Cli) -> None:
    assert cli.run_from_nothing("--version").out == f"holdfast {version('holdfast')}\n"


def test_migrate_says_what_it_did_and_then_that_there_is_nothing_to_do(
    empty: Database, tmp_path: Path, forking: Forking
) -> None:
    cli = Cli(tmp_path, empty.url, forking)
    first, second = cli.run("migrate", "--schema", "Own jobs"), cli.run("migrate", "--schema", "Own jobs")
    assert first.out.startswith("applied 0001 tables\n")
    assert 'schema "Own jobs" is now at version' in first.out
    assert second.out.startswith('schema "Own jobs" is up to date')
    assert second.out.endswith(f" in {empty.url}\n")
    granted = cli.run("migrate", "--schema", "Own jobs", "--grant", "pg_monitor")
    assert 'granted to "pg_monitor" what workers and producers need\n' in granted.out
    as_json = json.loads(cli.run("migrate", "--json").out)
    assert (as_json["store"], as_json["schema"]) == (empty.url, "holdfast")
    assert as_json["applied"][0] == {"version": 1, "name": "tables"}
    assert as_json["version"] == as_json["applied"][-1]["version"]
