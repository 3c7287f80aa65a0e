"""Concurrent changes of the same rows: each job ends exactly once, and every row is in its place."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.domain.job import JobState, Lease
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import BROKEN, LEASE, START, job, wants

_MICROSECONDS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_MISPLACED = """
SELECT count(*) FROM holdfast.job
WHERE (SELECT count(*) FROM holdfast.ready WHERE ready.id = job.id)
    + (SELECT count(*) FROM holdfast.lease WHERE lease.id = job.id)
    + (SELECT count(*) FROM holdfast.finished WHERE finished.id = job.id)
    + (SELECT count(*) FROM holdfast.dead_letter WHERE dead_letter.id = job.id) <> 1
"""


async def _at_once(*loops: Callable[[], Awaitable[bool]], ends: Callable[[], bool]) -> None:
    """Repeat each step until it returns false or `ends` returns true."""
    deadline = time.monotonic() + 60

    async def repeat(step: Callable[[], Awaitable[bool]]) -> None:
        while not ends() and await step():
            assert time.monotonic() < deadline, "the race never ended"
            # A step that finds no work does not wait, so it would block the other loops.
            await asyncio.sleep(0)

    await asyncio.gather(*(repeat(step) for step in loops))


@pytest.mark.parametrize(
    "transition",
    [
        Transition(Move.SUCCEED),
        Transition(Move.SUCCEED, result=Json("{}")),
        Transition(Move.FAIL, error=BROKEN),
        Transition(Move.RETRY, delay=timedelta(hours=1), error=BROKEN),
    ],
    ids=["plain success", "result", "failure", "retry"],
)
async def test_a_lease_that_is_renewed_and_finished_concurrently_is_finished_once(
    database: Database, transition: Transition
) -> None:
    async with opened_store(database.url) as store, opened_store(database.url) as keeper:
        await store.enqueue([job() for _ in range(300)])
        left = [each.lease for each in await store.claim(wants(limit=300))]
        all_leases = list(left)
        random.shuffle(left)
        answers: Counter[Fenced] = Counter()
        renewals: Counter[Fenced] = Counter()

        async def renew() -> bool:
            some = random.sample(all_leases, 60)
            renewals.update(each.fenced for each in await keeper.renew([Renewal(lease, LEASE) for lease in some]))
            return True

        async def finish() -> bool:
            some = [left.pop() for _ in range(min(10, len(left)))]
            while some:
                fenced = await store.finish([Finish(lease, transition) for lease in some])
                answers.update(fenced)
                some = [lease for lease, answer in zip(some, fenced, strict=True) if answer is Fenced.LOCKED]
            return bool(left)

        # Open its connection and prepare its statement first. Otherwise, everything might be finished before it starts.
        await renew()
        assert renewals == {Fenced.DONE: 60}
        finishing = asyncio.gather(*(_at_once(finish, ends=lambda: False) for _ in range(2)))
        await asyncio.gather(finishing, *(_at_once(renew, ends=finishing.done) for _ in range(3)))
        assert answers[Fenced.DONE] == 300
        assert set(answers) <= {Fenced.DONE, Fenced.LOCKED}
        assert renewals.total() > 60
        counts = await PostgresReader(store).count()
        assert (counts[JobState.RUNNING], counts[transition.state]) == (0, 300)
        async with connected(database.url) as connection:
            assert await connection.fetchval(_MISPLACED) == 0


async def test_a_storm_of_all_verbs_leaves_every_job_in_exactly_one_place(database: Database) -> None:
    """Claims, renewals, finishes, releases, rescues, cancels and retries run while leases keep expiring."""
    async with opened_store(database.url, pool_size=8) as store, connected(database.url) as connection:
        jobs = [job(kind=f"kind-{number % 3}", key=f"key-{number}") for number in range(120)]
        await store.enqueue(jobs)
        ids = [each.id for each in jobs]
        held: list[Lease] = []
        ended: Counter[UUID] = Counter()
        revived: Counter[UUID] = Counter()
        steps = 0

        async def work() -> bool:
            nonlocal steps
            steps += 1
            kinds = random.sample(["kind-0", "kind-1", "kind-2"], 2)
            suspects = steps % 5 == 0
            request = wants(*kinds, limit=5, holder=uuid4(), lease=timedelta(milliseconds=20), suspects=suspects)
            held.extend(each.lease for each in await store.claim(request))
            return True

        async def settle() -> bool:
            some = [held.pop(random.randrange(len(held))) for _ in range(min(4, len(held)))]
            choice = random.random()
            if choice < 0.2:
                await store.renew([Renewal(lease, timedelta(milliseconds=50)) for lease in some])
                held.extend(some)
            elif choice < 0.35:
                await store.release(some)
            else:
                transition = random.choice(
                    [
                        Transition(Move.SUCCEED),
                        Transition(Move.SUCCEED),
                        Transition(Move.RETRY, error=BROKEN),
                        Transition(Move.FAIL, error=BROKEN),
                    ]
                )
                answers = await store.finish([Finish(lease, transition) for lease in some])
                if transition.state.is_final:
                    ended.update(lease.id for lease, fenced in zip(some, answers, strict=True) if fenced is Fenced.DONE)
            return True

        async def rescue() -> bool:
            ended.update(each.id for each in await store.rescue(20) if each.state.is_final)
            return True

        async def interfere() -> bool:
            chosen = random.sample(ids, 3)
            if random.random() < 0.3:
                answers = await store.cancel(chosen)
                # A job that was asked to cancel may end where it would otherwise become ready again.
                ended.update(
                    id for id, answer in zip(chosen, answers, strict=True) if answer in ("canceled", "requested")
                )
            else:
                answers_of_retry = await store.retry(chosen)
                revived.update(id for id, answer in zip(chosen, answers_of_retry, strict=True) if answer == "ready")
            return True

        await _at_once(work, work, settle, settle, rescue, interfere, ends=lambda: steps >= 300)
        assert await connection.fetchval(_MISPLACED) == 0
        assert await connection.fetchval("SELECT count(*) FROM holdfast.job") == len(jobs)
        counts = await PostgresReader(store).count()
        assert sum(counts.values()) == len(jobs)
        assert sum(revived.values()) > 0
        # Every end except the last is followed by a retry. A dead letter that is given up ends a second time.
        for id in ids:
            found = await PostgresReader(store).get(id)
            assert found is not None
            assert ended[id] >= revived[id] + found.state.is_final


async def test_a_fence_rises_even_if_the_clock_is_behind_the_last_one(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await store.enqueue([job() for _ in range(5)])
        ahead = time.time_ns() // 1000 + 3_600_000_000
        await connection.execute("UPDATE holdfast.ready SET fence = $1", ahead)
        leased = await store.claim(wants())
        assert [each.lease.fence for each in leased] == [ahead + 1] * 5
        assert await _every_fenced_verb(store, [each.lease for each in leased]) == [Fenced.DONE] * 5


async def test_a_fence_is_the_real_time_of_its_claim(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        await store.enqueue([job()])
        before = await connection.fetchval(_MICROSECONDS)
        (leased,) = await store.claim(wants())
        assert before <= leased.lease.fence <= await connection.fetchval(_MICROSECONDS)


async def _every_fenced_verb(store: PostgresStore, leases: list[Lease]) -> list[Fenced]:
    first, second, third, fourth, fifth = leases
    (renewed,) = await store.renew([Renewal(first, LEASE, Json("1"))])
    async with connected(store.url) as connection:
        await store.finish_in.statement(second, None).execute_on(connection)
    plain = await store.finish([Finish(first, Transition(Move.SUCCEED))])
    failed = await store.finish([Finish(third, Transition(Move.FAIL, error=BROKEN))])
    retried = await store.finish([Finish(fourth, Transition(Move.RETRY, delay=LEASE))])
    released = await store.release([fifth])
    (again,) = await store.claim(wants())
    assert await store.finish([Finish(second, Transition(Move.SUCCEED))]) == [Fenced.ALREADY]
    assert await store.finish([Finish(again.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]
    return [renewed.fenced, *plain, *failed, *retried, *released]


async def test_the_clock_moves_for_all_stores(database: Database) -> None:
    async with opened_store(database.url) as one, opened_store(database.url) as two:
        await PostgresClock(one).freeze(START)
        assert await PostgresClock(two).now() == START
        await two.enqueue([job(delay=LEASE)])
        await PostgresClock(two).advance(LEASE)
        assert await PostgresClock(one).now() == START + LEASE
        (leased,) = await one.claim(wants())
        await PostgresClock(one).advance(LEASE)
        assert [rescued.id for rescued in await two.rescue(1)] == [leased.id]
