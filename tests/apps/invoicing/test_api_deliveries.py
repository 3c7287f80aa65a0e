"""Mails are asked for once, however often that is said."""

import asyncio
from uuid import uuid4

from tests.apps.invoicing.conftest import Api
from tests.apps.invoicing.steps import jobs_of, rows
from tests.databases import Database

SEND = "invoice.email.requested"


async def test_asking_again_answers_with_the_same_delivery(api: Api, database: Database) -> None:
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


async def test_a_key_of_the_client_decides(api: Api, database: Database) -> None:
    invoice, other = (await api.client.issued())["id"], (await api.client.issued())["id"]

    async def ask(of: str, key: str, body: object = None, status: int = 202) -> str:
        headers = {"Idempotency-Key": key}
        answer = await api.client.post(f"/invoices/{of}/email", body, status=status, headers=headers)
        return str(answer["id"] if status == 202 else answer["error"])

    first = await ask(invoice, "monday")
    assert await ask(invoice, "monday") == first
    assert await ask(invoice, "tuesday") != first
    # A key that means something else already is a mistake, not a wish.
    assert await ask(other, "monday", status=409) == "IDEMPOTENCY_KEY_REUSED"
    assert await ask(invoice, "monday", {"recipient": "bo@example.com"}, status=409) == "IDEMPOTENCY_KEY_REUSED"
    for wrong in ("", "a b", "x" * 201):
        assert await ask(invoice, wrong, status=400) == "INVALID_IDEMPOTENCY_KEY"
    assert (await jobs_of(database.url)).count(SEND) == 2


async def test_what_cannot_be_sent_is_refused(api: Api) -> None:
    draft = await api.client.draft()
    assert (await api.client.post(f"/invoices/{draft}/email", status=409))["error"] == "INVOICE_IS_DRAFT"
    assert (await api.client.post(f"/invoices/{uuid4()}/email", status=404))["error"] == "INVOICE_NOT_FOUND"
    assert (await api.client.get(f"/deliveries/{uuid4()}", status=404))["error"] == "DELIVERY_NOT_FOUND"
    await api.client.post(f"/invoices/{draft}/issue", {"recipient": "bo@example.com"}, status=422)
    await api.client.post(f"/invoices/{draft}/issue")
    for recipient in ("bo", "bo@", "bo@example.com\nBcc: eve@example.com", "Bo <bo@example.com>", "bö@example.com"):
        body = {"recipient": recipient}
        assert (await api.client.post(f"/invoices/{draft}/email", body, status=422))["error"] == "INVALID_REQUEST"


async def test_a_delivery_whose_job_has_ended_without_a_word_has_failed(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    delivery = await api.client.post(f"/invoices/{invoice}/email", status=202)
    ((job,),) = await rows(database.url, "SELECT job_id FROM invoicing.email_delivery")
    assert await api.service.app.cancel([job]) == ["canceled"]
    again = await api.client.post(f"/invoices/{invoice}/email", status=202)
    assert (again["id"], again["status"], again["errorCode"]) == (delivery["id"], "FAILED", "JOB_CANCELED")
    assert await api.client.get(f"/deliveries/{delivery['id']}") == again


async def test_an_address_that_a_header_would_decode_is_refused(api: Api) -> None:
    invoice = (await api.client.issued())["id"]
    recipient = "=?utf-8?q?eve=40evil.example=2C_b?=@example.com"
    await api.client.post(f"/invoices/{invoice}/email", {"recipient": recipient}, status=422)
