"""A mail that the server has accepted is recorded by any process that knows about it, and is not sent again."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from apps.invoicing import handlers
from apps.invoicing.tools import Tools
from holdfast import JobState
from tests.apps.invoicing.issuing import Bench, Issued, in_background, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.patience import until
from tests.databases import Database, refusing

pytestmark = [pytest.mark.postgres, pytest.mark.long]

TERMINATE = "PERFORM pg_terminate_backend(pg_backend_pid())"


async def refuse_records(bench: Bench, times: int, how: str) -> None:
    """Make the first `times` updates to SENT run the statement `how` instead."""
    await bench.tools.pool.execute(
        f"""
        CREATE SEQUENCE invoicing.tries;
        CREATE FUNCTION invoicing.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('invoicing.tries') <= {times} THEN
                {how};
            END IF;
            RETURN new;
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON invoicing.email_delivery FOR EACH ROW WHEN (new.status = 'SENT')
        EXECUTE FUNCTION invoicing.refuse();
        """
    )


async def tries(bench: Bench) -> int:
    row = await bench.row("SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS tries FROM invoicing.tries")
    return int(row["tries"])


async def is_sent_once(bench: Bench, mails: MailServer, issued: Issued) -> None:
    assert mails.message_ids == [issued.message_id]
    assert (await bench.delivery(issued))["status"] == "SENT"
    job = await bench.job(issued.email_job)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize(
    "how",
    [
        TERMINATE,
        "RAISE object_not_in_prerequisite_state",
        "RAISE cannot_connect_now",
        "RAISE read_only_sql_transaction",
        "RAISE disk_full",
        "RAISE division_by_zero",
    ],
)
async def test_recording_is_retried_until_it_succeeds(bench: Bench, mails: MailServer, how: str) -> None:
    issued = await bench.issue()
    await bench.work_off_but_mails()
    await refuse_records(bench, 5, how)
    await bench.work()
    await is_sent_once(bench, mails, issued)
    assert await tries(bench) == 6


async def test_a_silent_server_is_asked_again(bench: Bench, mails: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_ANSWER_SECONDS", 0.2)
    issued = await bench.issue()
    await bench.work_off_but_mails()
    await refuse_records(bench, 1, "PERFORM pg_sleep(2)")
    await bench.work()
    await is_sent_once(bench, mails, issued)
    # More than one try, so the handler did not wait for the first answer.
    assert await tries(bench) > 1


async def test_the_last_attempt_also_waits_for_a_database_that_refuses_connections(
    database: Database, mails: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(tools: Tools) -> object:
        nonlocal looks
        looks += 1
        return vars(tools)["pool"]

    async with opened_bench(
        worker_settings(database.url, tmp_path, smtp_url=mails.url, outbox_max_attempts=1)
    ) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        mails.accept_and_hold = True
        mails.hold.clear()
        async with in_background(bench):
            await until(lambda: len(mails.mails) == 1)
            with refusing(database.url):
                monkeypatch.setattr(Tools, "pool", property(counted), raising=False)
                mails.hold.set()
                # Each access is an attempt to write the record.
                await until(lambda: looks >= 6)
            await until(lambda: bench.is_final(issued.email_job))
        monkeypatch.undo()
        await is_sent_once(bench, mails, issued)


async def test_the_next_attempt_of_the_same_process_knows_that_it_was_accepted(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    given = {"smtp_url": mails.url, "worker_shutdown_timeout_ms": 100}
    async with opened_bench(worker_settings(database.url, tmp_path, **given)) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        await refuse_records(bench, 10**6, "RAISE disk_full")
        async with in_background(bench):

            async def is_being_recorded() -> bool:
                return await tries(bench) > 0

            await until(is_being_recorded)
        assert await bench.error_code(issued.email_job) == "INTERRUPTED"
        assert (await bench.delivery(issued))["status"] == "PENDING"
        await bench.tools.pool.execute("DROP TRIGGER refuse ON invoicing.email_delivery")
        # It does not need the PDF any more either.
        (tmp_path / "files" / issued.storage_key).unlink()
        await bench.work_off()
        assert mails.message_ids == [issued.message_id]
        assert (await bench.delivery(issued))["status"] == "SENT"
        assert (await bench.job(issued.email_job)).state is JobState.SUCCEEDED
        assert bench.tools.accepted == set()


async def test_a_worker_that_lost_its_lease_still_records_that_the_mail_was_accepted(
    bench: Bench, mails: MailServer
) -> None:
    """The worker that has the job now need not send the mail if it has not begun to."""
    issued = await bench.issue()
    await bench.work_off_but_mails()
    mails.accept_and_hold = True
    mails.hold.clear()
    working = asyncio.create_task(bench.work())
    await until(lambda: len(mails.mails) == 1)
    await bench.app.clock.advance(timedelta(minutes=10))
    assert [each.id for each in await bench.app.opened.store.rescue(10)] == [issued.email_job]
    mails.hold.set()
    await working
    assert (await bench.delivery(issued))["status"] == "SENT"
    assert bench.tools.accepted == set()
    await bench.app.clock.advance(timedelta(minutes=10))
    await bench.work_off()
    assert mails.message_ids == [issued.message_id]
    assert (await bench.job(issued.email_job)).state is JobState.SUCCEEDED
