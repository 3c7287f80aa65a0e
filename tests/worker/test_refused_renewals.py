"""The store refuses to renew one lease, or to store one progress report. No other lease is lost because of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.errors import AccessRefused, StoreUnavailable, Unstorable
from holdfast.domain.json_text import Json
from holdfast.domain.lease_clock import lease_now
from holdfast.store.contract import Fenced, Renewal, Renewed
from holdfast.worker.held import HeldJob
from holdfast.worker.lease_keeper import LeaseKeeper
from tests.worker.harness import Database, ReleasesNothing, eventually, final_job, renewing, until, working
from tests.worker.test_lease_keeper import CLAIMED, LEASE, THIRD, due, held_job, keeping, leases

MANY = 100


class Refusing(ReleasesNothing):
    """Refuses a whole batch because of a single renewal, as a statement does."""

    def __init__(self, refusal: Callable[[Renewal], Exception | None]) -> None:
        self._refusal = refusal
        self.sent: list[list[Renewal]] = []

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        self.sent.append(list(renewals))
        for renewal in renewals:
            if (refusal := self._refusal(renewal)) is not None:
                raise refusal
        return [Renewed(renewal.lease, Fenced.DONE) for renewal in renewals]

    def times_sent(self, held: HeldJob) -> int:
        return sum(held.job.lease == renewal.lease for batch in self.sent for renewal in batch)


@contextmanager
def kept(held: Sequence[HeldJob], renewer: Refusing) -> Iterator[None]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Refusing]:
        yield renewer

    keeper = LeaseKeeper(lambda: list(held), connect, default_lease=LEASE)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
        keeper.join(5)


def held_jobs(number: int = MANY) -> list[HeldJob]:
    """Jobs whose leases are due for renewal."""
    return [held_job(started=None, claimed=lease_now() - 0.4 * LEASE) for _ in range(number)]


def is_renewed(held: HeldJob) -> bool:
    return held.safe_until > held.claimed + held.extend


def test_all_but_the_refused_lease_are_renewed_on_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    held = held_jobs()
    bad = held[37]
    renewer = Refusing(lambda each: Unstorable("no", "archived") if each.lease == bad.job.lease else None)
    with kept(held, renewer):
        eventually(lambda: sum(map(is_renewed, held)) == MANY - 1, "all others are renewed")
        eventually(lambda: "refuses to renew" in caplog.text, "the refusal is told")
    assert len(renewer.sent) < 20, "found by halves"
    (record,) = caplog.records
    assert str(bad.id) in record.getMessage()
    assert "why=archived" in record.getMessage()


def test_a_refused_lease_is_tried_again_alone_at_growing_intervals() -> None:
    bad, other = held_job(), held_job()
    rules = keeping(bad, other)
    now = CLAIMED + THIRD
    assert rules.refused(bad, now)
    assert leases(due(rules, now)) == [other.job.lease]
    waits = []
    for _ in range(6):
        wait = 0.0
        while not rules.to_try_again(now + wait):
            wait += 0.5
        waits.append(wait)
        now += wait
        assert leases(rules.to_try_again(now).values()) == [bad.job.lease]
        assert not rules.refused(bad, now), "not news"
    assert waits == [2.5, 5, 10, 20, 30, 30]


def test_a_refused_lease_that_is_renewed_again_returns_to_the_others() -> None:
    held = held_job()
    rules = keeping(held)
    now = CLAIMED + THIRD
    rules.refused(held, now)
    again = rules.to_try_again(now + LEASE / 12)
    rules.learn(now, again, [Renewed(held.job.lease, Fenced.DONE)])
    assert rules.to_try_again(now + LEASE) == {}
    assert leases(due(rules, now + THIRD)) == [held.job.lease]


@pytest.mark.parametrize("refusal", [Unstorable("no", "no such character"), StoreUnavailable("too complex")])
def test_leases_are_renewed_although_a_progress_report_cannot_be_stored(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    held = held_jobs()
    bad, good = held[5], held[50]
    bad.progress, good.progress = Json('"bad"'), Json('"good"')
    renewer = Refusing(lambda each: refusal if each.progress == '"bad"' else None)
    with kept(held, renewer):
        eventually(lambda: all(map(is_renewed, held)), "all are renewed")
        eventually(lambda: "dropping it" in caplog.text, "the loss of the report is told")
    assert [each.progress for each in renewer.sent[1]] == [None] * MANY, "first of all, the leases are renewed"
    assert any(each.progress == '"good"' for batch in renewer.sent[2:] for each in batch if len(batch) == 1)
    (record,) = caplog.records
    assert str(bad.id) in record.getMessage()


def test_a_missing_privilege_for_progress_costs_one_more_request(caplog: pytest.LogCaptureFixture) -> None:
    held = held_jobs()
    for each in held:
        each.progress = Json("1")
    renewer = Refusing(lambda each: AccessRefused("no privilege") if each.progress else None)
    with kept(held, renewer):
        eventually(lambda: len(caplog.records) == MANY, "each lost report is told")
        assert all(map(is_renewed, held))
    assert len(renewer.sent) == 3
    assert "cannot reach the store" not in caplog.text


def test_after_a_request_with_progress_was_not_answered_the_lease_is_renewed_without_it() -> None:
    """For example because the table for progress is locked."""
    held = held_job(started=None, extend=12.0, claimed=lease_now() - 5.0)
    held.progress = Json("1")
    connections = 0

    class Silent(Refusing):
        async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
            if any(each.progress for each in renewals):
                await asyncio.Event().wait()
            return await super().renew(renewals)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Silent]:
        nonlocal connections
        connections += 1
        yield Silent(lambda _: None)

    keeper = LeaseKeeper(lambda: [held], connect, default_lease=LEASE)
    keeper.start()
    try:
        eventually(lambda: connections == 2 and is_renewed(held), "the second connection renews it")
    finally:
        keeper.stop()
        keeper.join(5)


@pytest.mark.postgres
async def test_jobs_run_on_although_one_reports_progress_that_the_database_refuses(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.query("ALTER TABLE holdfast.progress ADD CHECK (value::text NOT LIKE '%%bad%%')")
    app = Holdfast(database.url)
    started: list[str] = []
    let_go = asyncio.Event()

    @app.handler("reports")
    async def reports(job: RunningJob[Any]) -> None:
        job.progress(job.payload)
        started.append(job.payload)
        await let_go.wait()

    def ends() -> list[object]:
        return [end for (end,) in database.query("SELECT until FROM holdfast.lease ORDER BY id")]

    async with app, working(app, renewing()):
        bad, good = [each.id for each in await app.enqueue_many([app.job("reports", say) for say in ("bad", "good")])]
        await until(lambda: len(started) == 2, "both run")
        await until(lambda: "dropping it" in caplog.text, "the report is dropped")
        before = ends()
        await until(lambda: all(now > then for now, then in zip(ends(), before, strict=True)), "both are renewed")  # type: ignore[operator]
        let_go.set()
        jobs = [await final_job(app, id) for id in (bad, good)]
    assert [(job.state, job.attempt, job.progress) for job in jobs] == [
        (JobState.SUCCEEDED, 1, None),
        (JobState.SUCCEEDED, 1, "good"),
    ]
    assert "cannot reach the store" not in caplog.text
