"""`holdfast declare`: for a deployment that publishes before its first worker runs."""

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
    done = cli.run("declare", "listening")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "schedule clean_up",
        "subscription send_receipt to invoice.paid",
        f"2 declared in {cli.url}",
    ]
    assert cli.rows("SELECT name, pattern FROM holdfast.subscription") == [("send_receipt", "invoice.paid")]
    assert cli.rows("SELECT name FROM holdfast.schedule") == [("clean_up",)]

    again = json.loads(cli.run("declare", "listening", "--json").out)
    assert again == {
        "store": cli.url,
        "schedules": ["clean_up"],
        "subscriptions": {"send_receipt": "invoice.paid"},
    }
    assert len(cli.rows("SELECT name FROM holdfast.subscription")) == 1


def test_what_has_nothing_to_declare_says_so_and_what_cannot_keep_it_is_refused(cli: Cli) -> None:
    assert cli.run("declare", "shop").out == f"0 declared in {cli.url}\n"
    assert "store: memory: is gone" in cli.run("declare", "shop", "--store", "memory:").one_error_line()
    assert "there is no module" in cli.run("declare", "nowhere").one_error_line()
