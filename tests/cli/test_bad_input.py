"""Every mistake of a caller is reported in one line and leaves nothing in the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.forking import Forking
from tests.databases import Database, Servers

NEW_APP = "from holdfast import Holdfast\napp = Holdfast()\n"
ENQUEUE = ("enqueue", "--app", "shop", "greet", '{"name": "Ann"}')

REFUSED = {
    "not JSON": (("enqueue", "--app", "shop", "greet", "{name: Ann}"), "payload: not JSON"),
    "NaN": (("enqueue", "--app", "shop", "other", '{"share": NaN}'), "payload: cannot be written as JSON"),
    "NUL": (("enqueue", "--app", "shop", "greet", '{"name": "a\\u0000b"}'), "payload: contains a NUL character"),
    "lone surrogate": (
        ("enqueue", "--app", "shop", "greet", '{"name": "\\ud800"}'),
        "payload: contains a lone surrogate",
    ),
    "wrong type": (("enqueue", "--app", "shop", "greet", '{"name": 5}'), "payload of 'greet': name:"),
    "10 MB": (("enqueue", "--app", "shop", "greet", "@large.json"), "over the limit"),
    "missing payload file": (
        ("enqueue", "--app", "shop", "greet", "@nowhere.json"),
        "payload: cannot read 'nowhere.json'",
    ),
    "not UTF-8": (("enqueue", "--app", "shop", "greet", "@binary.json"), "payload: is not UTF-8"),
    "negative delay": ((*ENQUEUE, "--delay", "-5m"), "delay: '-5m'"),
    "delay without a unit": ((*ENQUEUE, "--delay", "5"), "delay: '5' is not a duration"),
    "naive time": ((*ENQUEUE, "--run-at", "2030-01-31T08:00:00"), "has no time zone; add Z"),
    "no time": ((*ENQUEUE, "--run-at", "tomorrow"), "run-at: 'tomorrow' is not a time"),
    "delay and time": ((*ENQUEUE, "--delay", "5m", "--run-at", "2030-01-31T08:00:00Z"), "give a delay or a run_at"),
    "empty queue": ((*ENQUEUE, "--queue", ""), "queue: is empty"),
    "long queue": ((*ENQUEUE, "--queue", "q" * 101), "queue: 101 characters are over the limit of 100"),
    "control character": ((*ENQUEUE, "--tenant", "a\tb"), "contains a control character"),
    "empty key": ((*ENQUEUE, "--key", ""), "key: is empty"),
    "priority": ((*ENQUEUE, "--priority", "10"), "priority: 10 is not a number from 0"),
    "priority in words": ((*ENQUEUE, "--priority", "high"), "(see `holdfast enqueue --help`)"),
    "attempts": ((*ENQUEUE, "--attempts", "0"), "attempts: 0 is not a number from 1"),
    "id to wait for": (("jobs", "wait", "17"), "id: '17' is not a job id"),
    "time to wait": (("jobs", "wait", "01890a5d-ac96-774b-bcce-b302099a8057", "--timeout", "5"), "timeout: '5' is not"),
    "id to enqueue": ((*ENQUEUE, "--id", "17"), "id: '17' is not a job id"),
    "empty kind": (("enqueue", "--app", "shop", ""), "kind: is empty"),
    "backoff": (("enqueue", "--app", "backoff.py", "greet"), "unknown policy 'fibonacci'; known are exponential"),
    "broken app": (("worker", "--app", "broken"), "ZeroDivisionError: division by zero (broken.py, line 2)"),
    "syntax error": (("worker", "--app", "syntax.py"), "SyntaxError"),
    "no such file": (("worker", "--app", "nowhere.py:app"), "app: there is no file 'nowhere.py'"),
    "no such module": (("worker", "--app", "nowhere:app"), "app: there is no module 'nowhere'"),
    "no such attribute": (("worker", "--app", "shop:application"), "app: shop has no 'application'; write shop:app"),
    "not an app": (("worker", "--app", "shop:log"), "app: shop:log is a Logger, not a Holdfast app"),
    "no handlers": (("worker", "--app", "idle"), "the app has no handlers"),
    "lease": (("worker", "--app", "shop", "--lease", "1ms"), "--lease: shorter than 500ms"),
    "concurrency": (("worker", "--app", "shop", "--concurrency", "0"), "--concurrency: 0 is not a number from 1"),
    "log level": (("worker", "--app", "shop", "--log-level", "loud"), "log-level: 'loud' is not known; use debug"),
    "worker's queues": (("worker", "--app", "shop", "--queues", "a,,b"), "--queues: is empty"),
    "worker's shard": (("worker", "--app", "shop", "--shard", "4/4"), "--shard: '4/4' is not a shard; write 0/4"),
    "shard of none": (("tick", "--app", "shop", "--shard", "0/0"), "--shard: '0/0' is not a shard"),
    "shard of too many": (
        ("tick", "--app", "shop", "--shard", "0/10001"),
        "--shard: 10001 is not a number from 1 to 10000",
    ),
    "tick's items": (("tick", "--app", "shop", "--max-items", "0"), "--max-items: 0 is less than 1"),
    "runner's items": (("tick", "--app", "shop", "--runner-max-items", "0"), "--runner-max-items: 0 is less than 1"),
    "tick's time": (("tick", "--app", "shop", "--max-time", "0s"), "--max-time: shorter than 1ms"),
    "runner's time": (
        ("tick", "--app", "shop", "--max-time", "1s", "--runner-max-time", "2s"),
        "--runner-max-time (2s) is more than --max-time (1s)",
    ),
    "a runner twice": (("tick", "--app", "shop", "--runners", "queue,queue"), "runners: 'queue' is given twice"),
    "state": (("jobs", "list", "--state", "lost"), "state: 'lost' is not known; use ready, running"),
    "limit": (("jobs", "list", "--limit", "0"), "limit: 0 is not a number from 1"),
    "id": (("jobs", "show", "17"), "id: '17' is not a job id"),
    "nothing to retry": (("jobs", "retry"), "which jobs?"),
    "retry of live jobs": (
        ("jobs", "retry", "--all", "--state", "running"),
        "`holdfast jobs retry --all` only accepts failed",
    ),
    "store": (("jobs", "list", "--store", "mysql://shop"), "store: 'mysql' is not known"),
    "memory": (("jobs", "list", "--store", "memory:"), "store: memory: disappears"),
    "database": (("migrate", "--store", "postgresql://nobody@[::1/x"), "store: the PostgreSQL address cannot be read"),
    "schema": (("migrate", "--schema", 'a"b'), "schema:"),
    "timetable": (
        ("schedules", "add", "a", "61 * * * *", "greet"),
        "timetable: '61 * * * *': bad minute; write it like",
    ),
    "seconds": (("schedules", "add", "a", "* * * * * *", "greet"), 'for seconds, use "every 10s"'),
    "zone": (("schedules", "add", "a", "hourly", "greet", "--tz", "Mars"), "tz: 'Mars' is not the name of a time zone"),
    "missed": (("schedules", "add", "a", "hourly", "greet", "--missed", "never"), "missed: 'never' is not known"),
    "schedule's name": (("schedules", "add", "queue", "hourly", "greet"), "one of Holdfast's own runners"),
    "schedule's payload": (("schedules", "add", "a", "hourly", "greet", "{name}"), "payload: not JSON"),
    "runs": (("runs", "list", "--limit", "0"), "limit: 0 is not a number from 1"),
    "bench": (("bench", "--jobs", "0"), "jobs: 0 is not a number from 1"),
    "bench rounds": (("bench", "--rounds", "0"), "rounds: 0 is not a number from 1"),
    "bench pooled": (("bench", "--store", "postgresql://h/d?pgbouncer=1"), "?pgbouncer=1 cannot be measured"),
    "bench workers": (("bench", "--workers", "two"), "workers: 'two' is not a list of numbers"),
    "faults case": (("faults", "--cases", "R1,R999"), "cases: 'R999' is unknown; the cases are R1"),
    "faults seed": (("faults", "--seed", "-1"), "seed: -1 is below zero"),
    "faults side by side": (("faults", "--side-by-side", "0"), "side-by-side: 0 is not a number from 1"),
    "faults url": (("faults", "--cases", "R1", "--url", "memory:"), "url: faults need PostgreSQL"),
    "option": (("jobs", "list", "--colour"), "(see `holdfast jobs list --help`)"),
    "misspelt option": (
        (*ENQUEUE, "--windw", "5m"),
        "holdfast: No such option: --windw; did you mean --window? (see `holdfast enqueue --help`)",
    ),
    "command": (("jump",), "No such command 'jump'"),
}


@pytest.fixture(scope="module")
def database(servers: Servers) -> Iterator[Database]:
    """One database for all tests here, because none of them may leave anything in it."""
    with servers.get("embedded-18").fresh_database() as database:
        yield database


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.json"
    path.write_text('{"name": "' + 10_000_000 * "x" + '"}', encoding="utf-8")
    return path


@pytest.fixture
def cli(database: Database, tmp_path: Path, forking: Forking, large: Path) -> Cli:
    files = {
        "backoff.py": f'{NEW_APP}app.handler("greet", backoff="fibonacci")(print)\n',
        "broken.py": "from holdfast import Holdfast\napp = Holdfast(1 / 0)\n",
        "syntax.py": "app = = Holdfast()\n",
        "idle.py": NEW_APP,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    (tmp_path / "large.json").symlink_to(large)
    return Cli(tmp_path, database.url, forking)


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line(cli: Cli, case: str) -> None:
    arguments, expected = REFUSED[case]
    done = cli.run(*arguments)
    assert expected in done.one_error_line()
    assert done.code == 2
    assert cli.states() == {}
    assert cli.rows("SELECT id FROM holdfast.job") == []


def test_an_existing_id_is_refused(servers: Servers, tmp_path: Path, forking: Forking) -> None:
    with servers.get("embedded-18").fresh_database() as database:
        cli = Cli(tmp_path, database.url, forking)
        id = cli.enqueue("greet", '{"name": "Ann"}')
        assert "use a new id" in cli.run(*ENQUEUE, "--id", id).one_error_line()
        assert cli.states() == {id: "ready"}


@pytest.mark.parametrize("command", [ENQUEUE, ("tick", "--app", "shop"), ("jobs", "list"), ("migrate",)])
def test_a_database_that_cannot_be_reached_is_one_line(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli.run(*command, "--store", "postgresql://127.0.0.1:1/shop")
    assert "PostgreSQL is not available" in done.one_error_line()
    assert done.err.count("check that the server is running and that --store or HOLDFAST_STORE points to it") == 1
    assert done.err.count("HOLDFAST_STORE") == 1
    assert done.code == 1


def test_a_database_that_does_not_exist_is_one_line(cli: Cli, database: Database) -> None:
    done = cli.run("jobs", "list", "--store", database.url.replace(database.name, "nowhere"))
    assert 'database "nowhere" does not exist; create it with createdb' in done.one_error_line()


def test_a_folder_that_is_not_a_data_folder_is_one_line(cli: Cli) -> None:
    done = cli.run("jobs", "list", "--store", f"embedded:{cli.folder}")
    assert "neither empty nor a PostgreSQL data folder" in done.one_error_line()
    assert done.code == 2


@pytest.mark.parametrize("command", [ENQUEUE, ("worker", "--app", "shop"), ("jobs", "list")])
def test_a_missing_schema_is_one_line_that_names_the_remedy(cli: Cli, command: tuple[str, ...]) -> None:
    line = cli.run(*command, "--schema", "elsewhere").one_error_line()
    assert 'the schema "elsewhere" is missing; run `holdfast migrate --schema elsewhere` with --store or --app' in line
    assert cli.rows("SELECT nspname FROM pg_namespace WHERE nspname = 'elsewhere'") == []


def test_a_newer_schema_is_refused_and_left_alone(empty: Database, tmp_path: Path, forking: Forking) -> None:
    cli = Cli(tmp_path, empty.url, forking)
    assert cli.run("migrate").code == 0
    cli.rows("INSERT INTO holdfast.migration (version, name) VALUES (9999, 'later') RETURNING version")
    for command in (("worker", "--app", "shop"), ("migrate",)):
        assert "is version 9999, newer than this release knows" in cli.run(*command).one_error_line()
    assert cli.rows("SELECT max(version) FROM holdfast.migration") == [(9999,)]


def test_an_unexpected_error_is_one_line_and_debug_shows_the_rest(cli: Cli) -> None:
    (cli.folder / "surprise.py").write_text(f"{NEW_APP}app.job = None\n")
    line = cli.run("enqueue", "--app", "surprise", "greet").one_error_line()
    assert line.endswith("run with --debug for the traceback")
    assert "Traceback" in cli.run("enqueue", "--app", "surprise", "greet", "--debug").err


def test_the_installed_command_behaves_the_same_way(cli: Cli) -> None:
    done = cli.run_from_nothing(*ENQUEUE, "--delay", "-5m")
    assert "delay: '-5m'" in done.one_error_line()
    assert done.code == 2
