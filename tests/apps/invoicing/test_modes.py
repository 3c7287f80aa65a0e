"""`python -m apps.invoicing` as a process: its modes, its output, its exit codes and its metrics."""

import asyncio
import json
import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from apps.invoicing.__main__ import main
from apps.invoicing.runners import ENDPOINTS
from apps.invoicing.settings import BILLING, OUTBOX, REMINDERS
from apps.invoicing.worker_metrics import WorkerMetrics
from holdfast import JobState
from tests.apps.invoicing.issuing import opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, mail_server
from tests.apps.invoicing.patience import PATIENCE, until
from tests.apps.invoicing.processes import environment, finished, started, stopped
from tests.apps.invoicing.scheduler_api import TOKEN, SchedulerApi, scheduler_api
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300), pytest.mark.long]

FOR_EVER = 10**9
"""In milliseconds."""

MODES = ("background", "tick", "api")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def variables(database: Database, mails: MailServer, api: SchedulerApi, folder: Path) -> dict[str, object]:
    return {
        "database_url": database.url,
        "files_url": f"file:{folder}/files",
        "smtp_url": mails.url,
        "worker_api_base_url": api.url,
        "worker_api_service_token": TOKEN,
    }


async def test_a_tick_does_the_due_work_reports_it_and_ends(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails, scheduler_api() as api:
        api.left = {ENDPOINTS[REMINDERS]: 2}
        given = variables(database, mails, api, tmp_path)
        async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
            issued = await bench.issue()
            ended = await finished("tick", "--json", **given)
            document = await bench.document(issued)
        report = json.loads(ended.stdout)
        assert (ended.returncode, ended.stderr, report["ok"]) == (0, "", True)
        assert [each["runner"] for each in report["runners"]] == [OUTBOX, REMINDERS, BILLING, "maintenance"]
        outbox, reminders = report["runners"][:2]
        assert outbox["counts"] == {"sent": 3}
        assert (reminders["processed"], reminders["counts"]) == (2, {"created": 2})
        assert document["state"] == "READY"
        assert set(api.calls) == set(ENDPOINTS.values())

        shown = await finished("tick", **{**given, "worker_api_service_token": "one-that-is-wrong"})
        heading, *rows = shown.stdout.splitlines()
        assert (shown.returncode, heading.split()) == (1, ["runner", "processed", "failed", "seconds", "notes"])
        assert [row.split()[0] for row in rows if not row.startswith(" ")] == [
            OUTBOX,
            REMINDERS,
            BILLING,
            "maintenance",
        ]
        # The notes have a separate column and fit into eighty columns.
        notes = "".join(row[heading.index("notes") :].strip() for row in rows)
        for path in ENDPOINTS.values():
            assert f"{api.url}{path}" in notes
        assert "…" not in shown.stdout


async def test_the_background_is_the_default_works_at_once_has_metrics_and_stops(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    async with mail_server() as mails, scheduler_api() as api:
        given = {**variables(database, mails, api, tmp_path), "worker_metrics_port": port}
        mails.refuse = "550 no such user"
        async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
            await bench.issue(1)
            await bench.issue(2, template="unknown")
            with started(tmp_path / "worker.log", **given) as worker:
                await until(bench.are_all_final)
                await until(lambda: len(set(api.calls)) == len(ENDPOINTS))
                # A new job wakes the sleeping worker: its idle waits are longer than this test's patience.
                mails.refuse = None
                later = await bench.issue(3)
                await until(lambda: bench.is_final(later.email_job))

                async def is_told() -> bool:
                    return (await metrics(port))["invoicing_outbox_outcomes_total", "sent"] == 6

                # Two PDFs, three taxes, one mail.
                await until(is_told)

                async def have_schedulers_run() -> bool:
                    known = await metrics(port)
                    return all(("invoicing_worker_tick_seconds_count", name) in known for name in ENDPOINTS)

                await until(have_schedulers_run)
                told = await metrics(port)
                assert await stopped(worker) == 0
    # A missing template, the mail of that invoice, and a refused mail.
    assert told["invoicing_outbox_outcomes_total", "failed"] == 3
    assert told["invoicing_worker_processed_total", OUTBOX] >= 9
    assert told["invoicing_worker_tick_seconds_count", OUTBOX] >= 2
    assert told["invoicing_worker_tick_processed_sum", OUTBOX] == told["invoicing_worker_processed_total", OUTBOX]
    assert told["invoicing_worker_ticks_total", ""] >= 2


async def test_the_background_runs_the_schedulers_at_once_and_again_while_items_remain(
    database: Database, tmp_path: Path
) -> None:
    """The timetable would give them their next turn in eleven days."""
    async with mail_server() as mails, scheduler_api() as api:
        api.left = dict.fromkeys(ENDPOINTS.values(), 70)
        given = {
            **variables(database, mails, api, tmp_path),
            "worker_tick_runner_max_items": 20,
            "worker_idle_backoff_min_ms": FOR_EVER,
            "worker_idle_backoff_max_ms": FOR_EVER,
        }
        with started(tmp_path / "worker.log", **given) as worker:
            await until(lambda: not any(api.left.values()))
            assert await stopped(worker) == 0
    assert sorted(api.limits) == [20] * 8


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_lets_the_background_finish_and_the_second_interrupts_it(
    database: Database, tmp_path: Path, number: signal.Signals
) -> None:
    """For either signal. A second one counts only a moment after the first."""
    async with mail_server() as mails, scheduler_api() as api:
        given = variables(database, mails, api, tmp_path) | {"worker_tick_runners": OUTBOX}
        async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
            for is_patient in (True, False):
                log = tmp_path / f"{is_patient}.log"
                issued = await bench.issue(int(is_patient))
                mails.hold.clear()
                with started(log, **given) as worker:
                    await until(lambda: mails.at_once == 1)
                    worker.send_signal(number)
                    await until(partial(_says, log, "worker is stopping"))
                    if is_patient:
                        mails.hold.set()
                    while not is_patient and not _says(log, "handlers are interrupted"):
                        worker.send_signal(number)
                        await asyncio.sleep(0.05)
                    assert await asyncio.to_thread(worker.wait, PATIENCE) == 0
                state = (await bench.job(issued.email_job)).state
                assert state is (JobState.SUCCEEDED if is_patient else JobState.READY)


async def metrics(port: int) -> dict[tuple[str, str], float]:
    """The values by metric name and the value of the single label."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_api_is_a_mode_of_the_same_program(database: Database, tmp_path: Path) -> None:
    port = free_port()
    given = {"database_url": database.url, "files_url": f"file:{tmp_path}/files", "api_port": port}
    with started(tmp_path / "api.log", "api", **given, download_link_secret="a secret of these tests") as process:

        async def is_up() -> bool:
            try:
                async with httpx.AsyncClient() as client:
                    return (await client.get(f"http://127.0.0.1:{port}/healthz")).is_success
            except httpx.HTTPError:
                return False

        await until(is_up)
        assert await stopped(process) == 0


@pytest.mark.parametrize(
    ("arguments", "given", "named"),
    [
        (["sideways"], {}, "sideways"),
        (["background", "--json"], {}, "--json"),
        (["tick", "--fast"], {}, "--fast"),
        (["tick"], {"outbox_batch_size": "many"}, "OUTBOX_BATCH_SIZE"),
        (["tick"], {"worker_tick_runners": "outbox,inbox"}, "WORKER_TICK_RUNNERS"),
        ([], {"worker_tick_shard_index": 1}, "WORKER_TICK_SHARD_COUNT"),
        ([], {"outbox_lease_duration_ms": 300, "outbox_lease_heartbeat_ms": 100}, "OUTBOX_LEASE_DURATION_MS"),
        ([], {"smtp_url": "mail.example.com"}, "SMTP_URL"),
        ([], {"files_url": "nowhere"}, "FILES_URL"),
        *(([mode], {"templates_folder": "/nowhere"}, "TEMPLATES_FOLDER: /nowhere is not a folder") for mode in MODES),
        *(([mode], {"files_url": f"file:{__file__}"}, f"FILES_URL: cannot make folder {__file__}") for mode in MODES),
    ],
)
def test_a_wrong_setting_is_explained_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    given: dict[str, object],
    named: str,
) -> None:
    set_only(monkeypatch, {**for_any_mode(tmp_path), **given})
    code = main(arguments)
    printed = capsys.readouterr()
    assert (code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert named in printed.err


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "memory:",
        "mysql://nobody:secret@127.0.0.1/nothing",
        "postgresql://nobody:secret@127.0.0.1:port/nothing",
        "postgresql://nobody:secret@127.0.0.1/nothing?sslmode=sideways",
        f"embedded:{__file__}",
    ],
)
def test_all_modes_report_an_invalid_database_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: str, url: str
) -> None:
    set_only(monkeypatch, {**for_any_mode(tmp_path), "database_url": url})
    assert main([mode]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("invoicing: DATABASE_URL: ")
    assert "secret" not in line
    assert "memory:" not in line


@pytest.mark.parametrize("mode", MODES)
def test_for_a_database_without_the_schema_the_error_names_the_command_to_run(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: str
) -> None:
    set_only(monkeypatch, {**for_any_mode(tmp_path), "database_url": database.url, "holdfast_schema": "nobody made it"})
    assert main([mode]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        'invoicing: DATABASE_URL: the schema "nobody made it" is missing;'
        " run `HOLDFAST_STORE=$DATABASE_URL holdfast migrate --schema 'nobody made it'`"
    )


@pytest.mark.parametrize("mode", ["background", "api"])
def test_the_log_has_the_format_of_holdfasts_variable(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: str
) -> None:
    given = {"database_url": database.url, "holdfast_schema": "nobody made it", "holdfast_log_format": "json"}
    set_only(monkeypatch, {**for_any_mode(tmp_path), **given, "worker_api_service_token": ""})
    assert main([mode]) == 2
    assert "WORKER_API_SERVICE_TOKEN" in json.loads(capsys.readouterr().err.splitlines()[0])["message"]


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_variable_of_holdfast_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, mode: str
) -> None:
    set_only(monkeypatch, {**for_any_mode(tmp_path), "holdfast_retention": "soon"})
    assert main([mode]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("invoicing: HOLDFAST_RETENTION: ")


def for_any_mode(folder: Path) -> dict[str, object]:
    """All the settings that any mode needs; there is no database at the address."""
    return {
        "database_url": "postgresql://nobody:secret@127.0.0.1:1/nothing",
        "files_url": f"file:{folder}/files",
        "download_link_secret": "a secret of these tests",
        "worker_api_service_token": TOKEN,
        "api_port": free_port(),
    }


def test_an_address_that_the_metrics_server_cannot_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Even while the store is unreachable, for which a worker would otherwise wait."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        usual = {"database_url": "postgresql://nobody@127.0.0.1:1/nothing", "files_url": f"file:{tmp_path}/files"}
        for given, said in (
            ({"worker_metrics_port": port}, f"WORKER_METRICS_PORT: cannot listen on 127.0.0.1:{port}: "),
            (
                {"worker_metrics_port": port, "worker_metrics_host": "no.such.host.invalid"},
                "WORKER_METRICS_HOST: no.such.host.invalid is not an address of this machine: ",
            ),
        ):
            set_only(monkeypatch, {**usual, **given})
            assert main([]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"invoicing: {said}")


async def test_the_metrics_are_served_at_the_configured_address() -> None:
    port = free_port()
    for host, other in (("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.1")):
        with WorkerMetrics().served(host, port):
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://{host}:{port}/metrics")).is_success
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"http://{other}:{port}/metrics")


def test_an_unreachable_store_ends_a_tick_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/nothing"
    set_only(monkeypatch, {"database_url": url, "files_url": f"file:{tmp_path}/files"})
    code = main(["tick"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    assert printed.err.startswith("invoicing: ")
    assert "secret" not in printed.err


def test_the_background_waits_for_an_unreachable_store_until_a_signal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/nothing"
    set_only(monkeypatch, {"database_url": url, "files_url": f"file:{tmp_path}/files"})
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert main(["background"]) == 0
    assert "secret" not in capfd.readouterr().err


def set_only(monkeypatch: pytest.MonkeyPatch, given: dict[str, object]) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name.upper(), str(value))


async def test_a_wrong_mode_ends_the_process_with_2() -> None:
    ended = await finished("sideways")
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)


def test_help_names_the_modes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    for mode in ("background", "tick", "api", "demo"):
        assert mode in shown
