"""`holdfast subscriptions …`, as typed by a person."""

import json
from typing import Any

from tests.cli.conftest import Cli


def shown(cli: Cli, *arguments: str) -> Any:  # noqa: ANN401
    done = cli.run("subscriptions", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_subscriptions_are_added_changed_listed_and_removed(cli: Cli) -> None:
    assert cli.run("subscriptions", "list").out == f"The store has no subscriptions yet: {cli.url}\n"
    assert shown(cli, "list") == []
    added = shown(cli, "add", "greet", "invoice.paid", "--queue", "mail", "--priority", "1", "--attempts", "3")
    assert {name: value for name, value in added.items() if not name.endswith("_at")} == {
        "name": "greet", "pattern": "invoice.paid", "queue": "mail", "priority": 1, "attempts": 3,
    }  # fmt: skip
    assert cli.run("subscriptions", "add", "greet", "invoice.*").out == "greet  saved\n"
    (listed,) = shown(cli, "list")
    assert (listed["pattern"], listed["queue"], listed["attempts"]) == ("invoice.*", "default", None)
    assert listed["created_at"] == added["created_at"] < listed["updated_at"]
    table = cli.run("subscriptions", "list").out
    assert "greet" in table
    assert "invoice.*" in table
    assert "the handler's" in table
    assert cli.rows("SELECT subscription FROM holdfast.publish('invoice.sent', '{}')") == [("greet",)]
    assert cli.run("subscriptions", "remove", "greet").out == "greet  removed\n"
    assert shown(cli, "list") == []
    cli.run("subscriptions", "add", "greet", "*")
    assert shown(cli, "remove", "greet") == {"name": "greet", "removed": True}


def test_a_narrow_terminal_shows_the_important_columns(cli: Cli) -> None:
    cli.run("subscriptions", "add", "a.rather.long.name.of.a.kind.that.does.not.fit", "invoice.*")
    lines = cli.in_terminal(50, "subscriptions", "list")
    assert lines[0].split() == ["name", "events"]
    assert all(len(line) <= 50 for line in lines)
    assert lines[2].endswith("invoice.*")


def test_a_mistake_is_one_line(cli: Cli) -> None:
    unknown = cli.run("subscriptions", "remove", "nobody").one_error_line()
    assert unknown == (
        "holdfast: subscription 'nobody' is not known; `holdfast subscriptions list` shows those in the store"
    )
    wrong = cli.run("subscriptions", "add", "greet", "invoice*").one_error_line()
    assert wrong.startswith("holdfast: pattern: 'invoice*' is not valid; write a type")
    assert "priority" in cli.run("subscriptions", "add", "greet", "*", "--priority", "12").one_error_line()
