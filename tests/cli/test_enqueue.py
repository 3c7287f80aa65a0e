"""`holdfast enqueue` prints the id and whether the job is new."""

import json
from pathlib import Path

from tests.cli.conftest import Cli


def test_the_id_is_printed_and_the_options_are_kept(cli: Cli) -> None:
    id = "01890a5d-ac96-774b-bcce-b302099a8057"
    done = cli.run(
        "enqueue", "--app", "shop:app", "greet", '{"name": "Zoë 🐟"}',
        "--queue", "slow", "--priority", "2", "--tenant", "acme",
        "--key", "k1", "--correlation-id", "order-7", "--attempts", "9", "--id", id,
        "--run-at", "2100-01-31T08:00:00+01:00", "--json",
    )  # fmt: skip
    assert done.err == ""
    assert json.loads(done.out) == {"id": id, "is_new": True, "replaced": False}
    (job,) = json.loads(cli.run("jobs", "list", "--json").out)
    wanted = {
        "id": id, "kind": "greet", "payload": {"name": "Zoë 🐟"}, "queue": "slow", "priority": 2, "tenant": "acme",
        "key": "k1", "correlation_id": "order-7", "max_attempts": 9, "state": "ready",
        "run_at": "2100-01-31T07:00:00+00:00",
    }  # fmt: skip
    assert {name: job[name] for name in wanted} == wanted


def test_enqueueing_twice_with_one_key_makes_one_job(cli: Cli) -> None:
    first = cli.run("enqueue", "--app", "shop", "greet", '{"name": "Ann"}', "--key", "order-7").out
    second = cli.run("enqueue", "--app", "shop", "greet", '{"name": "Ann"}', "--key", "order-7").out
    assert first.split()[0] == second.split()[0]
    assert "new" in first
    assert "already existed" in second
    assert len(cli.states()) == 1


def test_options_replace_a_job_or_hold_its_key_for_a_window(cli: Cli) -> None:
    first = json.loads(cli.run("enqueue", "--app", "shop", "greet", '{"name": "Ann"}', "--key", "a", "--json").out)
    replacing = ("enqueue", "--app", "shop", "greet", '{"name": "Bob"}', "--key", "a", "--if-exists", "replace")
    assert json.loads(cli.run(*replacing, "--json").out) == {"id": first["id"], "is_new": False, "replaced": True}
    assert cli.run(*replacing).out == f"{first['id']}  already existed; replaced by this job\n"
    (job,) = json.loads(cli.run("jobs", "list", "--json").out)
    assert job["payload"] == {"name": "Bob"}
    in_window = ("enqueue", "--app", "shop", "greet", '{"name": "Ann"}', "--key", "b", "--window", "5m", "--json")
    assert [json.loads(cli.run(*in_window).out)["is_new"] for _ in range(2)] == [True, False]


def test_the_payload_can_come_from_a_file_or_from_stdin(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text('{"name": "file"}')
    assert cli.run("enqueue", "--app", "shop", "greet", "@payload.json").code == 0
    assert cli.run("enqueue", "--app", "shop", "greet", "-", stdin=b'{"name": "stdin"}').code == 0
    jobs = json.loads(cli.run("jobs", "list", "--json").out)
    assert [job["payload"]["name"] for job in jobs] == ["stdin", "file"]


def test_a_kind_without_a_handler_is_enqueued_with_a_warning(cli: Cli) -> None:
    done = cli.run("enqueue", "--app", "shop", "elsewhere")
    assert done.code == 0
    assert "no worker has ever declared this kind; its jobs wait for one that does  kind=elsewhere" in done.err
    assert list(cli.states().values()) == ["ready"]
    assert "(did you mean greet?)" in cli.run("enqueue", "--app", "shop", "gret").err


def test_a_delay_starts_at_the_current_time_of_the_store(cli: Cli) -> None:
    cli.enqueue("greet", '{"name": "Ann"}', "--delay", "1h30m")
    assert "in 1h" in cli.run("jobs", "list").out
