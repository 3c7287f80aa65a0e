"""However long a page takes, the worker, the tick and the job keep their limits, and no process is left behind."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.invoicing import rendering
from apps.invoicing.jobs import RENDER_PDF
from apps.invoicing.rendering import RendererDied, Typesetters, render
from apps.invoicing.settings import BILLING, OUTBOX, REMINDERS
from holdfast import JobState
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.issuing import in_background, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.patience import PATIENCE, until
from tests.apps.invoicing.processes import started
from tests.apps.invoicing.stuck_page import STUCK, StuckPage
from tests.apps.invoicing.test_rendering import FOLDER, INVOICE
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

_LIMIT_MS = 1_500
_SOON_SECONDS = 20.0
"""Far longer than the limit and the shutdown of a process, and far shorter than forever."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[StuckPage]:
    page = StuckPage(tmp_path)
    yield page
    page.close()


def variables(database: Database, mails: MailServer, page: StuckPage, folder: Path) -> dict[str, object]:
    return {
        "database_url": database.url,
        "files_url": f"file:{folder}/files",
        "smtp_url": mails.url,
        "templates_folder": page.templates,
    }


def children(pid: int) -> list[int]:
    """Only the processes that render pages, because the process of the test has others."""
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in started if b"typesetting" in Path(f"/proc/{child}/cmdline").read_bytes()]


def only_child(pid: int) -> int:
    (child,) = children(pid)
    return child


async def test_a_stopping_worker_waits_for_a_page_only_until_its_limit(
    database: Database, mails: MailServer, page: StuckPage, tmp_path: Path
) -> None:
    given = variables(database, mails, page, tmp_path) | {"worker_shutdown_timeout_ms": _LIMIT_MS}
    async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
        issued = await bench.issue(template=STUCK)
        with started(tmp_path / "worker.log", worker_tick_runners=OUTBOX, **given) as worker:
            await until(page.has_begun)
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, _SOON_SECONDS) == 0
        await until(page.is_gone)
        assert await bench.error_code(issued.render_job) == "INTERRUPTED"
        assert (await bench.job(issued.render_job)).state is JobState.READY


async def test_a_tick_waits_for_a_page_only_until_its_limit_and_reports_skipped_schedulers(
    database: Database, mails: MailServer, page: StuckPage, tmp_path: Path
) -> None:
    given = variables(database, mails, page, tmp_path)
    limits = {"worker_tick_overall_max_ms": _LIMIT_MS, "worker_tick_runner_max_ms": _LIMIT_MS}
    log = tmp_path / "tick.log"
    async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
        issued = await bench.issue(template=STUCK)
        with started(log, "tick", "--json", **given, **limits) as tick:
            await until(page.has_begun)
            assert await asyncio.to_thread(tick.wait, _SOON_SECONDS) == 1
        await until(page.is_gone)
        assert await bench.error_code(issued.render_job) == "INTERRUPTED"
    report = json.loads(log.read_text().splitlines()[-1])
    skipped = {each["runner"]: each["skipped"] for each in report["runners"]}
    assert report["ok"] is False
    assert {skipped[name] for name in (REMINDERS, BILLING)} == {"the tick's budget is spent"}


async def test_a_page_process_ends_when_its_worker_is_killed(
    database: Database, mails: MailServer, page: StuckPage, tmp_path: Path
) -> None:
    given = variables(database, mails, page, tmp_path)
    async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
        await bench.issue(template=STUCK)
        with started(tmp_path / "worker.log", worker_tick_runners=OUTBOX, **given) as worker:
            await until(page.has_begun)
            worker.kill()
            await until(page.is_gone)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_all_processes_of_a_worker_lets_its_page_finish(
    database: Database, mails: MailServer, page: StuckPage, tmp_path: Path, number: signal.Signals
) -> None:
    """Supervisors and terminals signal the whole process group."""
    given = variables(database, mails, page, tmp_path)
    log = tmp_path / "worker.log"
    async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
        issued = await bench.issue(template=STUCK)
        with started(log, worker_tick_runners=OUTBOX, **given) as worker:
            await until(page.has_begun)
            os.kill(only_child(worker.pid), number)
            worker.send_signal(number)
            await until(lambda: "worker is stopping" in log.read_text())
            page.let_go()
            assert await asyncio.to_thread(worker.wait, PATIENCE) == 0
        assert (await bench.document(issued))["state"] == "READY"


async def test_a_page_whose_job_is_over_frees_its_place_for_the_next(
    database: Database, mails: MailServer, page: StuckPage, tmp_path: Path
) -> None:
    given = {
        "smtp_url": mails.url,
        "templates_folder": page.templates,
        "pdf_render_concurrency": 1,
        "outbox_lease_heartbeat_ms": 300,
    }
    async with opened_bench(worker_settings(database.url, tmp_path, **given)) as bench:
        stuck = await bench.issue(1, template=STUCK)
        async with in_background(bench):
            await until(page.has_begun)
            later = await bench.issue(2)
            await bench.app.cancel([stuck.render_job])
            await until(page.is_gone)
            await until(lambda: bench.is_final(later.render_job))
        assert len(await bench.app.jobs.list(JobFilter(kind=RENDER_PDF.name, state=JobState.SUCCEEDED), 10)) == 1


async def test_a_dead_process_is_not_blamed_on_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for how, told in (("os.kill(os.getpid(), 9)", "was killed by SIGKILL"), ("os._exit(7)", "ended with code 7")):
        program = tmp_path / "dies.py"
        program.write_text(f"import os\n{how}\n")
        monkeypatch.setattr(rendering, "_PROGRAM", program)
        with pytest.raises(RendererDied, match=told):
            await render(INVOICE, FOLDER, Typesetters())


async def test_a_process_renders_page_after_page_and_is_replaced_when_it_dies() -> None:
    typesetters = Typesetters()
    try:
        first = await render(INVOICE, FOLDER, typesetters)
        child = only_child(os.getpid())
        assert await render(INVOICE, FOLDER, typesetters) == first
        assert only_child(os.getpid()) == child
        os.kill(child, signal.SIGKILL)
        assert await render(INVOICE, FOLDER, typesetters) == first
    finally:
        await typesetters.close()
    assert not children(os.getpid())
