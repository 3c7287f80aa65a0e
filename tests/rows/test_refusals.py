"""A table may refuse a change with constraints and triggers that its mapping does not know. Other rows still work."""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from holdfast import Holdfast, Permanent, RunningJob
from holdfast.domain.job import JobState
from holdfast.store.contract import Rescued
from holdfast.store.rows.mapping import Rows, RowStates
from holdfast.types import WorkerSettings
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import LEASE, wants
from tests.worker.harness import until, working

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

MAIL = Rows(
    name="mail",
    table="mail",
    kind="work",
    payload_columns=("id", "recipient"),
    states=RowStates(column="status", ready="queued", running="sending", succeeded="sent", failed="failed"),
    attempt="tries",
    attempts=1,
    completed_at="sent_at",
    error_message="error",
)


@pytest.fixture
async def mail(place: Place) -> Place:
    """Mail whose table refuses the state `failed`, by a constraint over two columns that `check` cannot detect."""
    await place.connection.execute(
        """
        CREATE TABLE mail (
            id bigint PRIMARY KEY, recipient text NOT NULL, status varchar(20) NOT NULL DEFAULT 'queued',
            tries integer NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now() - interval '1 hour',
            sent_at timestamptz, error text,
            CONSTRAINT known_status CHECK (status <> 'failed' OR recipient = '')
        )
        """
    )
    await migrate(place.connection, MAIL)
    return place


async def add_mail(place: Place, number: int) -> None:
    await place.connection.execute(
        "INSERT INTO mail (id, recipient) SELECT number, 'secret-' || number FROM generate_series(1, $1) AS number",
        number,
    )


async def test_a_row_that_cannot_be_rescued_does_not_block_others(
    mail: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await add_mail(mail, 7)
    store = mail.rows(replace(MAIL, attempts=2))
    leased = {int(str(each.id)[-12:], 16): each.id for each in await store.claim(wants())}
    await mail.connection.execute("UPDATE mail SET tries = 2 WHERE id IN (2, 5)")
    await mail.clock.advance(LEASE)
    rescued = await store.rescue(10)
    assert rescued == [Rescued(leased[number], JobState.READY) for number in (1, 3, 4, 6, 7)]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert ["row=mail:2 " in caplog.text, "row=mail:5 " in caplog.text] == [True, True]
    assert "known_status" in caplog.text
    assert "secret" not in caplog.text
    assert await store.rescue(10) == []
    assert len(caplog.records) == 2


async def test_a_row_is_rescued_once_its_table_allows_it(mail: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_mail(mail, 1)
    store = mail.rows(MAIL)
    (leased,) = await store.claim(wants())
    await mail.clock.advance(LEASE)
    assert await store.rescue(10) == []
    await mail.connection.execute("ALTER TABLE mail DROP CONSTRAINT known_status")
    monkeypatch.setattr("holdfast.store.rescue.monotonic", lambda: float("inf"))
    assert await store.rescue(10) == [Rescued(leased.id, JobState.DEAD)]


@dataclass
class Mail:
    id: int
    recipient: str


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return all warnings except the lease keeper's: on a busy machine, a short lease is really renewed late."""
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name != "holdfast.lease_keeper"
    ]


async def test_refused_outcomes_are_logged_once_and_kept_until_the_table_accepts_them(
    mail: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await add_mail(mail, 4)
    app = Holdfast(mail.url)
    # Short, because the test waits for a renewal, but long enough for a busy machine to renew in time.
    app.rows(MAIL, lease="3s")
    ran: list[int] = []

    @app.handler("work")
    async def send(job: RunningJob[Mail]) -> None:
        ran.append(job.payload.id)
        if job.payload.id % 2:
            raise Permanent("BAD_ADDRESS", "no such address")

    async def statuses() -> list[str]:
        return [row["status"] for row in await mail.connection.fetch("SELECT status FROM mail ORDER BY id")]

    async def are_renewed() -> bool:
        sql = "SELECT min(locked_until) > $1 FROM mail WHERE status = 'sending'"
        return bool(await mail.connection.fetchval(sql, ends))

    async def are_kept() -> bool:
        return await statuses() == ["sending", "sent", "sending", "sent"]

    async def are_written() -> bool:
        return await statuses() == ["failed", "sent", "failed", "sent"]

    with caplog.at_level(logging.INFO):
        async with app, working(app, WorkerSettings(lease=timedelta(seconds=3))):
            await until(lambda: caplog.text.count("outcome refused, keeping it") == 2, "both refusals are told")
            await until(are_kept, "the others are written")
            ends = await mail.connection.fetchval("SELECT max(locked_until) FROM mail")
            await until(are_renewed, "their leases are renewed")
            await mail.connection.execute("ALTER TABLE mail DROP CONSTRAINT known_status")
            await until(are_written, "they are written as their handler left them")
    told = [record.getMessage() for record in warnings(caplog)]
    assert len([line for line in told if "outcome refused" in line and "row=mail:1" in line]) == 1
    assert len([line for line in told if "job is now a dead letter" in line]) == 2
    assert len(told) == 4
    assert "Traceback" not in caplog.text
    assert "secret" not in caplog.text
    assert sorted(ran) == [1, 2, 3, 4]
    reasons = await mail.connection.fetch("SELECT error FROM mail WHERE status = 'failed'")
    assert [row["error"] for row in reasons] == ["no such address"] * 2


async def test_a_table_changed_while_a_worker_runs_causes_one_warning_and_the_queue_continues(
    mail: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(mail.url)
    app.rows(MAIL, poll="20ms")
    done: list[object] = []

    @app.handler("work")
    async def send(job: RunningJob[dict[str, object]]) -> None:
        done.append(job.payload.get("recipient"))

    async def is_sent() -> bool:
        return bool(await mail.connection.fetchval("SELECT status = 'sent' FROM mail"))

    async with app, working(app, app.worker_settings(poll="20ms")):
        await add_mail(mail, 1)
        await until(is_sent, "the row's outcome is written")
        await mail.connection.execute("ALTER TABLE mail RENAME COLUMN tries TO attempts_made")
        await until(lambda: "runner failed, trying again" in caplog.text, "the runner fails")
        await app.enqueue("work", {"recipient": "job"})
        await until(lambda: "job" in done, "the queue's own job is done")
        await mail.connection.execute("ALTER TABLE mail RENAME COLUMN attempts_made TO tries")
        await until(lambda: "runner works again" in caplog.text, "the runner works again")
    told = warnings(caplog)
    assert [record.getMessage().partition("  ")[0] for record in told] == [
        "runner failed, trying again",
        "runner works again",
    ]
    assert not any(record.exc_info for record in told)
    assert "Traceback" not in caplog.text
