"""`holdfast rows`: checks and migrations of tables that serve as queues, for people and for scripts."""

import json

import psycopg
import pytest

from tests.cli.conftest import Cli
from tests.rows.tables import DELIVERIES_TABLE

MAPPINGS = """
from holdfast import Holdfast, Rows, RowStates

DISPATCH = Rows(
    name="dispatch",
    table="notification_deliveries",
    kind="push.send",
    states=RowStates(column="status", ready="pending", succeeded="sent", failed="failed"),
    attempt="attempt_count",
    run_at=("next_attempt_at", "created_at"),
    attempts=8,
)
app = Holdfast()
app.rows(DISPATCH)
empty = Holdfast()
number = 7
"""


@pytest.fixture
def mapped(cli: Cli) -> Cli:
    (cli.folder / "pushes.py").write_text(MAPPINGS, encoding="utf-8")
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(DELIVERIES_TABLE)
    return cli


def test_each_missing_part_is_one_line_and_the_printed_migration_adds_it(mapped: Cli) -> None:
    done = mapped.run("rows", "check", "--app", "pushes:DISPATCH")
    assert (done.code, done.err) == (1, "")
    assert [line.partition(" → ")[0] for line in done.out.splitlines()] == [
        "dispatch: column 'claim' (claim) is missing",
        "dispatch: column 'fence' (fence) is missing",
        "dispatch: column 'locked_until' (locked_until) is missing",
    ]
    printed = mapped.run("rows", "migration", "--app", "pushes:app")
    assert (printed.code, printed.err) == (0, "")
    assert '"fence" bigint' in printed.out
    assert '"attempt_count"' not in printed.out
    with psycopg.connect(mapped.url, autocommit=True) as connection:
        for statement in printed.out.split(";"):
            connection.execute(statement.encode())
    done = mapped.run("rows", "check", "--app", "pushes:app")
    assert (done.code, done.out, done.err) == (0, "dispatch: nothing is missing\n", "")


def test_programs_get_json(mapped: Cli) -> None:
    found = json.loads(mapped.run("rows", "check", "--app", "pushes:app", "--json").out)
    assert found["ok"] is False
    assert {"rows", "line", "next_step"} == set(found["findings"][0])
    (printed,) = json.loads(mapped.run("rows", "migration", "--app", "pushes:DISPATCH", "--json").out)
    assert printed["rows"] == "dispatch"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("pushes:empty", "has no mappings; register one with app.rows(mapping)"),
        ("pushes:number", "is a int; name a mapping (Rows) or an app"),
        ("pushes:nothing", "has no 'nothing'"),
        ("nowhere:app", "there is no module 'nowhere'"),
        ("pushes.py:", "names no app"),
    ],
)
def test_an_object_that_is_not_a_mapping_is_one_line(mapped: Cli, address: str, said: str) -> None:
    assert said in mapped.run("rows", "check", "--app", address).one_error_line()


def test_the_error_for_a_refused_mapping_names_its_line(mapped: Cli) -> None:
    (mapped.folder / "bad.py").write_text(
        'from holdfast import Rows\n\nX = Rows(name="x", table="t")\n', encoding="utf-8"
    )
    line = mapped.run("rows", "check", "--app", "bad:X").one_error_line()
    assert "rows 'x': give the kind of all rows" in line
    assert "bad.py, line 3" in line


def test_memory_has_no_tables(mapped: Cli) -> None:
    assert "memory:" in mapped.run("rows", "check", "--app", "pushes:app", "--store", "memory:").one_error_line()


@pytest.mark.parametrize("command", ["worker", "tick"])
def test_a_mapping_that_does_not_fit_ends_the_command_in_one_line(mapped: Cli, command: str) -> None:
    with (mapped.folder / "pushes.py").open("a", encoding="utf-8") as module:
        module.write('app.handler("push.send")(lambda job: None)\n')
    line = mapped.run(command, "--app", "pushes:app", "--log-level", "warning").one_error_line()
    assert "rows 'dispatch': column 'claim' (claim) is missing → run what `holdfast rows migration` prints" in line
    assert "2 more: run `holdfast rows check`" in line


def test_a_migration_that_cannot_make_the_table_fit_is_not_printed(mapped: Cli) -> None:
    with psycopg.connect(mapped.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE notification_deliveries RENAME COLUMN status TO state")
    line = mapped.run("rows", "migration", "--app", "pushes:app").one_error_line()
    assert "column 'status' (states) is missing → correct `states` in the mapping" in line
    with psycopg.connect(mapped.url, autocommit=True) as connection:
        connection.execute("DROP TABLE notification_deliveries")
    assert "there is no table" in mapped.run("rows", "migration", "--app", "pushes:app").one_error_line()
