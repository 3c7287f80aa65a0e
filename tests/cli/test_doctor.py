"""`holdfast doctor` as a command: its output, and the exit code that scripts use."""

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.cli.forking import Forking
from tests.databases import Database


def test_a_server_that_can_lose_jobs_is_a_failure_unless_that_is_allowed(cli: Cli) -> None:
    """The tests' servers run without fsync."""
    done = cli.run("doctor")
    assert (done.code, done.err) == (1, "")
    (line,) = [line for line in done.out.splitlines() if line.split()[:2] == ["problem", "durability"]]
    assert "fsync" in line
    assert "--allow-unsafe" in done.out
    allowed = cli.run("doctor", "--allow-unsafe")
    assert allowed.code == 0
    assert [line for line in allowed.out.splitlines() if line.split()[:2] == ["warning", "durability"]]


def test_an_embedded_store_opened_without_durability_is_reported(cli: Cli, tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'unsafe'}?durability=off"
    cli.run("migrate", "--store", store)
    done = cli.run("doctor", "--json", "--store", store)
    assert done.code == 1
    (finding,) = [each for each in json.loads(done.out)["findings"] if each["check"] == "durability"]
    assert finding["level"] == "problem"
    assert "durability=off" in finding["next_step"]


def test_warnings_alone_fail_only_on_request(cli: Cli) -> None:
    done = cli.run("doctor", "--allow-unsafe")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].endswith(" 1 warning")
    assert cli.run("doctor", "--allow-unsafe", "--strict").code == 1


def test_a_problem_is_a_failure_with_its_next_step(cli: Cli) -> None:
    cli.enqueue("greet", '{"name": "Ann"}')
    cli.rows("UPDATE holdfast.clock SET moved = '1 hour' RETURNING moved")
    done = cli.run("doctor", "--deep")
    assert done.code == 1
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "problem clock the store's clock is moved 1h ahead: jobs and leases follow it" in lines
    assert any(line.startswith("→ only tests move it.") for line in lines)


def test_programs_get_json(cli: Cli) -> None:
    done = cli.run("doctor", "--json", "--allow-unsafe")
    report = json.loads(done.out)
    assert done.code == 0
    assert report["ok"] is True
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert findings["schema"]["level"] == "ok"
    assert findings["schema"]["next_step"] is None
    assert findings["durability"]["level"] == "warning"
    assert json.loads(cli.run("doctor", "--json", "--allow-unsafe", "--strict").out)["ok"] is False


def test_a_missing_schema_is_a_finding_and_not_an_error(empty: Database, tmp_path: Path, forking: Forking) -> None:
    cli = Cli(tmp_path, empty.url, forking)
    done = cli.run("doctor")
    assert (done.code, done.err) == (1, "")
    assert '"holdfast" is missing' in done.out
    assert "run `holdfast migrate`" in done.out
    assert cli.rows("SELECT nspname FROM pg_namespace WHERE nspname = 'holdfast'") == []


def test_a_database_that_cannot_be_reached_is_one_line(cli: Cli) -> None:
    done = cli.run("doctor", "--store", "postgresql://127.0.0.1:1/shop")
    assert "PostgreSQL is not available" in done.one_error_line()
    assert done.code == 1


def test_memory_has_nothing_to_examine(cli: Cli) -> None:
    done = cli.run("doctor", "--store", "memory:")
    assert "there is nothing to examine" in done.one_error_line()
    assert done.code == 2


def test_text_from_a_job_cannot_control_the_terminal(cli: Cli) -> None:
    cli.rows("SELECT id FROM holdfast.enqueue('[red]greet', '{}')")
    cli.rows(
        "UPDATE holdfast.ready SET run_at = run_at - interval '1 hour', kind = E'[red]greet\\x1b[31m' RETURNING id"
    )
    out = cli.run("doctor").out
    assert "[red]greet" in out
    assert "\x1b" not in out
