"""`holdfast jobs …`: looking at jobs, retrying and canceling them."""

import json

import pytest

from tests.cli.conftest import Cli
from tests.worker.harness import eventually

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def worked(cli: Cli) -> dict[str, str]:
    """Ids by name: two jobs that succeeded, one that failed, one that waits for a worker that knows its kind."""
    ids = {
        "ann": cli.enqueue("greet", '{"name": "Ann"}'),
        "bob": cli.enqueue("greet", '{"name": "Bob"}', "--tenant", "acme"),
        "fish": cli.enqueue("refuse", '{"goods": "fish"}'),
        "other": cli.enqueue("elsewhere"),
    }
    worker = cli.start("worker", "shop", "--log-level", "error")
    try:
        eventually(lambda: list(cli.states().values()).count("ready") == 1, "the worker works")
        eventually(lambda: "running" not in cli.states().values(), "the worker finishes")
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
    return ids


def test_jobs_are_listed_shown_retried_and_canceled(cli: Cli, worked: dict[str, str]) -> None:
    table = cli.run("jobs", "list")
    assert table.err == ""
    assert all(id in table.out for id in worked.values())
    assert "NOT_WANTED: we do not sell [red]fish[/red]" in table.out
    assert "4 shown; in the store: ready 1, succeeded 2, failed 1" in table.out

    listed = json.loads(cli.run("jobs", "list", "--state", "succeeded", "--tenant", "acme", "--json").out)
    assert [job["id"] for job in listed] == [worked["bob"]]
    assert cli.run("jobs", "list", "--kind", "nothing").out == "No jobs match.\n"

    shown = cli.run("jobs", "show", worked["fish"])
    assert "failed" in shown.out
    assert '"goods": "fish"' in shown.out
    assert "NOT_WANTED Permanent: we do not sell [red]fish[/red]" in shown.out
    assert "attempt 1" in shown.out
    as_json = json.loads(cli.run("jobs", "show", worked["fish"], "--json").out)
    assert as_json["errors"][0]["code"] == "NOT_WANTED"

    assert cli.run("jobs", "retry", worked["fish"], worked["other"]).out.splitlines() == [
        f"{worked['fish']}  ready to run again",
        f"{worked['other']}  not changed: already ready or running",
    ]
    canceled = json.loads(cli.run("jobs", "cancel", worked["fish"], worked["ann"], "--json").out)
    assert [answer["outcome"] for answer in canceled] == ["canceled", "final"]
    assert cli.states()[worked["fish"]] == "canceled"


def test_jobs_can_be_chosen_by_a_filter_after_a_confirmation(cli: Cli, worked: dict[str, str]) -> None:
    everything_greeted = ("--all", "--state", "succeeded", "--kind", "greet")
    refused = cli.run("jobs", "retry", *everything_greeted)
    assert "retry 2 jobs (succeeded, kind greet)? There is no terminal to ask on: add --yes" in refused.one_error_line()
    assert list(cli.states().values()).count("succeeded") == 2

    assert cli.run("jobs", "retry", *everything_greeted, "--yes").out == "2 ready to run again\n"
    assert cli.run("jobs", "cancel", "--all", "--state", "ready", "--kind", "greet", "-y").out == "2 canceled\n"
    assert cli.run("jobs", "cancel", "--all", "--state", "dead").out == "no jobs match; nothing was changed\n"
    assert list(cli.states().values()).count("canceled") == 2


def test_an_unknown_id_is_one_line_and_exit_code_1(cli: Cli) -> None:
    id = cli.enqueue("greet", '{"name": "Ann"}')
    shown = cli.run("jobs", "show", UNKNOWN)
    assert f"no job has the id {UNKNOWN}" in shown.one_error_line()
    assert shown.code == 1
    canceled = cli.run("jobs", "cancel", id, UNKNOWN)
    assert canceled.code == 1
    assert canceled.out.splitlines() == [f"{id}  canceled", f"{UNKNOWN}  not known"]
    assert canceled.err.splitlines() == [f"holdfast: no job has the id {UNKNOWN}; `holdfast jobs list` shows them"]
    assert cli.run("jobs", "retry", UNKNOWN).code == 1


def test_a_script_waits_for_jobs_and_learns_how_they_ended(cli: Cli, worked: dict[str, str]) -> None:
    good = cli.run("jobs", "wait", worked["bob"], worked["ann"])
    assert (good.code, good.err) == (0, "")
    assert good.out.splitlines() == [f"{worked['bob']}  succeeded", f"{worked['ann']}  succeeded"]
    (found,) = json.loads(cli.run("jobs", "wait", worked["ann"], "--json").out)
    assert found["result"] == {"said": "hello Ann"}

    bad = cli.run("jobs", "wait", worked["ann"], worked["fish"], worked["other"], "--timeout", "50ms")
    assert bad.code == 1
    assert bad.out.splitlines()[1:] == [
        f"{worked['fish']}  failed  NOT_WANTED Permanent: we do not sell [red]fish[/red]",
        f"{worked['other']}  ready",
    ]
    assert bad.err == f"holdfast: 1 of 3 did not succeed; `holdfast jobs show {worked['fish']}` says why\n"

    late = cli.run("jobs", "wait", worked["ann"], worked["other"], "--timeout", "50ms", "--json")
    assert late.code == 124
    assert [job["state"] for job in json.loads(late.out)] == ["succeeded", "ready"]
    assert late.err == "holdfast: 1 of 2 not final after 50ms; wait again, or with a longer --timeout\n"

    unknown = cli.run("jobs", "wait", UNKNOWN, "--timeout", "1h")
    assert f"no job has the id {UNKNOWN}" in unknown.one_error_line()
    assert unknown.code == 1


def test_an_empty_store_says_so(cli: Cli) -> None:
    assert cli.run("jobs", "list").out == f"The store has no jobs yet: {cli.url}\n"
    assert json.loads(cli.run("jobs", "list", "--json").out) == []


LONG = """
from holdfast import Holdfast, Permanent

app = Holdfast()


@app.handler("import.customers.of.the.old.shop")
async def fail(job) -> None:
    raise Permanent("BROKEN", "a line that goes on " * 40)
"""


def test_a_long_error_is_cut_and_every_other_column_is_whole(cli: Cli) -> None:
    (cli.folder / "long.py").write_text(LONG, encoding="utf-8")
    id = cli.run("enqueue", "long", "import.customers.of.the.old.shop").out.split()[0]
    cli.run("enqueue", "long", "greet", "--queue", "mail")
    assert cli.run("tick", "long", "--runners", "queue").code == 0
    for lines in (cli.in_terminal(140, "jobs", "list"), cli.run("jobs", "list").out.splitlines()):
        assert len(lines) == 2 + 2 + 1
        assert lines[0].split() == ["id", "state", "kind", "queue", "try", "when", "last", "error"]
        (failed,) = [line for line in lines if line.startswith(id)]
        assert failed.split()[:5] == [id, "failed", "import.customers.of.the.old.shop", "default", "1"]
        assert "BROKEN: a line" in failed
        assert failed.endswith("…")
    for columns in (80, 120):
        narrow = cli.in_terminal(columns, "jobs", "list")
        assert max(len(line) for line in narrow) <= columns
        assert narrow[0].split()[:5] == ["id", "state", "kind", "try", "when"]
        assert next(line for line in narrow if line.startswith(id)).split()[1] == "failed"


@pytest.mark.parametrize("payload", ['"\\ud800"', "[" * 300 + "]" * 300, "[1e999]"], ids=["surrogate", "deep", "large"])
def test_a_job_that_python_cannot_read_hides_no_other(cli: Cli, payload: str) -> None:
    ((id,),) = cli.rows(f"SELECT id FROM holdfast.enqueue('elsewhere', '{payload}', headers => '{payload}')")
    other = cli.enqueue("elsewhere", '{"a": 1}')
    listed = {job["id"]: job for job in json.loads(cli.run("jobs", "list", "--json").out, parse_constant=pytest.fail)}
    assert listed[str(id)]["payload"] == listed[str(id)]["headers"] == payload
    assert listed[other]["payload"] == {"a": 1}
    shown = cli.run("jobs", "show", str(id))
    assert (shown.code, shown.err) == (0, "")
