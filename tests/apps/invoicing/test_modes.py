"""`python -m apps.invoicing` as others start it: its modes, what it prints, its exit codes and its metrics."""

import json
import os
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from apps.invoicing.__main__ import main
from apps.invoicing.runners import ENDPOINTS
from apps.invoicing.settings import BILLING, OUTBOX, REMINDERS
from tests.apps.invoicing.issuing import opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, mail_server
from tests.apps.invoicing.patience import until
from tests.apps.invoicing.processes import environment, finished, started, stopped
from tests.apps.invoicing.scheduler_api import TOKEN, SchedulerApi, scheduler_api
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


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


async def test_a_tick_does_what_is_due_reports_and_ends(database: Database, tmp_path: Path) -> None:
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
        assert outbox["counts"]["sent"] >= 2
        assert (reminders["processed"], reminders["counts"]) == (2, {"created": 2})
        assert document["state"] == "READY"
        assert set(api.calls) == set(ENDPOINTS.values())

        shown = await finished("tick", **{**given, "worker_api_service_token": "wrong"})
        heading, *rows = shown.stdout.splitlines()
        assert (shown.returncode, heading.split()) == (1, ["runner", "processed", "failed", "seconds", "notes"])
        assert [row.split()[0] for row in rows if not row.startswith(" ")] == [
            OUTBOX,
            REMINDERS,
            BILLING,
            "maintenance",
        ]
        assert "401" in shown.stdout


async def test_the_background_is_the_default_works_at_once_tells_its_metrics_and_stops(
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
                # A job that comes while the worker sleeps is heard of: its idle waits are longer than our patience.
                mails.refuse = None
                later = await bench.issue(3)
                await until(lambda: bench.is_final(later.email_job))

                async def is_told() -> bool:
                    return (await metrics(port))["invoicing_outbox_outcomes_total", "sent"] == 6

                # Two PDFs, three taxes, one mail.
                await until(is_told)
                told = await metrics(port)
                assert await stopped(worker) == 0
    # A template that is not there, its mail, and a mail that is refused.
    assert told["invoicing_outbox_outcomes_total", "failed"] == 3
    assert told["invoicing_worker_processed_total", OUTBOX] >= 9
    assert told["invoicing_worker_tick_seconds_count", OUTBOX] >= 2
    assert told["invoicing_worker_tick_processed_sum", OUTBOX] == told["invoicing_worker_processed_total", OUTBOX]
    assert told["invoicing_worker_ticks_total", ""] >= 2


async def metrics(port: int) -> dict[tuple[str, str], float]:
    """By name and the value of the one label."""
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
    with started(tmp_path / "api.log", "api", **given, download_link_secret="a secret") as process:

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
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    given: dict[str, object],
    named: str,
) -> None:
    usual = {"database_url": "postgresql://nobody:secret@127.0.0.1:1/nothing", "files_url": f"file:{tmp_path}/files"}
    set_only(monkeypatch, {**usual, **given})
    code = main(arguments)
    printed = capsys.readouterr()
    assert (code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert named in printed.err


def test_a_store_that_is_away_ends_a_tick_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"postgresql://nobody:secret@127.0.0.1:{free_port()}/nothing"
    set_only(monkeypatch, {"database_url": url, "files_url": f"file:{tmp_path}/files"})
    code = main(["tick"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    assert printed.err.startswith("invoicing: ")
    assert "secret" not in printed.err


def test_the_background_waits_for_a_store_that_is_away_until_a_signal(
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
