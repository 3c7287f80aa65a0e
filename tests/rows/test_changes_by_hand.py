"""The application, a person or another mapping changes a row while a worker holds it: nothing is lost or undone."""

import pytest

from holdfast.domain.job import JobError, JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Rescued, Retrying
from tests.rows.conftest import Place
from tests.rows.tables import DISPATCH, OUTBOX, RECEIPTS, add_deliveries
from tests.store_contract.steps import ENDINGS, LEASE, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

SEND, RECEIPT = wants("push.send"), wants("push.receipt")


async def test_a_row_reset_by_hand_while_locked_is_rescued(outbox: Place) -> None:
    store = outbox.rows(OUTBOX)
    await store.enqueue([job()])
    (leased,) = await store.claim(wants())
    await outbox.connection.execute("""UPDATE platform."OutboxEvent" SET status = 'PENDING'""")
    assert await store.claim(wants()) == []
    found = await store.jobs.get(leased.id)
    assert found is not None
    assert found.state is JobState.RUNNING
    await outbox.clock.advance(LEASE)
    assert await store.rescue(10) == [Rescued(leased.id, JobState.READY)]
    (again,) = await store.claim(wants())
    assert (again.id, again.attempt) == (leased.id, 2)
    assert await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))]) == [Fenced.STALE]


async def test_the_verbs_of_one_mapping_ignore_rows_that_another_runs(
    deliveries: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.rows.store._LOCKED_SECONDS", 0)
    await add_deliveries(deliveries.connection, 1)
    dispatch, receipts = deliveries.rows(DISPATCH), deliveries.rows(RECEIPTS)
    (sent,) = await dispatch.claim(SEND)
    assert await receipts.cancel([sent.id]) == [Canceling.UNKNOWN]
    await dispatch.finish([Finish(sent.lease, Transition(Move.SUCCEED))])
    (leased,) = await receipts.claim(RECEIPT)
    assert await dispatch.retry([leased.id]) == [Retrying.LOCKED]
    assert await dispatch.cancel([leased.id]) == [Canceling.LOCKED]
    assert await receipts.finish([Finish(leased.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]


async def test_an_expired_lock_does_not_block_a_retry_of_a_final_row(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    (leased,) = await store.claim(SEND)
    await deliveries.connection.execute("UPDATE notification_deliveries SET status = 'failed'")
    await deliveries.clock.advance(LEASE)
    assert await store.retry([leased.id]) == [Retrying.READY]
    assert [each.id for each in await store.claim(SEND)] == [leased.id]


@pytest.mark.parametrize("ending", ["retry", "snooze", "release"])
async def test_a_row_withdrawn_by_the_application_does_not_return_to_the_queue(deliveries: Place, ending: str) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    (leased,) = await store.claim(SEND)
    await deliveries.connection.execute("UPDATE notification_deliveries SET status = 'withdrawn'")
    (renewed,) = await store.renew([Renewal(leased.lease, LEASE)])
    assert renewed.fenced is Fenced.STALE
    transition = ENDINGS.get(ending, Transition(Move.RELEASE))
    assert await store.finish([Finish(leased.lease, transition)]) == [Fenced.STALE]
    row = await deliveries.connection.fetchrow(
        "SELECT status, attempt_count, locked_by, locked_until, claim, last_error_code FROM notification_deliveries"
    )
    assert row is not None
    assert tuple(row) == ("withdrawn", 1, None, None, None, None)
    assert await store.claim(SEND) == []


async def test_a_success_is_recorded_even_if_the_application_has_withdrawn_the_row(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    (leased,) = await store.claim(SEND)
    await deliveries.connection.execute("UPDATE notification_deliveries SET status = 'withdrawn'")
    assert await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]
    assert await deliveries.connection.fetchval("SELECT status FROM notification_deliveries") == "sent"


async def test_a_row_withdrawn_by_the_application_is_not_rescued(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    await store.claim(SEND)
    await deliveries.connection.execute("UPDATE notification_deliveries SET status = 'withdrawn'")
    await deliveries.clock.advance(LEASE)
    assert await store.rescue(10) == []
    assert await deliveries.connection.fetchval("SELECT status FROM notification_deliveries") == "withdrawn"


@pytest.mark.parametrize(
    ("kept", "error"),
    [
        ('{"message": "too slow", "code": null}', JobError(code="", message="too slow")),
        ('"too slow"', JobError(code="", message="too slow")),
    ],
)
async def test_an_error_written_by_the_application_can_be_read(outbox: Place, kept: str, error: JobError) -> None:
    store, new = outbox.rows(OUTBOX), job()
    await store.enqueue([new])
    await outbox.connection.execute("""UPDATE platform."OutboxEvent" SET "lastError" = $1""", kept)
    found = await store.jobs.get(new.id)
    assert found is not None
    assert found.last_error == error
