"""The lease keeper's rules as a step function: no clock, no thread, no store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import cast
from uuid import uuid4

import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.handlers import make_handler
from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.store.contract import Fenced, Renewal, Renewed
from holdfast.worker.held import HeldJob, Interruption
from holdfast.worker.lease_keeper import ANSWERED, GRACE_SECONDS, KeeperRules, LeaseKeeper
from tests.worker.harness import ReleasesNothing

LEASE = 30.0
THIRD = LEASE / 3
STOP = LEASE * 5 / 6
CLAIMED = 1000.0
LOCKED = 0.25
"""How soon the renewal of a locked lease is retried."""


async def _nothing(job: object) -> None:
    """A handler."""


_FENCES = count(1)


def held_job(
    *, timeout: str = "1h", extend: float = LEASE, started: float | None = CLAIMED, claimed: float = CLAIMED
) -> HeldJob:
    now = datetime.now(UTC)
    job = LeasedJob(
        lease=Lease(uuid4(), next(_FENCES), uuid4()),
        kind="do",
        queue="default",
        priority=5,
        payload=Json("{}"),
        headers=None,
        tenant="",
        correlation_id="",
        attempt=1,
        losses=0,
        max_attempts=None,
        created_at=now,
    )
    handler = make_handler("do", _nothing, timeout=timeout)
    held = HeldJob(job, handler, extend, claimed, cast(asyncio.AbstractEventLoop, None))
    held.started = started
    return held


def keeping(*held: HeldJob) -> KeeperRules:
    rules = KeeperRules()
    rules.watch(held)
    return rules


def answer(
    rules: KeeperRules, at: float, fenced: Fenced, *, cancel_requested: bool = False
) -> list[tuple[HeldJob, Interruption]]:
    """Send the renewals due at that time, and give all of them the same answer."""
    renewals = rules.to_renew(at)
    answers = [Renewed(renewal.lease, fenced, cancel_requested) for renewal in renewals.values()]
    return [(stop.held, stop.why) for stop in rules.learn(at, renewals, answers)]


def due(rules: KeeperRules, at: float) -> list[Renewal]:
    return list(rules.to_renew(at).values())


def leases(renewals: Iterable[Renewal]) -> list[Lease]:
    return [renewal.lease for renewal in renewals]


def test_a_lease_is_renewed_after_a_third_of_its_length() -> None:
    held = held_job()
    rules = keeping(held)
    assert due(rules, CLAIMED + THIRD - 0.1) == []
    assert due(rules, CLAIMED + THIRD) == [Renewal(held.job.lease, timedelta(seconds=LEASE))]
    assert answer(rules, CLAIMED + THIRD, Fenced.DONE) == []
    assert due(rules, CLAIMED + 2 * THIRD - 0.1) == []
    assert leases(due(rules, CLAIMED + 2 * THIRD)) == [held.job.lease]


def test_an_unanswered_renewal_is_sent_again_at_once() -> None:
    held = held_job()
    rules = keeping(held)
    due(rules, CLAIMED + THIRD)
    assert leases(due(rules, CLAIMED + THIRD + 0.1)) == [held.job.lease]


def test_the_next_turn_is_when_the_first_renewal_is_due() -> None:
    early, late = held_job(), held_job(claimed=CLAIMED + 1)
    rules = keeping(late, early)
    assert rules.next_renewal(CLAIMED) == pytest.approx(THIRD)
    assert rules.next_renewal(CLAIMED + THIRD + 5) == 0
    assert answer(rules, CLAIMED + THIRD, Fenced.DONE) == []
    assert rules.next_renewal(CLAIMED + THIRD) == pytest.approx(1), "of the other one"
    assert KeeperRules().next_renewal(CLAIMED) == float("inf")


def test_a_lost_lease_causes_no_further_turn() -> None:
    rules = keeping(held_job())
    answer(rules, CLAIMED + THIRD, Fenced.STALE)
    assert rules.next_renewal(CLAIMED + LEASE) == float("inf")


def test_a_silent_server_is_noticed_within_half_a_lease() -> None:
    rules = keeping(held_job())
    sent_after = rules.next_renewal(CLAIMED)
    assert due(rules, CLAIMED + sent_after)
    assert sent_after + LEASE * ANSWERED < LEASE / 2


def test_each_lease_is_renewed_by_its_own_length() -> None:
    short, long = held_job(extend=3), held_job(extend=300)
    rules = keeping(short, long)
    assert due(rules, CLAIMED + 1) == [Renewal(short.job.lease, timedelta(seconds=3))]
    assert rules.shortest_lease(30) == 3
    assert KeeperRules().shortest_lease(30) == 30


def test_a_handler_is_stopped_before_its_unrenewed_lease_ends() -> None:
    held = held_job()
    rules = keeping(held)
    assert rules.to_stop(CLAIMED + STOP - 0.1) == []
    (stop,) = rules.to_stop(CLAIMED + STOP)
    assert (stop.held, stop.why) == (held, Interruption.UNRENEWED)
    assert rules.to_stop(CLAIMED + STOP + 0.1) == [], "told once"


def test_a_renewal_counts_from_when_it_was_sent_and_not_from_its_answer() -> None:
    held = held_job()
    rules = keeping(held)
    assert answer(rules, CLAIMED + THIRD, Fenced.DONE) == []
    assert rules.to_stop(CLAIMED + THIRD + STOP - 0.1) == []
    assert len(rules.to_stop(CLAIMED + THIRD + STOP)) == 1


def test_the_lease_of_a_job_that_waits_for_a_slot_is_renewed_too() -> None:
    held = held_job(started=None, timeout="1s")
    rules = keeping(held)
    assert leases(due(rules, CLAIMED + 1000)) == [held.job.lease]
    assert [stop.held for stop in rules.to_stop(CLAIMED + STOP)] == [held]


def test_the_renewal_of_a_locked_lease_is_retried_soon_and_does_not_extend_it() -> None:
    held = held_job()
    rules = keeping(held)
    assert answer(rules, CLAIMED + THIRD, Fenced.LOCKED) == []
    assert rules.next_renewal(CLAIMED + THIRD) == LOCKED
    assert due(rules, CLAIMED + THIRD + LOCKED - 0.01) == []
    assert leases(due(rules, CLAIMED + THIRD + LOCKED)) == [held.job.lease]
    assert held.safe_until == CLAIMED + LEASE
    assert answer(rules, CLAIMED + STOP - 0.1, Fenced.LOCKED) == []
    assert rules.to_stop(CLAIMED + STOP - 0.1) == []
    assert [stop.why for stop in rules.to_stop(CLAIMED + STOP)] == [Interruption.UNRENEWED]


def test_a_lease_locked_past_its_end_by_its_handlers_transaction_is_not_lost() -> None:
    held = held_job()
    rules = keeping(held)
    held.finishing()
    at = CLAIMED + THIRD
    while at < CLAIMED + 3 * LEASE:
        assert answer(rules, at, Fenced.LOCKED) == []
        assert rules.to_stop(at + LOCKED) == []
        assert rules.latest_gap(at) == 0, "which is no reason to warn"
        assert rules.next_renewal(at) == pytest.approx(LOCKED if at < CLAIMED + LEASE else LOCKED / 5)
        at += LOCKED
    assert held.safe_until == CLAIMED + LEASE
    assert answer(rules, at, Fenced.DONE) == [], "the transaction was rolled back"
    assert held.safe_until == at + LEASE


def test_the_handler_of_a_transaction_that_rolled_back_too_late_is_stopped() -> None:
    held = held_job()
    rules = keeping(held)
    held.finishing()
    assert answer(rules, CLAIMED + LEASE + 1, Fenced.LOCKED) == []
    assert answer(rules, CLAIMED + LEASE + 2, Fenced.STALE) == [(held, Interruption.LEASE_LOST)]


def test_a_locked_lease_without_further_answers_is_stopped_eventually() -> None:
    held = held_job()
    rules = keeping(held)
    held.finishing()
    answer(rules, CLAIMED + STOP, Fenced.LOCKED)
    assert rules.to_stop(CLAIMED + STOP + LEASE / 4 - 0.1) == []
    assert [stop.why for stop in rules.to_stop(CLAIMED + STOP + LEASE / 4)] == [Interruption.UNRENEWED]


def test_a_job_that_is_already_finished_is_left_alone() -> None:
    held = held_job()
    rules = keeping(held)
    assert answer(rules, CLAIMED + THIRD, Fenced.ALREADY) == []
    assert due(rules, CLAIMED + LEASE) == []
    assert rules.to_stop(CLAIMED + LEASE) == []


def test_a_stale_lease_stops_its_handler_and_is_no_longer_renewed() -> None:
    held, other = held_job(), held_job()
    rules = keeping(held, other)
    renewals = rules.to_renew(CLAIMED + THIRD)
    answers = [Renewed(held.job.lease, Fenced.STALE), Renewed(other.job.lease, Fenced.DONE)]
    (stop,) = rules.learn(CLAIMED + THIRD, renewals, answers)
    assert (stop.held, stop.why) == (held, Interruption.LEASE_LOST)
    assert leases(due(rules, CLAIMED + 2 * THIRD)) == [other.job.lease]
    assert rules.to_stop(CLAIMED + STOP) == []


def test_a_cancel_request_stops_the_handler_while_its_lease_is_kept() -> None:
    held = held_job()
    rules = keeping(held)
    assert answer(rules, CLAIMED + THIRD, Fenced.DONE, cancel_requested=True) == [(held, Interruption.CANCELED)]
    assert answer(rules, CLAIMED + 2 * THIRD, Fenced.DONE, cancel_requested=True) == [], "told once"
    assert leases(due(rules, CLAIMED + 3 * THIRD)) == [held.job.lease]


def test_a_lease_is_not_renewed_when_the_event_loop_missed_its_handlers_timeout() -> None:
    held = held_job(timeout="60s")
    rules = keeping(held)
    limit = CLAIMED + 60 + GRACE_SECONDS
    assert leases(due(rules, limit)) == [held.job.lease]
    assert due(rules, limit + 0.1) == []
    assert rules.latest_gap(limit + 0.1) == 0, "which is no reason to warn"
    held.settled = True
    assert leases(due(rules, limit + 0.1)) == [held.job.lease], "its outcome is still to be written"


def test_the_lease_of_a_handler_told_to_stop_is_renewed_until_it_ends() -> None:
    held = held_job(timeout="60s")
    rules = keeping(held)
    held.interruption = Interruption.TIMEOUT
    assert leases(due(rules, CLAIMED + 60 + 10 * GRACE_SECONDS)) == [held.job.lease]


def test_the_lease_of_a_thread_is_renewed_until_it_ends_even_if_the_event_loop_is_blocked() -> None:
    held = held_job(timeout="60s")
    rules, late = keeping(held), CLAIMED + 60 + 10 * GRACE_SECONDS
    held.thread = Future()
    assert leases(due(rules, late)) == [held.job.lease]
    held.thread.set_result(None)
    assert due(rules, late) == []


def test_a_handler_still_running_after_a_stop_is_told_once_of_its_lost_lease() -> None:
    held = held_job()
    rules = keeping(held)
    assert answer(rules, CLAIMED + THIRD, Fenced.DONE, cancel_requested=True) == [(held, Interruption.CANCELED)]
    assert answer(rules, CLAIMED + 2 * THIRD, Fenced.STALE) == [(held, Interruption.LEASE_LOST)]
    assert due(rules, CLAIMED + 3 * THIRD) == []


def test_a_handler_that_has_ended_is_not_stopped() -> None:
    held = held_job()
    held.settled = True
    rules = keeping(held)
    assert rules.to_stop(CLAIMED + LEASE) == []
    assert answer(rules, CLAIMED + LEASE, Fenced.STALE) == []


def test_an_answer_about_a_job_that_is_no_longer_held_is_ignored() -> None:
    held = held_job()
    rules = keeping(held)
    renewals = rules.to_renew(CLAIMED + THIRD)
    rules.watch([])
    assert rules.learn(CLAIMED + THIRD, renewals, [Renewed(held.job.lease, Fenced.STALE)]) == []


def test_progress_is_written_before_the_next_renewal_but_at_most_once_a_second() -> None:
    held = held_job()
    rules = keeping(held)
    held.progress = Json("1")
    assert [renewal.progress for renewal in due(rules, CLAIMED + 0.1)] == ["1"]
    assert answer(rules, CLAIMED + 0.1, Fenced.DONE) == []
    held.progress = Json("2")
    held.progress = Json("3")
    assert due(rules, CLAIMED + 1.0) == []
    assert [renewal.progress for renewal in due(rules, CLAIMED + 1.1)] == ["3"]
    assert answer(rules, CLAIMED + 1.1, Fenced.DONE) == []
    assert due(rules, CLAIMED + 5) == [], "nothing new to write"


def test_progress_that_was_not_written_is_sent_again() -> None:
    held = held_job()
    rules = keeping(held)
    held.progress = Json("1")
    assert answer(rules, CLAIMED + 0.1, Fenced.LOCKED) == []
    assert [renewal.progress for renewal in due(rules, CLAIMED + 0.2)] == ["1"]


@pytest.mark.parametrize(("at", "share"), [(CLAIMED + THIRD, 1 / 3), (CLAIMED + LEASE, 1.0)])
def test_the_gap_is_the_share_of_the_lease_elapsed_since_its_renewal(at: float, share: float) -> None:
    assert keeping(held_job(extend=300), held_job()).latest_gap(at) == pytest.approx(share)


@pytest.mark.parametrize("error", [RuntimeError("unexpected"), StoreUnavailable("gone")])
def test_the_keeper_reconnects_after_any_error(error: Exception) -> None:
    held = held_job(started=None, claimed=lease_now() - LEASE / 2)
    renewed, connections = threading.Event(), 0

    class FailsOnce(ReleasesNothing):
        async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
            if connections == 1:
                raise error
            renewed.set()
            return [Renewed(renewal.lease, Fenced.DONE) for renewal in renewals]

    @asynccontextmanager
    async def connect() -> AsyncIterator[FailsOnce]:
        nonlocal connections
        connections += 1
        yield FailsOnce()

    keeper = LeaseKeeper(lambda: [held], connect, default_lease=LEASE)
    keeper.start()
    try:
        assert renewed.wait(10)
        assert connections == 2
    finally:
        keeper.stop()
        keeper.join(5)


def test_an_unanswered_renewal_is_repeated_on_another_connection_within_half_a_lease() -> None:
    # Long enough to leave a busy machine two seconds to spare.
    lease = LEASE
    held = held_job(started=None, extend=lease, claimed=lease_now() - lease / 3)
    sent: list[float] = []
    renewed = threading.Event()

    class SilentAtFirst(ReleasesNothing):
        async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
            sent.append(lease_now())
            if len(sent) == 1:
                await asyncio.Event().wait()
            renewed.set()
            return [Renewed(renewal.lease, Fenced.DONE) for renewal in renewals]

    @asynccontextmanager
    async def connect() -> AsyncIterator[SilentAtFirst]:
        yield SilentAtFirst()

    keeper = LeaseKeeper(lambda: [held], connect, default_lease=lease)
    keeper.start()
    try:
        assert renewed.wait(10)
    finally:
        keeper.stop()
        keeper.join(5)
    # A third of the lease had elapsed when the first one was sent.
    assert sent[1] - sent[0] < lease / 2 - lease / 3


def test_a_store_that_accepts_connections_but_renews_nothing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """For example a read-only server. One line per attempt would drown out all others."""
    held = held_job(claimed=lease_now() - LEASE / 2, started=None)
    refused, is_refusing, renewed = 0, True, threading.Event()

    class ReadOnly(ReleasesNothing):
        async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
            nonlocal refused, is_refusing
            if is_refusing:
                refused += 1
                is_refusing = refused < 3
                raise StoreUnavailable("read-only")
            renewed.set()
            return [Renewed(renewal.lease, Fenced.DONE) for renewal in renewals]

    @asynccontextmanager
    async def connect() -> AsyncIterator[ReadOnly]:
        yield ReadOnly()

    keeper = LeaseKeeper(lambda: [held], connect, default_lease=LEASE)
    keeper.start()
    try:
        assert renewed.wait(10)
    finally:
        keeper.stop()
        keeper.join(5)
    lines = [record.getMessage().split("  ")[0] for record in caplog.records]
    assert [line for line in lines if not line.startswith("renewal is late")] == [
        "lease keeper cannot reach the store, trying again",
        "lease keeper is connected again",
    ]
    assert len(lines) <= 3
