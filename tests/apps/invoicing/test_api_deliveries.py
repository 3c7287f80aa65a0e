"""A repeated request does not send a second mail. A failed mail can be requested again."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import JobState
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.conftest import Api
from tests.apps.invoicing.issuing import Bench
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.patience import until
from tests.apps.invoicing.steps import execute, jobs_of, rows
from tests.databases import Database

SEND = "invoice.email.requested"


async def test_a_repeated_request_returns_the_same_delivery(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    path = f"/invoices/{invoice}/email"
    responses = await asyncio.gather(*(api.client.post(path, status=202) for _ in range(10)))
    delivery = responses[0]
    assert responses == [delivery] * 10
    assert (delivery["recipient"], delivery["status"], delivery["purpose"]) == ("ann@example.com", "PENDING", "invoice")
    assert (await jobs_of(database.url)).count(SEND) == 1
    assert await rows(database.url, "SELECT idempotency_key FROM invoicing.email_delivery") == [
        (f"invoice:{invoice}:ann@example.com",)
    ]
    assert await api.client.get(f"/deliveries/{delivery['id']}") == delivery


async def test_another_recipient_is_another_delivery(api: Api, database: Database) -> None:
    invoice = (await api.client.issued(send_email=True))["id"]
    first = await api.client.post(f"/invoices/{invoice}/email", {}, status=202)
    other = await api.client.post(f"/invoices/{invoice}/email", {"recipient": "bo@example.com"}, status=202)
    assert (first["recipient"], other["recipient"]) == ("ann@example.com", "bo@example.com")
    assert (await jobs_of(database.url)).count(SEND) == 2


async def test_the_clients_key_identifies_the_delivery(api: Api, database: Database) -> None:
    invoice, other = (await api.client.issued())["id"], (await api.client.issued())["id"]

    async def ask(of: str, key: str, body: object = None, status: int = 202) -> str:
        headers = {"Idempotency-Key": key}
        answer = await api.client.post(f"/invoices/{of}/email", body, status=status, headers=headers)
        return str(answer["id"] if status == 202 else answer["error"])

    first = await ask(invoice, "monday")
    assert await ask(invoice, "monday") == first
    assert await ask(invoice, "tuesday") != first
    # Reusing a key for a different request is a mistake, so it is refused.
    assert await ask(other, "monday", status=409) == "IDEMPOTENCY_KEY_REUSED"
    assert await ask(invoice, "monday", {"recipient": "bo@example.com"}, status=409) == "IDEMPOTENCY_KEY_REUSED"
    for wrong in ("", "a b", "x" * 201):
        assert await ask(invoice, wrong, status=400) == "INVALID_IDEMPOTENCY_KEY"
    assert (await jobs_of(database.url)).count(SEND) == 2


async def test_a_mail_that_cannot_be_sent_is_refused(api: Api) -> None:
    draft = await api.client.draft()
    assert (await api.client.post(f"/invoices/{draft}/email", status=409))["error"] == "INVOICE_IS_DRAFT"
    assert (await api.client.post(f"/invoices/{uuid4()}/email", status=404))["error"] == "INVOICE_NOT_FOUND"
    assert (await api.client.get(f"/deliveries/{uuid4()}", status=404))["error"] == "DELIVERY_NOT_FOUND"
    await api.client.post(f"/invoices/{draft}/issue", {"recipient": "bo@example.com"}, status=422)
    await api.client.post(f"/invoices/{draft}/issue")
    for recipient in ("bo", "bo@", "bo@example.com\nBcc: eve@example.com", "Bo <bo@example.com>", "bö@example.com"):
        body = {"recipient": recipient}
        assert (await api.client.post(f"/invoices/{draft}/email", body, status=422))["error"] == "INVALID_REQUEST"


async def test_a_delivery_whose_job_ended_without_recording_it_has_failed(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    delivery = await api.client.post(f"/invoices/{invoice}/email", status=202)
    ((job,),) = await rows(database.url, "SELECT job_id FROM invoicing.email_delivery")
    assert await api.service.app.cancel([job]) == ["canceled"]
    failed = await api.client.get(f"/deliveries/{delivery['id']}")
    assert (failed["id"], failed["status"], failed["errorCode"]) == (delivery["id"], "FAILED", "JOB_CANCELED")
    # As if no request had read the delivery before the mail was requested again.
    await execute(database.url, "UPDATE invoicing.email_delivery SET status = 'PENDING', error_code = NULL")
    assert await api.client.post(f"/invoices/{invoice}/email", status=202) == delivery
    assert await waiting_mails(api) == [job]


async def waiting_mails(api: Api) -> list[UUID]:
    return [job.id for job in await api.service.app.jobs.list(JobFilter(kind=SEND, state=JobState.READY), limit=100)]


async def refused_once(api: Api, bench: Bench, mails: MailServer) -> Any:  # noqa: ANN401
    """A delivery that the mail server refused and would now accept."""
    invoice = (await api.client.issued(send_email=True))["id"]
    mails.refuse = "550 no such user"
    await bench.work_off()
    mails.refuse = None
    (failed,) = await rows(api.service.settings.database_url, "SELECT id, status FROM invoicing.email_delivery")
    assert failed[1] == "FAILED"
    delivery = await api.client.get(f"/deliveries/{failed[0]}")
    assert (delivery["status"], delivery["errorCode"], delivery["invoiceId"]) == ("FAILED", "MAIL_REFUSED", invoice)
    return delivery


@pytest.mark.parametrize(
    "damage",
    [
        None,
        "DELETE FROM holdfast.dead_letter",
        "UPDATE invoicing.email_delivery SET job_id = gen_random_uuid()",
        "UPDATE invoicing.email_delivery SET job_id = NULL",
    ],
)
async def test_many_requests_for_a_failed_mail_send_one_mail(
    api: Api, bench: Bench, mails: MailServer, database: Database, damage: str | None
) -> None:
    """Whether or not its job still exists."""
    failed = await refused_once(api, bench, mails)
    if damage is not None:
        await execute(database.url, damage)
    path = f"/invoices/{failed['invoiceId']}/email"
    answers = await asyncio.gather(*(api.client.post(path, status=202) for _ in range(20)))
    assert answers == [failed | {"status": "PENDING", "errorCode": None}] * 20
    assert await rows(database.url, "SELECT job_id FROM invoicing.email_delivery") == [
        (job,) for job in await waiting_mails(api)
    ]
    await bench.work_off()
    assert mails.message_ids == [failed["messageId"]]
    sent = await api.client.post(path, status=202)
    assert (sent["id"], sent["status"], await waiting_mails(api)) == (failed["id"], "SENT", [])


async def test_many_requests_while_a_worker_runs_send_one_mail(api: Api, bench: Bench, mails: MailServer) -> None:
    failed = await refused_once(api, bench, mails)
    path = f"/invoices/{failed['invoiceId']}/email"

    async def ask() -> None:
        for _ in range(5):
            await api.client.post(path, status=202)

    async def work() -> None:
        while not mails.mails:
            await bench.work()

    await asyncio.gather(work(), *(ask() for _ in range(8)))
    await bench.work_off()
    assert mails.message_ids == [failed["messageId"]]
    assert (await api.client.get(f"/deliveries/{failed['id']}"))["status"] == "SENT"


async def test_a_mail_that_fails_again_can_be_requested_again(api: Api, bench: Bench, mails: MailServer) -> None:
    failed = await refused_once(api, bench, mails)
    path = f"/invoices/{failed['invoiceId']}/email"
    mails.refuse = "550 still no such user"
    await api.client.post(path, status=202)
    await bench.work_off()
    assert await api.client.get(f"/deliveries/{failed['id']}") == failed
    mails.refuse = None
    await api.client.post(path, status=202)
    await bench.work_off()
    assert (await api.client.get(f"/deliveries/{failed['id']}"))["status"] == "SENT"


async def test_a_request_before_the_failed_job_has_ended_is_not_lost(
    api: Api, bench: Bench, mails: MailServer, database: Database
) -> None:
    """The worker has updated the delivery, but has not yet finished the job in the store."""
    invoice = (await api.client.issued())["id"]
    await bench.work_off()
    path = f"/invoices/{invoice}/email"
    delivery = await api.client.post(path, status=202)
    mails.hold.clear()
    working = asyncio.create_task(bench.work())
    await until(lambda: mails.at_once == 1)
    await execute(database.url, "UPDATE invoicing.email_delivery SET status = 'FAILED', error_code = 'MAIL_REFUSED'")
    assert (await api.client.get(f"/deliveries/{delivery['id']}"))["status"] == "FAILED"
    answer = await api.client.http.post(path)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    asking = asyncio.create_task(api.client.post(path, status=202))
    mails.hold.set()
    await working
    assert (await asking)["status"] == "SENT"
    assert mails.message_ids == [delivery["messageId"]]


async def test_a_delivery_that_a_person_retried_is_pending(api: Api, bench: Bench, mails: MailServer) -> None:
    failed = await refused_once(api, bench, mails)
    (job,) = [job.id for job in await bench.app.jobs.list(JobFilter(kind=SEND), limit=10)]
    assert await bench.app.retry([job]) == ["ready"]
    pending = failed | {"status": "PENDING", "errorCode": None}
    assert await api.client.get(f"/deliveries/{failed['id']}") == pending
    assert await api.client.post(f"/invoices/{failed['invoiceId']}/email", status=202) == pending
    await bench.work_off()
    assert mails.message_ids == [failed["messageId"]]


async def test_a_delivery_whose_job_is_gone_is_reported_as_failed(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    delivery = await api.client.post(f"/invoices/{invoice}/email", status=202)
    await execute(database.url, "UPDATE invoicing.email_delivery SET job_id = gen_random_uuid()")
    gone = await api.client.get(f"/deliveries/{delivery['id']}")
    assert (gone["status"], gone["errorCode"]) == ("FAILED", "JOB_GONE")


async def test_a_key_used_for_another_recipient_does_not_revive_a_delivery(
    api: Api, bench: Bench, mails: MailServer
) -> None:
    invoice = (await api.client.issued())["id"]
    headers = {"Idempotency-Key": "monday"}
    mails.refuse = "550 no such user"
    delivery = await api.client.post(f"/invoices/{invoice}/email", headers=headers, status=202)
    await bench.work_off()
    other = {"recipient": "bo@example.com"}
    await api.client.post(f"/invoices/{invoice}/email", other, headers=headers, status=409)
    assert (await api.client.get(f"/deliveries/{delivery['id']}"))["status"] == "FAILED"
    await api.client.post(f"/invoices/{invoice}/email", headers=headers, status=202)
    assert (await api.client.get(f"/deliveries/{delivery['id']}"))["status"] == "PENDING"


async def test_the_deliveries_of_an_invoice_are_listed_oldest_first(api: Api, database: Database) -> None:
    draft = await api.client.draft()
    assert await api.client.get(f"/invoices/{draft}/deliveries") == {"items": []}
    await api.client.issued(send_email=True)
    invoice = (await api.client.issued(send_email=True))["id"]
    path = f"/invoices/{invoice}/deliveries"
    (first,) = (await api.client.get(path))["items"]
    assert (first["invoiceId"], first["recipient"], first["status"]) == (invoice, "ann@example.com", "PENDING")
    others = [
        await api.client.post(f"/invoices/{invoice}/email", {"recipient": f"{name}@example.com"}, status=202)
        for name in ("zoe", "bo")
    ]
    assert (await api.client.get(path))["items"] == [first, *others]
    await api.service.app.clock.advance(timedelta(days=20))
    await api.client.scheduler("invoice-reminders")
    *before, reminder = (await api.client.get(path))["items"]
    assert (before, reminder["purpose"]) == ([first, *others], "reminder")

    # Each looks the same in the list as when it is requested alone.
    ((job,),) = await rows(database.url, "SELECT job_id FROM invoicing.email_delivery WHERE id = $1", first["id"])
    assert await api.service.app.cancel([job]) == ["canceled"]
    listed = (await api.client.get(path))["items"][0]
    assert (listed["status"], listed) == ("FAILED", await api.client.get(f"/deliveries/{first['id']}"))


async def test_an_address_with_an_encoded_word_is_refused(api: Api) -> None:
    invoice = (await api.client.issued())["id"]
    recipient = "=?utf-8?q?eve=40evil.example=2C_b?=@example.com"
    await api.client.post(f"/invoices/{invoice}/email", {"recipient": recipient}, status=422)
