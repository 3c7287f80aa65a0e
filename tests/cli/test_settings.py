"""`holdfast settings`: values, their sources, and the reference page."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.cli.load_app import load_app
from holdfast.settings import Settings, variable
from tests.cli.conftest import Cli
from tests.cli.forking import Forking

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
SECRET = "opensesame"


@pytest.fixture
def cli(tmp_path: Path, forking: Forking) -> Cli:
    return Cli(tmp_path, "postgresql://127.0.0.1:1/nowhere", forking)


def test_the_committed_page_matches_the_class(cli: Cli) -> None:
    assert cli.run("settings", "--markdown").out == PAGE.read_text(encoding="utf-8"), (
        "run `holdfast settings --markdown > docs/settings.md`"
    )


def test_the_page_does_not_depend_on_the_environment(cli: Cli) -> None:
    cli.environment |= {"HOLDFAST_POLL": "15ms", "HOLDFAST_ERROR_BACKOFF_MAX": "15ms"}
    assert cli.run("settings", "--markdown").out == PAGE.read_text(encoding="utf-8")


def test_every_setting_is_shown_with_its_value_and_source(cli: Cli) -> None:
    cli.environment |= {"HOLDFAST_POLL": "90s", "HOLDFAST_QUEUES": "a, b", "HOLDFAST_LISTEN": "off"}
    cli.environment["HOLDFAST_HOME"] = "/somewhere"
    values = json.loads(cli.run("settings", "--json").out)
    store, *others = (variable(name) for name in Settings.model_fields)
    assert list(values) == [store, "HOLDFAST_APP", "HOLDFAST_HOME", *others]
    assert values["HOLDFAST_HOME"] == {"value": "/somewhere", "from": "environment"}
    assert values["HOLDFAST_POLL"] == {"value": "1m30s", "from": "environment"}
    assert values["HOLDFAST_QUEUES"] == {"value": "a,b", "from": "environment"}
    assert values["HOLDFAST_LISTEN"] == {"value": False, "from": "environment"}
    assert values["HOLDFAST_CONCURRENCY"] == {"value": 32, "from": "default"}
    assert values["HOLDFAST_RENEW"] == {"value": None, "from": "default"}
    lines = {line.split()[0]: line.split()[1:] for line in cli.run("settings").out.splitlines() if line.strip()}
    assert lines["HOLDFAST_POLL"] == ["1m30s", "environment"]
    assert lines["HOLDFAST_RENEW"] == ["unset", "default"]
    assert lines["HOLDFAST_HOME"] == ["/somewhere", "environment"]
    del cli.environment["HOLDFAST_HOME"]
    assert json.loads(cli.run("settings", "--json").out)["HOLDFAST_HOME"] == {"value": None, "from": "default"}


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@host/shop",
        f"postgresql://me@host/shop?password={SECRET}",
        f"postgresql://me:a#{SECRET}@host/shop",
        f"postgresql://me:a/{SECRET}@host/shop",
        f"postgresql://me:a?{SECRET}@host/shop",
    ],
)
def test_no_password_is_shown(cli: Cli, options: tuple[str, ...], address: str) -> None:
    cli.environment["HOLDFAST_STORE"] = address
    cli.environment["HOLDFAST_RABBITMQ_URL"] = f"amqp://me:{SECRET}@host/vhost"
    done = cli.run("settings", *options)
    assert done.code == 0
    assert SECRET not in done.out + done.err


def test_a_misspelt_variable_stops_every_command(cli: Cli) -> None:
    cli.environment["HOLDFAST_CONCURENCY"] = "8"
    said = "holdfast: HOLDFAST_CONCURENCY is not a setting; did you mean HOLDFAST_CONCURRENCY?"
    for command in (
        ("settings",),
        ("jobs", "list"),
        ("migrate",),
        ("worker", "--app", "shop"),
        ("tick", "--app", "shop.py:app"),
    ):
        assert cli.run(*command).one_error_line() == said


@pytest.mark.parametrize(("name", "value"), [("STORE", "mysql://x"), ("SCHEMA", "pg_x")])
def test_an_unusable_store_or_schema_is_refused_with_the_name_of_its_variable(cli: Cli, name: str, value: str) -> None:
    cli.environment[f"HOLDFAST_{name}"] = value
    for command in (("settings",), ("jobs", "list"), ("worker", "--app", "shop")):
        assert cli.run(*command).one_error_line().startswith(f"holdfast: HOLDFAST_{name}: ")


def test_an_option_that_contradicts_a_variable_is_refused(cli: Cli) -> None:
    cli.environment["HOLDFAST_RENEW"] = "10s"
    line = cli.run("worker", "--app", "shop", "--lease", "15s").one_error_line()
    assert "HOLDFAST_RENEW (10s) is more than half of --lease (15s)" in line


APP = "from holdfast import Holdfast\napp = Holdfast('memory:', lease='60s', concurrency=5)\napp.handler('x')(print)\n"


def test_an_option_overrides_the_code_and_the_code_overrides_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "coded_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOLDFAST_LEASE", "50s")
    monkeypatch.setenv("HOLDFAST_CONCURRENCY", "4")
    monkeypatch.setenv("HOLDFAST_POLL", "3s")
    settings = load_app("coded_app", lease="70s").settings
    assert (settings.lease, settings.concurrency) == (timedelta(seconds=70), 5)
    assert settings.poll == timedelta(seconds=3)


def test_a_variable_is_checked_together_with_settings_from_code(cli: Cli) -> None:
    (cli.folder / "coded_app.py").write_text(APP, encoding="utf-8")
    cli.environment["HOLDFAST_RENEW"] = "25s"
    assert cli.run("tick", "--app", "coded_app").code == 0
    line = cli.run("tick", "--app", "shop").one_error_line()
    assert "HOLDFAST_RENEW (25s) is more than half of HOLDFAST_LEASE (30s)" in line
