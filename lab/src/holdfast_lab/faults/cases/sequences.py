"""Sequence numbers beyond 32 bits, which a busy queue reaches in weeks."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.app import Holdfast
from holdfast.domain.errors import Permanent, Retryable
from holdfast.domain.handlers import RunningJob
from holdfast.domain.job import JobState
from holdfast.maintenance.chores import Retention, all_chores, run_chore
from holdfast.store.contract import JobFilter
from holdfast.store.postgres.driver import open_connection
from holdfast_lab.faults.case import case
from holdfast_lab.faults.cases.place import Lab, drained, schema_of_its_own, working
from holdfast_lab.faults.sql_files import fault_statement

if TYPE_CHECKING:
    import asyncpg

    from holdfast.domain.enqueued import Enqueued

    Connection = asyncpg.Connection[asyncpg.Record]

_BEYOND = 2**31
_DRAINED_SECONDS = 60.0
_PRODUCERS = 4
_TURN_SECONDS = 0.02
_WAITING_SECONDS = 8.0
_YEAR = timedelta(days=365)


@case(
    "R23",
    "sequences beyond 2^31, and producers that meet keys or race for them",
    small={"jobs": 40, "conflicts": 100, "races": 10},
    large={"jobs": 400, "conflicts": 1_000, "races": 100},
)
async def wide_sequences(lab: Lab) -> None:
    """All sequences start beyond 2^31, everything must work, and a producer that meets a key must use no number."""
    async with schema_of_its_own(lab, f"{lab.schema}_wide") as schema:
        connection = await open_connection(lab.url)
        try:
            await _widen(lab, connection, schema)
            await _work(lab, schema)
            await _meet_keys(lab, connection, schema)
        finally:
            await connection.close()


async def _widen(lab: Lab, connection: "Connection", schema: str) -> None:
    for row in await connection.fetch(fault_statement("narrow_numbers", schema), schema):
        lab.violation("narrow", f"{row['name']} cannot hold a number beyond 32 bits")
    sequences = await connection.fetch(fault_statement("sequences", schema), schema)
    for row in sequences:
        if row["type"] != "bigint":
            lab.violation("narrow", f"the sequence {row['name']} is {row['type']}")
    await connection.fetch(fault_statement("set_sequences", schema), schema, _BEYOND + lab.random.randrange(2**20))
    lab.note("sequences", len(sequences))


async def _work(lab: Lab, schema: str) -> None:
    """Run jobs to all kinds of ends, then maintenance, which adds up counts, and look at the runs."""
    number = int(lab.size["jobs"])
    app = Holdfast(lab.url, schema=schema)

    @app.handler("work", attempts=2, backoff="steps 1ms")
    async def work(job: RunningJob[Any]) -> str:
        match job.payload["end"]:
            case "fail":
                raise Permanent("NOT_TODAY")
            case "retry" if job.attempt == 1:
                raise Retryable("once more")
            case "die":
                raise ValueError("again and again")
        return "done"

    @app.runner("look", "every 1s")
    async def look() -> str:
        return "looked"

    expected = {"work": JobState.SUCCEEDED, "retry": JobState.SUCCEEDED, "fail": JobState.FAILED, "die": JobState.DEAD}
    ends = {app.job("work", {"end": end}): end for end in list(expected) * number}
    async with app, working(lab, app):
        await app.enqueue_many(list(ends))
        await drained(lab, app, _DRAINED_SECONDS)
        for new, end in ends.items():
            job = await app.jobs.get(new.id)
            if job is None or job.state is not expected[end]:
                lab.violation("wrong end", f"{end}: {job}", new.id)
        for chore in all_chores(app.opened.maintenance, Retention(_YEAR, _YEAR, _YEAR)):
            report = await run_chore(app.opened.maintenance, chore, lambda: False)
            if report.error is not None:
                lab.violation("wrong end", f"maintenance: {report.error}")
        counts = await app.jobs.count()
        listed = {state: len(await app.jobs.list(JobFilter(state=state), len(ends) + 1)) for state in JobState}
        if any(counts[state] != listed[state] for state in JobState):
            lab.violation("wrong count", f"counted {dict(counts)}, listed {listed}")
        for run in await app.runs.list(None, 10):
            if run.id <= _BEYOND:
                lab.violation("narrow", f"run {run.id} has a number that is not from its sequence")


async def _meet_keys(lab: Lab, connection: "Connection", schema: str) -> None:
    number, races = int(lab.size["conflicts"]), int(lab.size["races"])
    async with Holdfast(lab.url, schema=schema) as app:
        held = (await app.enqueue("keyed", key="held")).id
        await app.enqueue("keyed", key="window", window="1h")
        before = await connection.fetch(fault_statement("sequences", schema), schema)
        for _ in range(number):
            await app.enqueue("keyed", {"newer": True}, key="held", if_exists="replace")
            await app.enqueue("keyed", key="window", window="1h")
        met = await app.enqueue_many([app.job("keyed", key="held") for _ in range(number)])
        for each in range(races):
            await _race(lab, app, connection, schema, f"race {each}", is_kept=each % 2 == 0)
        after = await connection.fetch(fault_statement("sequences", schema), schema)
        if any(each.id != held or each.is_new for each in met):
            lab.violation("two jobs", "a producer that met a key made another job", held)
        for old, new in zip(before, after, strict=True):
            if old["last"] != new["last"]:
                lab.violation("burned", f"{new['name']} went from {old['last']} to {new['last']} by conflicts alone")
    lab.note("conflicts", 3 * number)
    lab.note("races", races)


async def _race(lab: Lab, app: Holdfast, looking: "Connection", schema: str, key: str, *, is_kept: bool) -> None:
    """Several producers ask for a new key at once: all but one are about to make their own job when they collide."""
    holder = await open_connection(lab.url)
    try:
        transaction = holder.transaction()
        await transaction.start()
        first = await app.enqueue("keyed", conn=holder, key=key)
        asking = [asyncio.create_task(app.enqueue("keyed", key=key)) for _ in range(_PRODUCERS)]
        await _until_waiting(lab, looking, schema, asking)
        await (transaction.commit() if is_kept else transaction.rollback())
        answers = await asyncio.gather(*asking)
    finally:
        await holder.close()
    told = {each.id for each in answers}
    new = sum(each.is_new for each in answers)
    if len(told) != 1 or (is_kept and told != {first.id}) or new != (not is_kept):
        lab.violation("two jobs", f"{key}: {_PRODUCERS} producers got the ids of {len(told)} jobs, {new} of them new")


async def _until_waiting(
    lab: Lab, looking: "Connection", schema: str, asking: "Sequence[asyncio.Task[Enqueued]]"
) -> None:
    patience = time.monotonic() + _WAITING_SECONDS
    while await looking.fetchval(fault_statement("count_waiting", schema)) < len(asking):
        if time.monotonic() > patience or any(each.done() for each in asking):
            lab.violation("no race", f"not all of {len(asking)} producers of the same key wait for its holder")
            return
        await asyncio.sleep(_TURN_SECONDS)
