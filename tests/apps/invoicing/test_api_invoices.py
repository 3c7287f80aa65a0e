"""Customers, drafts, and what happens in the one transaction that issues an invoice."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast import Holdfast
from tests.apps.invoicing.conftest import Api
from tests.apps.invoicing.steps import LINE, execute, jobs_of, rows
from tests.databases import Database, connected
from tests.worker.harness import until

RENDER, SEND, SNAPSHOT = (
    "invoice.pdf.render.requested",
    "invoice.email.requested",
    "invoice.tax.snapshot.requested",
)


async def freeze(api: Api, year: int, month: int, day: int) -> None:
    """Fix the service's current date, for every process that uses this store."""
    await api.service.app.clock.freeze(datetime(year, month, day, 12, tzinfo=UTC))


async def test_a_customer_is_returned_as_it_was_created(api: Api) -> None:
    body = {"name": "  Ann & Bo Ltd ", "email": "ann@example.com", "address": "1 Main St\r\nSpringfield"}
    added = await api.client.post("/customers", body, status=201)
    assert (added["name"], added["address"]) == ("Ann & Bo Ltd", "1 Main St\nSpringfield")
    assert await api.client.get(f"/customers/{added['id']}") == added


async def test_a_draft_has_totals_but_no_number_and_no_jobs(api: Api, database: Database) -> None:
    invoice = await api.client.get(f"/invoices/{await api.client.draft(note='Thank you', dueDays=30)}")
    assert (invoice["status"], invoice["number"], invoice["issuedOn"], invoice["dueOn"]) == ("DRAFT", None, None, None)
    assert (invoice["net"], invoice["tax"], invoice["total"]) == ("100.05", "19.01", "119.06")
    assert (invoice["note"], invoice["dueDays"], invoice["currency"]) == ("Thank you", 30, "EUR")
    assert invoice["lines"] == [LINE | {"position": 1, "net": "100.05"}]
    assert await jobs_of(database.url) == []


@pytest.mark.parametrize(
    ("lines", "net", "taxes", "total"),
    [
        # Half a cent is rounded up, in lines and in taxes.
        ([("0.5", "0.01", "0")], "0.01", [("0", "0.01", "0.00")], "0.01"),
        ([("1", "0.50", "1")], "0.50", [("1", "0.50", "0.01")], "0.51"),
        # Tax is rounded once per rate: 3 × 0.03 is 0.09, of which 19 % are 0.02; rounded per line it would be 0.03.
        ([("1", "0.03", "19")] * 3, "0.09", [("19", "0.09", "0.02")], "0.11"),
        # Several rates, one of them written in two ways; totals are ordered by rate.
        (
            [("2", "10.00", "19"), ("1", "9.99", "7"), ("3", "1.11", "19.00"), ("1", "5", "0")],
            "38.32",
            [("0", "5.00", "0.00"), ("7", "9.99", "0.70"), ("19", "23.33", "4.43")],
            "43.45",
        ),
        # A discount.
        ([("1", "100.00", "7.5"), ("1", "-33.33", "7.5")], "66.67", [("7.5", "66.67", "5.00")], "71.67"),
        # More digits than a float can hold.
        ([("1", "999999999999.99", "0")], "999999999999.99", [("0", "999999999999.99", "0.00")], "999999999999.99"),
    ],
)
async def test_amounts_are_exact(
    api: Api, lines: list[tuple[str, str, str]], net: str, taxes: list[tuple[str, str, str]], total: str
) -> None:
    written = [
        {"description": "Work", "quantity": quantity, "unitPrice": price, "taxRate": rate}
        for quantity, price, rate in lines
    ]
    invoice = await api.client.get(f"/invoices/{await api.client.draft(lines=written)}")
    assert (invoice["net"], invoice["total"]) == (net, total)
    assert [(each["rate"], each["net"], each["tax"]) for each in invoice["taxes"]] == taxes


async def test_issuing_assigns_number_dates_document_and_jobs(api: Api, database: Database) -> None:
    await freeze(api, 2026, 1, 20)
    customer = await api.client.customer("bo@example.com")
    invoice = await api.client.issued(customer=customer, send_email=True, dueDays=14)
    assert (invoice["status"], invoice["number"]) == ("ISSUED", "2026-00001")
    assert (invoice["issuedOn"], invoice["dueOn"]) == ("2026-01-20", "2026-02-03")
    assert await jobs_of(database.url) == [SEND, RENDER, SNAPSHOT]
    ((document, job, state, file_state, key),) = await rows(
        database.url,
        "SELECT document.id, job_id, document.state, file.state, storage_key FROM platform.document"
        " JOIN platform.file ON file.id = file_id",
    )
    assert (state, file_state, key) == ("PENDING", "PENDING", f"invoices/{invoice['id']}.pdf")
    render = await api.service.app.jobs.get(job)
    assert render is not None
    assert (render.kind, render.key, render.payload) == (RENDER, str(document), {"document_id": str(document)})
    ((delivery, delivery_key, recipient, message_id),) = await rows(
        database.url, "SELECT id, idempotency_key, recipient, message_id FROM invoicing.email_delivery"
    )
    assert (delivery_key, recipient) == (f"invoice:{invoice['id']}:bo@example.com", "bo@example.com")
    assert message_id == f"<{delivery}@corely.example>"
    keys = await rows(database.url, "SELECT kind, key FROM holdfast.job WHERE kind <> $1 ORDER BY kind", RENDER)
    assert keys == [(SEND, str(delivery)), (SNAPSHOT, invoice["id"])]


async def test_numbers_restart_each_year_and_outgrow_their_leading_zeros(api: Api, database: Database) -> None:
    await freeze(api, 2026, 12, 31)
    assert (await api.client.issued())["number"] == "2026-00001"
    await freeze(api, 2027, 1, 1)
    assert (await api.client.issued())["number"] == "2027-00001"
    await execute(database.url, "UPDATE invoicing.number_series SET last = 99999 WHERE year = 2027")
    assert (await api.client.issued())["number"] == "2027-100000"


async def test_numbers_have_no_gaps_when_many_invoices_are_issued_at_once(api: Api, database: Database) -> None:
    await freeze(api, 2026, 5, 1)
    customer = await api.client.customer()
    drafts = [await api.client.draft(customer=customer) for _ in range(12)]
    # Each is issued twice at the same time, and half of them cannot be issued at all.
    unknown = [str(uuid4()) for _ in drafts]
    responses = await asyncio.gather(
        *(api.client.http.post(f"/invoices/{invoice}/issue") for invoice in [*drafts, *drafts, *unknown])
    )
    assert sorted(response.status_code for response in responses) == [200] * 12 + [404] * 12 + [409] * 12
    numbers = [response.json()["number"] for response in responses if response.status_code == 200]
    assert sorted(numbers) == [f"2026-{number:05}" for number in range(1, 13)]
    assert await jobs_of(database.url) == [RENDER] * 12 + [SNAPSHOT] * 12


async def test_a_transaction_that_is_killed_before_its_commit_leaves_nothing(api: Api, database: Database) -> None:
    await freeze(api, 2026, 5, 1)
    assert (await api.client.issued())["number"] == "2026-00001"
    invoice = await api.client.draft()
    before = await jobs_of(database.url)

    async def everything_is_written() -> list[tuple[object, ...]]:
        """The number is written last, and here that write has to wait."""
        return await rows(
            database.url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query LIKE '%number_series%'",
        )

    async with connected(database.url) as other, asyncio.TaskGroup() as group, other.transaction():
        await other.execute("UPDATE invoicing.number_series SET last = last")
        issuing = group.create_task(api.client.http.post(f"/invoices/{invoice}/issue", json={"sendEmail": True}))
        await until(everything_is_written, "the issue waits for its number")
        response = await issuing
    assert (response.status_code, response.json()["error"]) == (503, "UNAVAILABLE")
    assert response.headers["Retry-After"] == "1"
    assert (await api.client.get(f"/invoices/{invoice}"))["status"] == "DRAFT"
    assert await jobs_of(database.url) == before
    for table in ("platform.document", "platform.file", "invoicing.email_delivery"):
        assert await rows(database.url, f"SELECT count(*) FROM {table}") == [(0 if "email" in table else 1,)]
    assert (await api.client.post(f"/invoices/{invoice}/issue"))["number"] == "2026-00002"


async def test_only_an_issued_invoice_can_be_paid_and_only_once(api: Api) -> None:
    invoice = await api.client.draft()
    assert (await api.client.post(f"/invoices/{invoice}/pay", status=409))["error"] == "INVOICE_IS_DRAFT"
    await api.client.post(f"/invoices/{invoice}/issue")
    assert (await api.client.post(f"/invoices/{invoice}/issue", status=409))["error"] == "INVOICE_IS_ISSUED"
    assert (await api.client.post(f"/invoices/{invoice}/pay"))["status"] == "PAID"
    assert (await api.client.post(f"/invoices/{invoice}/pay", status=409))["error"] == "INVOICE_IS_PAID"


async def test_invoices_are_listed_in_pages_newest_first(api: Api) -> None:
    customer, other = await api.client.customer(), await api.client.customer()
    made = [await api.client.draft(customer=customer) for _ in range(5)]
    await api.client.draft(customer=other)
    await api.client.post(f"/invoices/{made[0]}/issue")

    seen: list[str] = []
    page = await api.client.get(f"/invoices?customerId={customer}&limit=2")
    while page["next"] is not None:
        seen += [item["id"] for item in page["items"]]
        page = await api.client.get(f"/invoices?customerId={customer}&limit=2&after={page['next']}")
    seen += [item["id"] for item in page["items"]]
    assert seen == made[::-1]
    # The page after the last one is empty; an unknown cursor is an error.
    assert await api.client.get(f"/invoices?customerId={customer}&after={made[0]}") == {"items": [], "next": None}
    unknown = uuid4()
    problem = await api.client.get(f"/invoices?customerId={customer}&after={unknown}", status=422)
    assert problem == {"error": "INVALID_REQUEST", "message": f"after: no invoice has the id {unknown}"}
    issued = await api.client.get("/invoices?status=ISSUED")
    assert [item["id"] for item in issued["items"]] == [made[0]]


async def test_today_is_the_stores_date(api: Api) -> None:
    async with Holdfast(api.service.settings.database_url) as elsewhere:
        await elsewhere.clock.advance(timedelta(days=400))
        expected = (await elsewhere.clock.now()).date()
    assert (await api.client.issued())["issuedOn"] == expected.isoformat()
