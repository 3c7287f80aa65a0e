"""`holdfast jobs …`: listing, showing, retrying, canceling and deleting jobs."""

import json

import pytest

from tests.cli.conftest import Cli
from tests.worker.harness import eventually

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def worked(cli: Cli) -> dict[str, str]:
    """IDs by name: two succeeded jobs, a failed one, and one whose kind has no handler yet."""
    ids = {
        "ann": cli.enqueue("greet", '{"name": "Ann"}'),
        "bob": cli.enqueue("greet", '{"name": "Bob"}', "--tenant", "acme"),
        "fish": cli.enqueue("refuse", '{"goods": "fish"}'),
        "other": cli.enqueue("elsewhere"),
    }
    worker = cli.start("worker", "--app", "shop", "--log-level", "error")
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
    assert (
        "retry 2 jobs (succeeded, kind greet)? There is no terminal to confirm on; add --yes"
        in refused.one_error_line()
    )
    assert list(cli.states().values()).count("succeeded") == 2

    assert cli.run("jobs", "retry", *everything_greeted, "--yes").out == "2 ready to run again\n"
    assert cli.run("jobs", "cancel", "--all", "--state", "ready", "--kind", "greet", "-y").out == "2 canceled\n"
    assert cli.run("jobs", "cancel", "--all", "--state", "dead").out == "no jobs match; nothing was changed\n"
    assert list(cli.states().values()).count("canceled") == 2


def test_only_finished_jobs_are_deleted(cli: Cli, worked: dict[str, str]) -> None:
    answers = cli.run("jobs", "delete", worked["fish"], worked["other"], UNKNOWN)
    assert (answers.code, answers.out.splitlines()) == (
        1,
        [
            f"{worked['fish']}  deleted",
            f"{worked['other']}  not changed: ready or running; cancel it first",
            f"{UNKNOWN}  no such job",
        ],
    )
    refused = cli.run("jobs", "delete", "--all", "--state", "ready")
    assert refused.one_error_line() == (
        "holdfast: --state ready: `holdfast jobs delete --all` only accepts failed, dead, canceled or succeeded"
    )
    refused = cli.run("jobs", "delete", "--all")
    assert refused.one_error_line() == (
        "holdfast: --all needs --state; `holdfast jobs delete` accepts failed, dead, canceled or succeeded"
    )
    assert cli.run("jobs", "delete", "--all", "--state", "succeeded", "--yes").out == "2 deleted\n"
    assert cli.states() == {worked["other"]: "ready"}


def test_several_states_are_selected_at_once(cli: Cli, worked: dict[str, str]) -> None:
    listed = json.loads(cli.run("jobs", "list", "--state", "failed,dead, ready", "--json").out)
    assert [job["id"] for job in listed] == [worked["other"], worked["fish"]]
    listed = json.loads(cli.run("jobs", "list", "--state", "failed,succeeded", "--limit", "2", "--json").out)
    assert [job["id"] for job in listed] == [worked["fish"], worked["bob"]]
    unknown = cli.run("jobs", "list", "--state", "failed,buried")
    assert "state: 'buried' is not known; use ready, running" in unknown.one_error_line()
    refused = cli.run("jobs", "retry", "--all", "--state", "failed,dead")
    assert "retry 1 job (failed or dead)? There is no terminal" in refused.one_error_line()
    refused = cli.run("jobs", "retry", "--all", "--state", "failed,running", "--yes")
    assert "--state running: `holdfast jobs retry --all` only accepts failed, dead" in refused.one_error_line()
    assert cli.run("jobs", "retry", "--all", "--state", "failed,dead", "--yes").out == "1 ready to run again\n"


def test_the_end_of_an_id_is_enough(cli: Cli, worked: dict[str, str]) -> None:
    ends = {name: id[-8:] for name, id in worked.items()}
    shown = json.loads(cli.run("jobs", "show", ends["fish"].upper(), "--json").out)
    assert shown["id"] == worked["fish"]
    assert cli.run("jobs", "wait", ends["ann"]).out == f"{worked['ann']}  succeeded\n"
    assert cli.run("jobs", "retry", ends["fish"]).out == f"{worked['fish']}  ready to run again\n"
    assert cli.run("jobs", "cancel", worked["fish"], worked["other"][-14:]).out.splitlines() == [
        f"{worked['fish']}  canceled",
        f"{worked['other']}  canceled",
    ]
    assert cli.run("jobs", "delete", ends["bob"]).out == f"{worked['bob']}  deleted\n"


def test_an_end_of_an_id_that_fits_no_job_or_several_is_refused(cli: Cli) -> None:
    for start in ("1", "2"):
        cli.enqueue("greet", '{"name": "Ann"}', "--id", f"01890a5d-ac96-774b-bcc{start}-b302099a8057")
    several = cli.run("jobs", "cancel", "099a8057")
    assert several.code == 2
    assert several.one_error_line() == (
        "holdfast: id: several jobs have an id that ends with 099a8057: 01890a5d-ac96-774b-bcc2-b302099a8057, "
        "01890a5d-ac96-774b-bcc1-b302099a8057; give a whole id"
    )
    none = cli.run("jobs", "show", "abcdef01")
    assert none.code == 1
    assert none.one_error_line() == (
        "holdfast: none of the newest 10,000 jobs has an id that ends with abcdef01; give the whole id"
    )
    short = cli.run("jobs", "show", "a8057")
    assert "'a8057' is not a job id; it looks like" in short.one_error_line()


def test_an_unknown_id_is_one_line_and_exit_code_1(cli: Cli) -> None:
    id = cli.enqueue("greet", '{"name": "Ann"}')
    shown = cli.run("jobs", "show", UNKNOWN)
    assert f"no job has the id {UNKNOWN}" in shown.one_error_line()
    assert shown.code == 1
    canceled = cli.run("jobs", "cancel", id, UNKNOWN)
    assert canceled.code == 1
    assert canceled.out.splitlines() == [f"{id}  canceled", f"{UNKNOWN}  no such job"]
    assert canceled.err == f"holdfast: no job has the id {UNKNOWN}; `holdfast jobs list` shows the newest\n"
    assert cli.run("jobs", "retry", UNKNOWN).code == 1


def test_a_script_can_wait_for_jobs_and_see_how_they_ended(cli: Cli, worked: dict[str, str]) -> None:
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
    assert bad.err == f"holdfast: 1 of 3 jobs did not succeed; `holdfast jobs show {worked['fish']}` shows why\n"

    late = cli.run("jobs", "wait", worked["ann"], worked["other"], "--timeout", "50ms", "--json")
    assert late.code == 124
    assert [job["state"] for job in json.loads(late.out)] == ["succeeded", "ready"]
    assert late.err == "holdfast: 1 of 2 jobs had not ended after 50ms; wait again, or use a longer --timeout\n"

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


def test_a_long_error_is_cut_but_no_other_column(cli: Cli) -> None:
    (cli.folder / "long.py").write_text(LONG, encoding="utf-8")
    id = cli.run("enqueue", "--app", "long", "import.customers.of.the.old.shop").out.split()[0]
    cli.run("enqueue", "--app", "long", "greet", "--queue", "mail")
    assert cli.run("tick", "--app", "long", "--runners", "queue").code == 0
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


FLAKY = """
from holdfast import Holdfast, Retryable

app = Holdfast()


@app.handler("flaky", attempts=2, backoff="steps 10ms")
async def fail_once(job) -> None:
    if job.attempt == 1:
        raise Retryable("not yet", code="TOO_EARLY")
"""


def test_the_last_error_of_a_job_that_has_succeeded_is_not_listed(cli: Cli) -> None:
    (cli.folder / "flaky.py").write_text(FLAKY, encoding="utf-8")
    id = cli.run("enqueue", "--app", "flaky", "flaky").out.split()[0]

    def ticked_to(state: str) -> bool:
        assert cli.run("tick", "--app", "flaky", "--runners", "queue").code == 0
        return cli.states()[id] == state

    eventually(lambda: ticked_to("succeeded"), "the second attempt succeeds")
    assert "TOO_EARLY" in cli.run("jobs", "show", id).out
    listed = cli.run("jobs", "list").out
    assert id in listed
    assert "last error" not in listed
    assert "TOO_EARLY" not in listed


@pytest.mark.parametrize("payload", ['"\\ud800"', "[" * 300 + "]" * 300, "[1e999]"], ids=["surrogate", "deep", "large"])
def test_a_job_that_python_cannot_read_does_not_hide_others(cli: Cli, payload: str) -> None:
    ((id,),) = cli.rows(f"SELECT id FROM holdfast.enqueue('elsewhere', '{payload}', headers => '{payload}')")
    other = cli.enqueue("elsewhere", '{"a": 1}')
    listed = {job["id"]: job for job in json.loads(cli.run("jobs", "list", "--json").out, parse_constant=pytest.fail)}
    assert listed[str(id)]["payload"] == listed[str(id)]["headers"] == payload
    assert listed[other]["payload"] == {"a": 1}
    shown = cli.run("jobs", "show", str(id))
    assert (shown.code, shown.err) == (0, "")
