"""A trigger refuses to change some rows, or waits for the application. The other rows are renewed and released."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, RunningJob
from holdfast.domain.job import LeasedJob
from holdfast.domain.json_text import decode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.rows.access import RowLocked, RowRefused
from holdfast.store.rows.mapping import Rows, RowStates
from tests.databases import connected
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import LEASE, wants
from tests.worker.harness import renewing, until, working

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

INVOICES = Rows(
    name="invoices",
    table="invoice",
    kind="work",
    payload_columns=("id",),
    states=RowStates(column="status", ready="new", running="running", succeeded="sent", failed="failed"),
    attempt="attempts",
    attempts=3,
    losses="losses",
    suspicion="suspicion",
    crash_limit="crash_limit",
    error="error",
)
TABLES = """
CREATE TABLE customer (id bigint PRIMARY KEY, changed_at timestamptz);
CREATE TABLE invoice (
    id bigint PRIMARY KEY, customer bigint REFERENCES customer, archived boolean NOT NULL DEFAULT false,
    status text NOT NULL DEFAULT 'new', attempts integer NOT NULL DEFAULT 0, losses integer NOT NULL DEFAULT 0,
    suspicion integer NOT NULL DEFAULT 0, crash_limit integer NOT NULL DEFAULT 0, error jsonb,
    run_at timestamptz NOT NULL DEFAULT now() - interval '1 hour'
);
INSERT INTO customer SELECT generate_series(1, 8);
INSERT INTO invoice (id, customer) SELECT number, number FROM generate_series(1, 8) AS number;
CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.archived THEN RAISE EXCEPTION 'archived invoices are immutable'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER frozen BEFORE UPDATE ON invoice FOR EACH ROW EXECUTE FUNCTION frozen();
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE customer SET changed_at = now() WHERE id = NEW.customer;
    RETURN NULL;
END $$;
CREATE TRIGGER touch AFTER UPDATE ON invoice FOR EACH ROW EXECUTE FUNCTION touch();
"""
LOCK = "SELECT FROM customer WHERE id = 3 FOR UPDATE"


@pytest.fixture
async def invoices(place: Place) -> Place:
    await place.connection.execute(TABLES)
    await migrate(place.connection, INVOICES)
    return place


async def archive(place: Place, number: int) -> None:
    await place.connection.execute("UPDATE invoice SET archived = true WHERE id = $1", number)


async def locks(place: Place) -> dict[int, Any]:
    rows = await place.connection.fetch("SELECT id, locked_until FROM invoice WHERE locked_until IS NOT NULL")
    return {row["id"]: row["locked_until"] for row in rows}


def number_of(leased: LeasedJob) -> int:
    number: int = decode(leased.payload)["id"]
    return number


@dataclass
class Invoice:
    id: int


async def test_rows_run_on_although_their_table_refuses_to_change_one(
    invoices: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(invoices.url)
    app.rows(INVOICES)
    let_go = asyncio.Event()
    started: list[int] = []

    @app.handler("work")
    async def work(job: RunningJob[Invoice]) -> None:
        started.append(job.payload.id)
        if job.payload.id == 3:
            await archive(invoices, 3)
        else:
            await let_go.wait()

    async def statuses() -> list[str]:
        return [row["status"] for row in await invoices.connection.fetch("SELECT status FROM invoice ORDER BY id")]

    async def are_renewed() -> bool:
        now = await locks(invoices)
        return all(now[number] > before[number] for number in before if number != 3)

    async def are_sent() -> bool:
        return await statuses() == ["sent", "sent", "running", *["sent"] * 5]

    async with app, working(app, renewing(concurrency=8)):
        await until(lambda: len(started) == 8, "all run")
        await until(lambda: "outcome refused" in caplog.text, "one outcome is refused")
        await until(lambda: "refuses to renew" in caplog.text, "its renewal is refused")
        before = await locks(invoices)
        await until(are_renewed, "the others are renewed")
        let_go.set()
        await until(are_sent, "the others are done")
        await invoices.connection.execute("ALTER TABLE invoice DISABLE TRIGGER frozen")
    assert "cannot reach the store" not in caplog.text
    assert caplog.text.count("refuses to renew") == 1
    assert "row=invoices:3" in caplog.text
    assert len(started) == 8


async def test_rows_run_on_although_a_trigger_of_one_waits_for_the_application(
    invoices: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(invoices.url)
    app.rows(INVOICES)
    let_go = asyncio.Event()
    started: list[int] = []

    @app.handler("work")
    async def work(job: RunningJob[Invoice]) -> None:
        started.append(job.payload.id)
        await let_go.wait()

    async def are_renewed() -> bool:
        now = await locks(invoices)
        return all(now[number] > before[number] for number in before if number != 3)

    async def count_sent(number: int) -> bool:
        return bool(
            await invoices.connection.fetchval("SELECT count(*) = $1 FROM invoice WHERE status = 'sent'", number)
        )

    async with app, working(app, renewing(concurrency=8)):
        await until(lambda: len(started) == 8, "all run")
        async with connected(invoices.url) as other:
            async with other.transaction():
                await other.execute(LOCK)
                before = await locks(invoices)
                await until(are_renewed, "the others are renewed")
                let_go.set()
                await until(lambda: count_sent(7), "the others are done")
                assert not await count_sent(8)
            await until(lambda: count_sent(8), "the last one is done after that transaction")
    assert [record.getMessage() for record in caplog.records if "renewal is late" not in record.getMessage()] == []
    assert len(started) == 8


async def test_released_rows_are_free_although_others_cannot_be_changed(invoices: Place) -> None:
    store = invoices.rows(INVOICES)
    leased = await store.claim(wants())
    await archive(invoices, 5)
    async with connected(invoices.url) as other, other.transaction():
        await other.execute(LOCK)
        answers = await store.release([each.lease for each in leased])
    expected = [Fenced.LOCKED if number_of(each) in (3, 5) else Fenced.DONE for each in leased]
    assert answers == expected
    assert set(await locks(invoices)) == {3, 5}


async def test_a_renewal_says_which_kind_of_change_is_impossible(invoices: Place) -> None:
    store = invoices.rows(INVOICES)
    leased = {number_of(each): Renewal(each.lease, LEASE) for each in await store.claim(wants())}
    await archive(invoices, 5)
    with pytest.raises(RowRefused, match="archived invoices are immutable"):
        await store.renew(list(leased.values()))
    async with connected(invoices.url) as other, other.transaction():
        await other.execute(LOCK)
        with pytest.raises(RowLocked):
            await store.renew([leased[2], leased[3]])
        (answer,) = await store.renew([leased[3]])
        assert answer.fenced is Fenced.LOCKED
        assert await store.finish([Finish(leased[3].lease, Transition(Move.SUCCEED))]) == [Fenced.LOCKED]


async def test_losses_are_taken_back_although_one_row_cannot_be_changed(invoices: Place) -> None:
    store = invoices.rows(INVOICES)
    leased = await store.claim(wants())
    await invoices.clock.advance(LEASE)
    assert len(await store.rescue(10)) == 8
    await archive(invoices, 5)
    async with connected(invoices.url) as other, other.transaction():
        await other.execute(LOCK)
        await store.absolve([each.lease for each in leased])
    rows = await invoices.connection.fetch("SELECT id FROM invoice WHERE suspicion > 0 ORDER BY id")
    assert [row["id"] for row in rows] == [3, 5]


async def test_other_rows_are_claimed_and_rescued_while_a_trigger_waits_for_the_application(
    invoices: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = invoices.rows(replace(INVOICES, suspicion=None, crash_limit=None))
    async with connected(invoices.url) as other, other.transaction():
        await other.execute(LOCK)
        leased = await store.claim(wants())
        assert {number_of(each) for each in leased} == {1, 2, 4, 5, 6, 7, 8}
        assert await store.claim(wants()) == []
    monkeypatch.setattr("holdfast.store.rows.claim._LOCKED_SECONDS", 0.0)
    store = invoices.rows(replace(INVOICES, suspicion=None, crash_limit=None))
    assert [number_of(each) for each in await store.claim(wants())] == [3]
    await invoices.clock.advance(LEASE + timedelta(seconds=1))
    async with connected(invoices.url) as other, other.transaction():
        await other.execute(LOCK)
        assert len(await store.rescue(10)) == 7
    assert len(await store.rescue(10)) == 1
    assert caplog.records == []
