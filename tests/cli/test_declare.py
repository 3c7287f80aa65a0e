"""`holdfast declare`, for a deployment that publishes events before its first worker runs."""

import json

from tests.cli.conftest import Cli

LISTENING = """
from holdfast import Holdfast

app = Holdfast()


@app.on("invoice.paid")
async def send_receipt(job) -> None: ...


@app.schedule("hourly")
async def clean_up(job) -> None: ...
"""


def test_a_deployment_declares_before_the_first_worker_runs(cli: Cli) -> None:
    (cli.folder / "listening.py").write_text(LISTENING, encoding="utf-8")
    done = cli.run("declare", "--app", "listening")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "schedule clean_up",
        "subscription send_receipt to invoice.paid",
        f"2 declared in {cli.url}",
    ]
    assert cli.rows("SELECT name, pattern FROM holdfast.subscription") == [("send_receipt", "invoice.paid")]
    assert cli.rows("SELECT name FROM holdfast.schedule") == [("clean_up",)]

    again = json.loads(cli.run("declare", "--app", "listening", "--json").out)
    assert again == {
        "store": cli.url,
        "schedules": ["clean_up"],
        "subscriptions": {"send_receipt": "invoice.paid"},
    }
    assert len(cli.rows("SELECT name FROM holdfast.subscription")) == 1


def test_an_app_without_kinds_says_so_and_a_store_that_cannot_keep_them_is_refused(cli: Cli) -> None:
    assert cli.run("declare", "--app", "shop").out == f"0 declared in {cli.url}\n"
    assert "store: memory: disappears" in cli.run("declare", "--app", "shop", "--store", "memory:").one_error_line()
    assert "there is no module" in cli.run("declare", "--app", "nowhere").one_error_line()


def test_the_app_may_be_named_in_the_environment_and_determines_the_store(cli: Cli) -> None:
    (cli.folder / "own.py").write_text(
        f"from holdfast import Holdfast\napp = Holdfast({cli.url!r})\napp.handler('greet')(print)\n", encoding="utf-8"
    )
    del cli.environment["HOLDFAST_STORE"]
    for command in (("migrate",), ("jobs", "list"), ("schedules", "list"), ("runs", "list"), ("subscriptions", "list")):
        assert cli.url in cli.run(*command, "--app", "own").out, command
    cli.environment["HOLDFAST_APP"] = "own"
    id = cli.run("enqueue", "greet").out.split()[0]
    assert id in cli.run("jobs", "list").out
    assert cli.run("tick").code == 0
    assert json.loads(cli.run("settings", "--json").out)["HOLDFAST_STORE"] == {"value": cli.url, "from": "code"}
    assert json.loads(cli.run("doctor", "--json").out)["findings"]


def test_without_an_app_a_command_says_how_to_name_one(cli: Cli) -> None:
    for command in (("worker",), ("tick",), ("declare",), ("enqueue", "greet"), ("rows", "check")):
        line = cli.run(*command).one_error_line()
        assert line == "holdfast: app: none given; use --app shop.jobs:app or set HOLDFAST_APP"
