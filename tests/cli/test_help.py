"""The first commands that a new user runs: help, version, migrate."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.forking import Forking
from tests.databases import Database

COMMANDS = [
    (), ("demo",), ("worker",), ("enqueue",), ("jobs",), ("jobs", "list"), ("jobs", "show"), ("jobs", "wait"),
    ("jobs", "retry"), ("jobs", "cancel"), ("jobs", "delete"),
    ("migrate",), ("declare",), ("doctor",), ("settings",), ("bench",),
    ("schedules",), ("schedules", "list"), ("schedules", "add"), ("schedules", "remove"), ("schedules", "pause"),
    ("schedules", "resume"), ("schedules", "run"), ("runs",), ("runs", "list"),
    ("subscriptions",), ("subscriptions", "list"), ("subscriptions", "add"), ("subscriptions", "remove"),
    ("rows",), ("rows", "check"), ("rows", "migration"),
]  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, forking: Forking) -> Cli:
    """Without a database: none of these commands may need one."""
    return Cli(tmp_path, "postgresql://127.0.0.1:1/nowhere", forking)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: holdfast{''.join(f' {word}' for word in command)} ")
    assert all(len(line) <= 80 for line in done.out.splitlines())


@pytest.mark.parametrize("command", [(), ("jobs",), ("schedules",), ("runs",), ("subscriptions",), ("rows",)])
def test_a_command_without_its_subcommand_lists_the_choices(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command)
    assert done.code == 0
    assert "Commands:" in done.out


def test_the_version_is_the_version_of_the_package(cli: Cli) -> None:
    assert cli.run_from_nothing("--version").out == f"holdfast {version('holdfast')}\n"


def test_migrate_reports_what_it_did_and_then_that_nothing_is_left_to_do(
    empty: Database, tmp_path: Path, forking: Forking
) -> None:
    cli = Cli(tmp_path, empty.url, forking)
    first, second = cli.run("migrate", "--schema", "Own jobs"), cli.run("migrate", "--schema", "Own jobs")
    assert first.out.startswith("applied 0001 tables\n")
    assert 'schema "Own jobs" is now at version' in first.out
    assert second.out.startswith('schema "Own jobs" is up to date')
    assert second.out.endswith(f" in {empty.url}\n")
    granted = cli.run("migrate", "--schema", "Own jobs", "--grant", "pg_monitor")
    assert 'granted "pg_monitor" the privileges of workers and producers\n' in granted.out
    as_json = json.loads(cli.run("migrate", "--json").out)
    assert (as_json["store"], as_json["schema"]) == (empty.url, "holdfast")
    assert as_json["applied"][0] == {"version": 1, "name": "tables"}
    assert as_json["version"] == as_json["applied"][-1]["version"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_started_with_closed_streams_does_its_work(closed: str) -> None:
    command = f"{sys.executable} -m holdfast settings --json {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
