"""A year of history, and a retention that is always blocked by something."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from uuid import UUID, uuid4

from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Limits
from holdfast.domain.job import JobState, NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.domain.lifecycle import PLAIN_SUCCESS
from holdfast.maintenance.chores import Retention, all_chores, run_chore
from holdfast.store.contract import ClaimRequest, Finish, KindClaim
from holdfast.store.opening import OpenStore, opened
from holdfast.store.postgres.driver import open_connection
from holdfast_lab.faults.case import case
from holdfast_lab.faults.cases.place import schema_of_its_own
from holdfast_lab.faults.judge import LOST, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.sql_files import fault_statement

_DAY = timedelta(days=1)
_WEEK_DAYS = 8
_LEASE = timedelta(days=3000)
_JOBS_A_DAY = 4
_KIND, _PLAIN, _LATER = "fault.day", "fault.plain", "fault.later"
_BYTES = 1_000_000
_LARGE_JOBS = 5
_TRANSACTION_SECONDS = 1.0
_LONGEST_WAIT = 3.0
"""The longest that an overdue drop may take: two seconds for its locks, one behind them."""


@case(
    "R50",
    "400 days retained; a day that cannot be dropped; producers whose transactions leave no gap",
    large={"days": 400, "claims": 500, "producers": 8, "blocked": 12},
)
async def a_year_of_history(lab: Lab) -> None:
    """Compares a store that keeps a week with one that keeps a year, and then blocks the retention of the first."""
    async with (
        schema_of_its_own(lab, f"{lab.schema}_week") as week_schema,
        schema_of_its_own(lab, f"{lab.schema}_year") as year_schema,
        opened(lab.url, week_schema) as week_store,
        opened(lab.url, year_schema) as year_store,
    ):
        week = _History(week_store, _WEEK_DAYS * _DAY, await week_store.clock.now())
        year = _History(year_store, lab.size["days"] * _DAY, await year_store.clock.now())
        for number in range(2 * _WEEK_DAYS):
            await week.pass_day(lab, f"{number}")
        for number in range(int(lab.size["days"] * 9 / 8) + 20):
            if number % 50 == 0:
                lab.progress(f"day {number}")
            await year.pass_day(lab, f"{number}")
        await _compare_claims(lab, week, year)
        await _get_in_the_way(lab, week, week_schema)


@dataclass
class _History:
    """Makes days pass: each has its jobs, which are done at once, and its maintenance."""

    store: OpenStore
    retention: timedelta
    now: datetime
    ended: list[datetime] = field(default_factory=list)
    """The time at which each job ended."""
    keys: dict[str, datetime] = field(default_factory=dict)
    """The time at which the job with each key ended."""

    def job(
        self, kind: str = _KIND, payload: Json | None = None, key: str | None = None, delay: timedelta | None = None
    ) -> NewJob:
        """A job with an id of the current day."""
        id = UUID(int=(int(self.now.timestamp() * 1000) << 80) + (uuid4().int & ((1 << 80) - 1)))
        return NewJob(kind=kind, payload=payload or encode({}), id=id, key=key, delay=delay)

    async def pass_day(self, lab: Lab, key: str) -> None:
        self.now += _DAY
        await self.store.clock.freeze(self.now)
        await self.store.store.enqueue([self.job() for _ in range(_JOBS_A_DAY)] + [self.job(key=key)])
        await self.work(_JOBS_A_DAY + 1)
        self.keys[key] = self.now
        for chore in all_chores(self.store.maintenance, Retention(self.retention, None, self.retention)):
            report = await run_chore(self.store.maintenance, chore, lambda: False)
            if report.error is not None:
                lab.violation(TARGET, f"maintenance: {report.error}")

    async def work(self, jobs: int) -> float:
        """Claim and finish jobs. Returns how long the claim took."""
        request = ClaimRequest(uuid4(), jobs, ("default",), {_KIND: KindClaim(_LEASE, jobs)})
        asked = time.perf_counter()
        claimed = await self.store.store.claim(request)
        took = time.perf_counter() - asked
        await self.store.store.finish([Finish(each.lease, PLAIN_SUCCESS) for each in claimed])
        self.ended += [self.now] * len(claimed)
        return took

    async def check(self, lab: Lab, what: str) -> None:
        """Check that no ended job is kept much longer than it should be, and that none of those holds a key."""
        limit = self.retention * 9 / 8 + 3 * _DAY
        too_old = sorted(key for key, at in self.keys.items() if self.now - at > limit)
        answers = await self.store.store.enqueue([self.job(key=key, delay=_LEASE) for key in too_old])
        for key, answer in zip(too_old, answers, strict=True):
            del self.keys[key]
            if not answer.is_new:
                lab.violation(LOST, f"{what}: an enqueue with the key {key!r} returned job {answer.id}", answer.id)
        kept = (await self.store.reader.count())[JobState.SUCCEEDED]
        lab.check(f"{what}: jobs kept", kept, at_most=sum(self.now - at <= limit for at in self.ended))


async def _compare_claims(lab: Lab, week: _History, year: _History) -> None:
    """Claim one by one from both in turn, because no two seconds of a machine are alike."""
    took: dict[str, list[float]] = {"week": [], "year": []}
    for _ in range(lab.count("claims")):
        for name, history in (("week", week), ("year", year)):
            await history.store.store.enqueue([history.job()])
            took[name].append(await history.work(1))
    usual, long = median(took["week"]), median(took["year"])
    lab.note("a claim with a week of history", usual * 1000, "ms")
    lab.note(f"with {lab.size['days']:g} days", long * 1000, "ms")
    lab.check("a claim with a long history", long / usual, "of one with a week", at_most=1.2)
    await year.check(lab, "a year")


async def _get_in_the_way(lab: Lab, history: _History, schema: str) -> None:
    """Block the retention, first with a day of large jobs due in 300 days, then with producers."""
    large = [Json(f'"{lab.random.randbytes(_BYTES // 2).hex()}"') for _ in range(_LARGE_JOBS)]
    await history.store.store.enqueue([history.job(_LATER, each, delay=300 * _DAY) for each in large])
    for number in range(2 * _WEEK_DAYS):
        await history.pass_day(lab, f"crowded {number}")
    await history.check(lab, "a day that cannot be dropped")
    async with _producing(lab, history, schema) as waits:
        for number in range(_WEEK_DAYS + lab.count("blocked")):
            lab.progress(f"day {number} with producers")
            await history.pass_day(lab, f"blocked {number}")
    lab.check("longest wait of a producer", max(waits), "s", at_most=_LONGEST_WAIT)
    await history.check(lab, "producers in the way")
    found = await examine(lab.url, schema, limits=Limits(retention=history.retention))
    if not any(each.check == "partitions" and "should have been dropped" in each.line for each in found):
        lab.violation(TARGET, f"doctor does not report that a day cannot be dropped: {found}")
    lab.note("days that could not be dropped", len(await history.store.maintenance.overdue_days(history.retention)))


@asynccontextmanager
async def _producing(lab: Lab, history: _History, schema: str) -> AsyncIterator[Sequence[float]]:
    """Run several producers whose transactions take a second each, so that one is always open.

    Yields how long each enqueue had to wait.
    """
    over, waits = asyncio.Event(), [0.0]

    async def produce(number: int) -> None:
        connection = await open_connection(lab.url)
        try:
            await asyncio.sleep(_TRANSACTION_SECONDS * number / lab.count("producers"))
            while not over.is_set():
                async with connection.transaction():
                    asked = time.monotonic()
                    job = history.job(_PLAIN)
                    await connection.fetch(fault_statement("enqueue_plain", schema), job.kind, job.payload, job.id)
                    waits.append(time.monotonic() - asked)
                    await asyncio.sleep(_TRANSACTION_SECONDS)
        finally:
            connection.terminate()

    producing = [asyncio.create_task(produce(number)) for number in range(lab.count("producers"))]
    try:
        yield waits
    finally:
        over.set()
        await asyncio.gather(*producing)
