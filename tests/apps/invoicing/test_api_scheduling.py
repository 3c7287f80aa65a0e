"""Reminders and monthly bills: when they are created, and that none is created twice."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from apps.invoicing.settings import Settings
from tests.apps.invoicing.conftest import TOKEN, Api, running_api
from tests.apps.invoicing.issuing import Bench
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.steps import LINE, execute, jobs_of, rows
from tests.databases import Database

REMINDERS, BILLING = "invoice-reminders", "classes-billing"
SEND = "invoice.email.requested"


async def today_is(api: Api, day: str) -> None:
    await api.service.app.clock.freeze(datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=UTC))


async def test_the_token_is_required(api: Api, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    await overdue(api, 1)
    for name in (REMINDERS, BILLING):
        # The token is checked first: without it, a caller learns nothing about the parameters either.
        path = f"/internal/scheduler/{name}?limit=none"
        for headers in ({}, {"x-service-token": ""}, {"x-service-token": TOKEN[:-1]}, {"x-service-token": "\xe4"}):
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            response = await api.client.http.post(path, headers=encoded)
            assert (response.status_code, response.json()["error"]) == (401, "UNAUTHORIZED")
        response = await api.client.http.post(path, headers={"x-service-token": TOKEN})
        assert (response.status_code, response.json()["error"]) == (422, "INVALID_REQUEST")
    assert await rows(settings.database_url, "SELECT count(*) FROM invoicing.reminder") == [(0,)]


async def test_an_api_that_has_no_token_refuses_every_call(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_api(settings.model_copy(update={"worker_api_service_token": None})) as api:
        assert "WORKER_API_SERVICE_TOKEN is not set" in caplog.text
        for token in ("", "None", TOKEN):
            headers = {"x-service-token": token}
            body = await api.client.post(f"/internal/scheduler/{REMINDERS}", status=401, headers=headers)
            assert body["error"] == "UNAUTHORIZED"


async def overdue(api: Api, number: int) -> list[str]:
    """Invoices that were due on 1 March 2026; today is the day after."""
    await today_is(api, "2026-02-15")
    customer = await api.client.customer()
    invoices = [(await api.client.issued(customer=customer, dueDays=14))["id"] for _ in range(number)]
    await today_is(api, "2026-03-02")
    return invoices


async def test_without_overdue_invoices_no_reminder_is_made(api: Api) -> None:
    await today_is(api, "2026-02-15")
    await api.client.issued(lines=[LINE | {"unitPrice": "0"}], dueDays=14)
    await today_is(api, "2026-03-30")
    assert (await api.client.scheduler(REMINDERS))["created"] == 0


async def test_each_level_is_made_once_when_it_is_due(api: Api, database: Database) -> None:
    (invoice,) = await overdue(api, 1)
    for day, level in (
        ("2026-03-01", None),
        ("2026-03-02", 1),
        ("2026-03-03", None),
        ("2026-03-07", None),
        ("2026-03-08", 2),
        ("2026-03-21", None),
        ("2026-03-22", 3),
        ("2026-09-01", None),
    ):
        await today_is(api, day)
        made = await api.client.scheduler(REMINDERS)
        assert (day, [item["level"] for item in made["items"]]) == (day, [] if level is None else [level])
        assert (await api.client.scheduler(REMINDERS)) == {"created": 0, "items": [], "more": False}
    kept = await rows(
        database.url,
        "SELECT reminder.invoice_id::text, level, purpose, idempotency_key, recipient FROM invoicing.reminder"
        " JOIN invoicing.email_delivery ON email_delivery.id = delivery_id ORDER BY level",
    )
    assert kept == [
        (invoice, level, "reminder", f"reminder:{invoice}:{level}", "ann@example.com") for level in (1, 2, 3)
    ]
    assert (await jobs_of(database.url)).count(SEND) == 3


async def test_a_customer_who_was_not_reminded_for_weeks_gets_one_mail(api: Api) -> None:
    await overdue(api, 1)
    await today_is(api, "2026-04-30")
    assert [item["level"] for item in (await api.client.scheduler(REMINDERS))["items"]] == [3]
    assert (await api.client.scheduler(REMINDERS))["created"] == 0


@pytest.mark.parametrize(
    ("days", "refused", "subjects"),
    [
        (("02", "08", "22"), (), ["Reminder", "Second reminder", "Final reminder"]),
        (("22",), (), ["Reminder"]),
        (("08", "22"), (), ["Reminder", "Final reminder"]),
        # A reminder that was not delivered does not count.
        (("02", "08", "22"), ("02",), ["Reminder", "Final reminder"]),
        (("02", "08", "22"), ("02", "08"), ["Reminder"]),
    ],
)
async def test_a_reminder_mentions_the_ones_sent_before(
    api: Api,
    bench: Bench,
    mails: MailServer,
    days: tuple[str, ...],
    refused: tuple[str, ...],
    subjects: list[str],
) -> None:
    await overdue(api, 1)
    for day in days:
        await today_is(api, f"2026-03-{day}")
        assert (await api.client.scheduler(REMINDERS))["created"] == 1
        mails.refuse = "550 no such user" if day in refused else None
        await bench.work_off()
    assert [str(mail["Subject"]).partition(":")[0] for mail in mails.mails] == subjects


async def test_paid_and_unissued_invoices_get_no_reminder(api: Api) -> None:
    (paid,) = await overdue(api, 1)
    await api.client.post(f"/invoices/{paid}/pay")
    await api.client.draft()
    assert (await api.client.scheduler(REMINDERS))["created"] == 0


async def test_a_clients_key_does_not_block_a_reminder(api: Api) -> None:
    (invoice,) = await overdue(api, 1)
    headers = {"Idempotency-Key": f"reminder:{invoice}:1"}
    await api.client.post(f"/invoices/{invoice}/email", status=202, headers=headers)
    assert (await api.client.scheduler(REMINDERS))["created"] == 1


async def in_pieces(api: Api, name: str, limit: int) -> list[dict[str, Any]]:
    """Call repeatedly until nothing is left, like the worker's runner."""
    items: list[dict[str, Any]] = []
    for _ in range(100):
        made = await api.client.scheduler(name, limit)
        assert made["created"] == len(made["items"]) <= limit
        items += made["items"]
        if not made["more"]:
            return items
    raise AssertionError("there is always more")


async def test_five_simultaneous_calls_make_each_reminder_once(api: Api, database: Database) -> None:
    invoices = await overdue(api, 9)
    pieces = await asyncio.gather(*(in_pieces(api, REMINDERS, 4) for _ in range(5)))
    made = [item["invoiceId"] for piece in pieces for item in piece]
    assert sorted(made) == sorted(invoices)
    assert (await jobs_of(database.url)).count(SEND) == 9


async def test_five_simultaneous_calls_make_each_bill_once(api: Api, database: Database) -> None:
    await today_is(api, "2026-03-01")
    enrolments = [(await api.client.enrolment(first="2026-02"))["id"] for _ in range(5)]
    pieces = await asyncio.gather(*(in_pieces(api, BILLING, 4) for _ in range(5)))
    made = [(item["enrolmentId"], item["month"]) for piece in pieces for item in piece]
    assert sorted(made) == sorted((each, month) for each in enrolments for month in ("2026-02", "2026-03"))
    numbers = [item["number"] for piece in pieces for item in piece]
    assert sorted(numbers) == [f"2026-{number:05}" for number in range(1, 11)]
    assert await rows(database.url, "SELECT count(*) FROM invoicing.invoice") == [(10,)]


async def test_a_month_is_billed_when_it_begins_with_a_complete_invoice(api: Api, database: Database) -> None:
    await today_is(api, "2026-02-28")
    enrolment = (await api.client.enrolment(first="2026-03", lastMonth="2026-04"))["id"]
    assert (await api.client.scheduler(BILLING))["created"] == 0
    await today_is(api, "2026-03-01")
    (bill,) = (await api.client.scheduler(BILLING))["items"]
    invoice = await api.client.get(f"/invoices/{bill['invoiceId']}")
    assert (invoice["status"], invoice["number"], invoice["total"]) == ("ISSUED", bill["number"], "85.60")
    assert [line["description"] for line in invoice["lines"]] == ["Violin, Bo, March 2026"]
    assert sorted(await jobs_of(database.url)) == [
        SEND,
        "invoice.pdf.render.requested",
        "invoice.tax.snapshot.requested",
    ]
    assert (await api.client.get(f"/enrolments/{enrolment}"))["billedUpTo"] == "2026-03"
    # The last month is billed, but no later one.
    await today_is(api, "2026-07-15")
    assert [item["month"] for item in (await api.client.scheduler(BILLING))["items"]] == ["2026-04"]
    assert (await api.client.scheduler(BILLING)) == {"created": 0, "items": [], "more": False}


async def test_a_mistyped_year_does_not_bill_every_month_since(api: Api) -> None:
    await today_is(api, "2026-03-10")
    customer = await api.client.customer()
    enrolment = {"customerId": customer, "className": "Violin", "student": "Bo", "currency": "EUR"} | {
        "monthlyPrice": "80", "taxRate": "7",
    }  # fmt: skip
    body = await api.client.post("/enrolments", enrolment | {"firstMonth": "2025-02"}, status=422)
    assert body["message"].startswith("firstMonth: is more than a year ago")
    await api.client.post("/enrolments", enrolment | {"firstMonth": "2025-03"}, status=201)
    assert (await api.client.scheduler(BILLING))["created"] == 13


async def test_an_ended_enrolment_is_no_longer_billed(api: Api) -> None:
    await today_is(api, "2026-03-10")
    enrolment = (await api.client.enrolment(first="2026-03"))["id"]
    assert (await api.client.scheduler(BILLING))["created"] == 1
    body = await api.client.post(f"/enrolments/{enrolment}/end", {"lastMonth": "2026-02"}, status=422)
    assert body["error"] == "INVALID_REQUEST"
    ended = await api.client.post(f"/enrolments/{enrolment}/end", {"lastMonth": "2026-03"})
    assert ended["lastMonth"] == "2026-03"
    await today_is(api, "2026-05-01")
    assert (await api.client.scheduler(BILLING))["created"] == 0


@pytest.mark.parametrize("table", ["reminder", "class_bill"])
async def test_an_interrupted_call_keeps_its_items_and_the_next_one_continues(
    api: Api, database: Database, table: str
) -> None:
    """Each item is a separate transaction."""
    name = REMINDERS if table == "reminder" else BILLING
    await overdue(api, 3)
    for _ in range(3):
        await api.client.enrolment(first="2026-03")
    refuse = "BEGIN IF (SELECT count(*) FROM invoicing.{0}) = 2 THEN RAISE deadlock_detected; END IF; RETURN new; END"
    await execute(
        database.url,
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${refuse.format(table)}$$;"
        f"CREATE TRIGGER refuse BEFORE INSERT ON invoicing.{table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    response = await api.client.http.post(f"/internal/scheduler/{name}", headers={"x-service-token": TOKEN})
    assert response.status_code == 503
    assert await rows(database.url, f"SELECT count(*) FROM invoicing.{table}") == [(2,)]
    await execute(database.url, f"DROP TRIGGER refuse ON invoicing.{table}; DROP FUNCTION refuse")
    assert (await api.client.scheduler(name))["created"] == 1
    assert (await api.client.scheduler(name))["created"] == 0
