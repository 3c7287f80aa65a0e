"""What the behavior suite does not cover: payloads, keys of every type, two mappings on one table, state values."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.domain.errors import InvalidInput, SchemaMismatch
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.job import JobError, JobState, Lease, LeasedJob
from holdfast.domain.json_text import Json, decode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Rescued, Retrying
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows, RowStates
from holdfast.store.rows.store import RowStore
from tests.databases import connected, impatient, opened_store
from tests.rows.conftest import Place
from tests.rows.tables import DISPATCH, OUTBOX, RECEIPTS, add_deliveries, migrate, statuses
from tests.store_contract.steps import BROKEN, ENDINGS, LEASE, START, Options, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

SEND, RECEIPT = wants("push.send"), wants("push.receipt")
PLAIN = Transition(Move.SUCCEED)


async def one(store: RowStore, kind: str = "push.send") -> LeasedJob:
    (leased,) = await store.claim(wants(kind, limit=1))
    return leased


async def finished(store: RowStore, lease: Lease, transition: Transition) -> Fenced:
    (answer,) = await store.finish([Finish(lease, transition)])
    return answer


async def values(place: Place, columns: str) -> tuple[object, ...]:
    """Return these columns of the only delivery."""
    row = await place.connection.fetchrow(f"SELECT {columns} FROM notification_deliveries")
    assert row is not None
    return tuple(row)


async def test_the_payload_is_the_result_of_the_query(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 2)
    leased = await deliveries.rows(DISPATCH).claim(SEND)
    assert [decode(each.payload) for each in leased] == [
        {"push_token": f"token-{number}", "title": f"tender {number}"} for number in (1, 2)
    ]


async def test_a_row_without_a_query_result_is_claimed_with_null(deliveries: Place) -> None:
    """Missing from the answer, it would be claimed and forgotten. With null, its handler's payload type refuses it."""
    await add_deliveries(deliveries.connection, 1)
    await deliveries.connection.execute("DELETE FROM notification_events")
    assert decode((await one(deliveries.rows(DISPATCH))).payload) is None


async def test_the_payload_can_be_some_columns_or_the_whole_row(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    chosen = replace(DISPATCH, payload_query="", payload_columns=("installation_id", "attempt_count"))
    leased = await one(deliveries.rows(chosen))
    assert decode(leased.payload) == {"installation_id": "device-1", "attempt_count": 1}
    await deliveries.rows(chosen).release([leased.lease])
    whole = decode((await one(deliveries.rows(replace(DISPATCH, payload_query="")))).payload)
    assert (whole["installation_id"], whole["status"]) == ("device-1", "pending")


async def test_a_job_includes_everything_the_table_has_columns_for(outbox: Place) -> None:
    store = outbox.rows(OUTBOX)
    whose: Options = {"tenant": "acme", "correlation_id": "c-1"}
    new = replace(job(**whose), payload=Json('{"n": 1}'), headers=Json('{"h": 2}'), priority=2, max_attempts=7)
    await store.enqueue([new])
    (leased,) = await store.claim(wants())
    assert (decode(leased.payload), decode(leased.headers or "")) == ({"n": 1}, {"h": 2})
    assert (leased.tenant, leased.correlation_id, leased.priority, leased.max_attempts) == ("acme", "c-1", 2, 7)


async def test_a_column_without_a_time_zone_is_utc_in_any_session(outbox: Place) -> None:
    async with opened_store(f"{outbox.url}&timezone=Asia/Tokyo") as elsewhere:
        store = RowStore(elsewhere, OUTBOX)
        await outbox.clock.freeze(START)
        await store.enqueue([job(delay=timedelta(hours=1))])
        assert (await store.look(["default"], ["work"])).due_in == timedelta(hours=1)
        assert (await outbox.rows(OUTBOX).look(["default"], ["work"])).due_in == timedelta(hours=1)
        await outbox.clock.advance(timedelta(hours=1))
        (leased,) = await store.claim(wants())
        assert leased.created_at == START
        assert await store.rescue(1) == []
        await outbox.clock.advance(LEASE)
        assert [each.id for each in await store.rescue(1)] == [leased.id]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (PLAIN, "sent"),
        (ENDINGS["retry"], "retryable"),
        (ENDINGS["snooze"], "pending"),
        (ENDINGS["fail"], "failed"),
        (ENDINGS["exhaust"], "failed"),
        (ENDINGS["cancel"], "failed"),
        (Transition(Move.FAIL, error=JobError(code="DEVICE_NOT_REGISTERED", message="gone")), "invalid"),
        (Transition(Move.RELEASE), "pending"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.move,
)
async def test_each_ending_has_its_own_value(deliveries: Place, ending: Transition, status: str) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    leased = await one(store)
    assert await finished(store, leased.lease, ending) is Fenced.DONE
    columns = "status, completed_at IS NOT NULL, locked_by, locked_at, locked_until, last_error_code"
    completes = status in ("failed", "invalid")
    assert await values(deliveries, columns) == (
        status, completes, None, None, None, ending.error.code if ending.error else None,
    )  # fmt: skip


async def test_releasing_a_retry_restores_its_previous_state(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    assert DISPATCH.states is not None
    busy = replace(DISPATCH.states, running="busy")
    store = deliveries.rows(replace(DISPATCH, states=busy))
    leased = await one(store)
    assert await values(deliveries, "status") == ("busy",)
    await store.release([leased.lease])
    assert await values(deliveries, "status") == ("pending",)
    await finished(store, (await one(store)).lease, Transition(Move.RETRY, error=BROKEN))
    await store.release([(await one(store)).lease])
    assert await values(deliveries, "status, attempt_count") == ("retryable", 1)


async def test_an_error_that_is_too_long_for_its_column_is_truncated(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    long = JobError(code="C" * 100, message="m" * 1000)
    assert await finished(store, (await one(store)).lease, Transition(Move.RETRY, error=long)) is Fenced.DONE
    assert await values(deliveries, "last_error_code, last_error_message") == ("C" * 40, "m" * 200)


async def test_without_a_count_of_losses_a_lost_lease_uses_up_an_attempt(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(replace(DISPATCH, attempts=2))
    for state in (JobState.READY, JobState.DEAD):
        leased = await one(store)
        await deliveries.clock.advance(LEASE)
        assert await store.rescue(10) == [Rescued(leased.id, state)]
    assert await values(deliveries, "status, attempt_count, last_error_code") == ("failed", 2, "LEASE_LOST")
    assert await store.claim(wants("push.send", suspects=True)) == await store.claim(SEND) == []


async def test_a_running_row_without_cancel_requests_is_canceled_and_its_worker_loses_it(
    deliveries: Place,
) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    leased = await one(store)
    assert await store.cancel([leased.id]) == [Canceling.CANCELED]
    (renewed,) = await store.renew([Renewal(leased.lease, LEASE)])
    assert renewed.fenced is Fenced.STALE
    assert await finished(store, leased.lease, PLAIN) is Fenced.STALE
    assert await values(deliveries, "status") == ("failed",)


async def test_a_second_mapping_continues_where_the_first_ended(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 3)
    dispatch, receipts = deliveries.rows(DISPATCH), deliveries.rows(RECEIPTS)
    assert await receipts.claim(RECEIPT) == []
    for leased in await dispatch.claim(SEND):
        await finished(dispatch, leased.lease, PLAIN)
    assert await dispatch.claim(SEND) == []
    ok, again, gone = await receipts.claim(RECEIPT)
    assert {each.attempt for each in (ok, again, gone)} == {1}
    await finished(receipts, ok.lease, PLAIN)
    await finished(receipts, again.lease, Transition(Move.FAIL, error=JobError(code="SEND_AGAIN")))
    await finished(receipts, gone.lease, Transition(Move.FAIL, error=JobError(code="DEVICE_NOT_REGISTERED")))
    assert await statuses(deliveries.connection) == {"ok": 1, "retryable": 1, "invalid": 1}
    (resent,) = await dispatch.claim(SEND)
    assert (resent.id, resent.attempt) == (again.id, 2)


async def test_a_retry_may_pass_the_row_to_another_mapping(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    assert RECEIPTS.states is not None
    states = replace(RECEIPTS.states, retry="retryable", codes={}, incomplete=())
    dispatch, receipts = deliveries.rows(DISPATCH), deliveries.rows(replace(RECEIPTS, states=states))
    await finished(dispatch, (await one(dispatch)).lease, PLAIN)
    leased = await one(receipts, "push.receipt")
    assert await finished(receipts, leased.lease, Transition(Move.RETRY, error=BROKEN)) is Fenced.DONE
    assert await receipts.jobs.get(leased.id) is None
    assert await receipts.claim(RECEIPT) == []
    assert (await one(dispatch)).id == leased.id


async def test_mappings_of_one_table_rescue_only_their_own_rows(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 2)
    dispatch, receipts = deliveries.rows(DISPATCH), deliveries.rows(RECEIPTS)
    sent, waiting = await dispatch.claim(SEND)
    await finished(dispatch, sent.lease, PLAIN)
    await receipts.claim(RECEIPT)
    await deliveries.clock.advance(LEASE)
    assert await receipts.rescue(10) == [Rescued(sent.id, JobState.READY)]
    assert await dispatch.rescue(10) == [Rescued(waiting.id, JobState.READY)]
    assert await values(deliveries, "min(status), max(status)") == ("pending", "sent")


async def test_mappings_racing_on_one_table_never_hold_the_same_row(deliveries: Place) -> None:
    """Both mappings may claim every row: a ready row of one is a ready row of the other, as after a careless setup."""
    await add_deliveries(deliveries.connection, 60)
    other = replace(RECEIPTS, states=DISPATCH.states)
    held: Counter[UUID] = Counter()
    sent: Counter[UUID] = Counter()

    async def drain(rows: Rows, kind: str) -> None:
        store = deliveries.rows(rows)
        while leased := await store.claim(wants(kind, limit=3, holder=uuid4())):
            held.update(each.id for each in leased)
            assert max(held.values()) == 1
            await asyncio.sleep(0)
            held.subtract(each.id for each in leased)
            sent.update(each.id for each in leased)
            while leased:
                answers = await store.finish([Finish(each.lease, PLAIN) for each in leased])
                assert set(answers) <= {Fenced.DONE, Fenced.LOCKED}
                # A claim that was too late for a row still locks it for a moment.
                leased = [each for each, answer in zip(leased, answers, strict=True) if answer is Fenced.LOCKED]

    await asyncio.gather(*(drain(rows, rows.kind or "") for rows in (DISPATCH, other) for _ in range(2)))
    assert (len(sent), set(sent.values())) == (60, {1})
    assert await statuses(deliveries.connection) == {"sent": 60}


@pytest.mark.parametrize("key", ["bigint", "integer", "text", "varchar(40)"])
async def test_keys_of_every_type_work(place: Place, key: str) -> None:
    rows = Rows(name="mails", table="mail", key="key", kind="work", completed_at="done_at", attempts=9, losses="losses",
                error_code="code")  # fmt: skip
    await place.connection.execute(f"CREATE TABLE mail (key {key} PRIMARY KEY, run_at timestamptz DEFAULT now())")
    await migrate(place.connection, rows)
    await place.connection.execute("INSERT INTO mail (key) VALUES ('7'), ('-1'), ('12')")
    store, person = place.rows(rows), place.rows(rows)
    leased = await store.claim(wants())
    assert len({each.id for each in leased}) == 3
    assert {decode(each.payload)["key"] for each in leased} in ({7, -1, 12}, {"7", "-1", "12"})
    renewed = await store.renew([Renewal(each.lease, LEASE) for each in leased])
    assert [answer.fenced for answer in renewed] == [Fenced.DONE] * 3
    done, failed, released = leased
    assert await finished(store, done.lease, PLAIN) is Fenced.DONE
    assert await finished(store, done.lease, PLAIN) is Fenced.ALREADY
    assert await finished(store, failed.lease, ENDINGS["fail"]) is Fenced.DONE
    assert await store.release([released.lease]) == [Fenced.DONE]
    shown = [await person.jobs.get(each.id) for each in leased]
    assert [each.state for each in shown if each] == [JobState.SUCCEEDED, JobState.FAILED, JobState.READY]
    assert await person.retry([failed.id, uuid4()]) == [Retrying.READY, Retrying.UNKNOWN]
    assert await person.cancel([released.id, done.id, uuid4()]) == [
        Canceling.CANCELED, Canceling.FINAL, Canceling.UNKNOWN,
    ]  # fmt: skip
    assert [each.id for each in await store.claim(wants())] == [failed.id]
    with pytest.raises(InvalidInput, match="your own transaction"):
        await store.enqueue([job()])


async def test_names_with_quotes_capitals_and_spaces_work(place: Place) -> None:
    odd = 'O\'Hara "x" %s; --{0}'
    rows = Rows(
        name="odd", table=(odd, "Ta.ble"), key=f"k {odd}", kind_column=f"kind {odd}", run_at=(f"r {odd}", f"c {odd}"),
        attempt=f"a {odd}", locked_by=f"b {odd}", locked_until=f"u {odd}", claim=f"h {odd}", fence=f"f {odd}",
        losses=f"l {odd}", payload=f"p {odd}", order=(f"-c {odd}", f"k {odd}"), error_code=f"e {odd}",
        states=RowStates(column=f"s {odd}", ready=("it's", "a\\b"), retry="a\\b", succeeded='"', failed="$$"),
    )  # fmt: skip
    quoted = odd.replace('"', '""')
    await place.connection.execute(
        f"""
        CREATE SCHEMA "{quoted}";
        CREATE TABLE "{quoted}"."Ta.ble" ("k {quoted}" uuid PRIMARY KEY, "kind {quoted}" text, "p {quoted}" jsonb,
            "c {quoted}" timestamptz NOT NULL DEFAULT now(), "s {quoted}" text)
        """
    )
    for statement in re.split(r";$", rows.migration_sql(), flags=re.MULTILINE):
        if statement.strip():
            await place.connection.execute(statement)
    assert await check_rows(place.store, rows) == []
    store = place.rows(rows)
    await store.enqueue([job(payload=Json('{"a": "b"}'))])
    (leased,) = await store.claim(wants())
    assert await finished(store, leased.lease, Transition(Move.RETRY, error=BROKEN)) is Fenced.DONE
    (again,) = await store.claim(wants())
    assert (decode(again.payload), again.attempt) == ({"a": "b"}, 2)
    statement = FinishInTransaction((await store.table.sql()).finish_in).statement(again.lease, None)
    with psycopg.connect(place.url) as blocking:
        statement.execute_on(blocking)
    found = await store.jobs.get(again.id)
    assert found is not None
    assert found.state is JobState.SUCCEEDED


async def test_data_without_a_column_is_refused(deliveries: Place, outbox: Place) -> None:
    rows = replace(DISPATCH, kind="work", payload="details", payload_query="")
    refused: list[Options] = [{"tenant": "acme"}, {"priority": 1}, {"max_attempts": 2}, {"key": "a"}, {"queue": "mail"}]
    for options in refused:
        with pytest.raises(InvalidInput, match=f"no place for the {next(iter(options))}"):
            await deliveries.rows(rows).enqueue([job(**options)])
    with pytest.raises(InvalidInput, match="no place for the kind"):
        await deliveries.rows(rows).enqueue([job(kind="other")])


async def test_a_row_locked_by_the_application_is_skipped_without_waiting(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 2)
    async with opened_store(impatient(deliveries.url, 150)) as hasty:
        store = RowStore(hasty, DISPATCH)
        async with connected(deliveries.url) as application, application.transaction():
            await application.execute(
                "UPDATE notification_deliveries SET details = '{}' WHERE notification_event_id = 1"
            )
            (leased,) = await store.claim(SEND)
            assert decode(leased.payload)["push_token"] == "token-2"
        assert decode((await one(store)).payload)["push_token"] == "token-1"


async def test_a_foreign_key_to_a_row_does_not_make_a_claim_skip_it(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    await deliveries.connection.execute("CREATE TABLE note (delivery uuid REFERENCES notification_deliveries)")
    store = deliveries.rows(DISPATCH)
    async with connected(deliveries.url) as application, application.transaction():
        await application.execute("INSERT INTO note SELECT id FROM notification_deliveries")
        leased = await one(store)
        assert await finished(store, leased.lease, PLAIN) is Fenced.DONE


async def test_a_table_changed_while_the_store_runs_is_reported_with_the_mappings_name(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    store = deliveries.rows(DISPATCH)
    await deliveries.connection.execute("ALTER TABLE notification_deliveries RENAME COLUMN fence TO fence_was")
    with pytest.raises(SchemaMismatch, match=r"rows 'dispatch'.*fence.*holdfast rows check"):
        await store.claim(SEND)
    await deliveries.connection.execute("ALTER TABLE notification_deliveries RENAME COLUMN fence_was TO fence")
    leased = await one(store)
    await deliveries.connection.execute("ALTER TABLE notification_deliveries ADD CHECK (status <> 'sent') NOT VALID")
    with pytest.raises(InvalidInput, match="rows 'dispatch': the table refused"):
        await finished(store, leased.lease, PLAIN)
