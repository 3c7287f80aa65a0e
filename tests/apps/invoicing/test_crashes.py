"""Of three workers, one is killed while it renders and one while it mails. Everything is done and recorded once.

A mail that the server has accepted can be sent again by the worker that takes over, with the same Message-ID.
"""

from collections import Counter
from contextlib import ExitStack
from email.message import EmailMessage
from pathlib import Path

import pytest

from apps.invoicing.jobs import RENDER_PDF
from apps.invoicing.settings import OUTBOX, Settings
from holdfast import JobState
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.issuing import Bench, Issued, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, mail_server
from tests.apps.invoicing.patience import until
from tests.apps.invoicing.processes import started
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(600)]

_INVOICES, _WORKERS = 12, 3


def slow_templates(folder: Path) -> Path:
    """The service's templates, but each page takes a while to render."""
    templates = folder / "templates"
    templates.mkdir()
    for file in Settings.model_fields["templates_folder"].default.iterdir():
        (templates / file.name).write_bytes(file.read_bytes())
    busy = "#let _ = range(60000).map(number => calc.sin(number)).sum()\n"
    (templates / "slow.typ").write_text(busy + (templates / "invoice.typ").read_text())
    return templates


async def all_render(bench: Bench) -> bool:
    jobs = await bench.app.jobs.list(JobFilter(kind=RENDER_PDF.name, state=JobState.RUNNING), 100)
    return len({job.holder for job in jobs}) == _WORKERS


async def test_after_killed_workers_nothing_is_undone_or_done_twice(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails:
        variables = {
            "database_url": database.url,
            "files_url": f"file:{tmp_path}/files",
            "smtp_url": mails.url,
            "templates_folder": slow_templates(tmp_path),
            "worker_tick_runners": OUTBOX,
            "outbox_lease_duration_ms": 6000,
            "outbox_lease_heartbeat_ms": 1000,
        }
        mails.accept_and_hold = True
        mails.hold.clear()
        async with opened_bench(worker_settings(database.url, tmp_path)) as bench:
            logs = [tmp_path / f"worker-{number}.log" for number in range(_WORKERS)]
            with ExitStack() as ending:
                workers = [
                    ending.enter_context(
                        started(log, **variables, mail_from=f"Worker <worker-{number}@corely.example>")
                    )
                    for number, log in enumerate(logs)
                ]
                await until(lambda: all("worker started" in log.read_text() for log in logs))
                issued = [await bench.issue(number, template="slow") for number in range(_INVOICES)]
                await until(lambda: all_render(bench))
                workers[0].kill()
                # The server has accepted a mail from this worker, but the worker has not read the answer yet.
                await until(lambda: any(sender(mail) in (1, 2) for mail in mails.mails))
                killed = next(number for mail in mails.mails if (number := sender(mail)) in (1, 2))
                workers[killed].kill()
                mails.hold.set()
                await until(bench.are_all_final)
            await everything_is_done_once(bench, mails, issued, tmp_path)
            assert any([(await bench.job(each.render_job)).losses for each in issued])
    # The remaining worker resends each mail that the server had accepted from a worker that died before the answer.
    by_worker = Counter((sender(mail), str(mail["Message-ID"])) for mail in mails.mails)
    assert set(by_worker.values()) == {1}
    assert {message for worker, message in by_worker if worker not in (0, killed)} == {
        each.message_id for each in issued
    }


async def everything_is_done_once(bench: Bench, mails: MailServer, issued: list[Issued], folder: Path) -> None:
    for each in issued:
        document = await bench.document(each)
        content = await bench.tools.files.read(each.storage_key)
        assert (document["state"], document["bytes"]) == ("READY", len(content))
        assert (await bench.delivery(each))["status"] == "SENT"
    assert len(list((folder / "files" / "invoices").iterdir())) == len(issued)
    assert set(mails.message_ids) == {each.message_id for each in issued}


def sender(mail: EmailMessage) -> int:
    """The number of the worker that sent the mail."""
    return int(str(mail["From"]).split("worker-")[1][0])
