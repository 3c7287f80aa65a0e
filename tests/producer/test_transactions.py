"""Enqueueing in the caller's transaction: a job exists together with the caller's rows, or not at all.

Each test runs with the connections of every library.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast import Enqueued, StaleLease
from holdfast.domain.job import Lease, NewJob
from holdfast.domain.json_text import decode, encode
from holdfast.store.contract import Canceling, ClaimRequest, Deleting, KindClaim, Retrying
from holdfast_lab.faults.proxy import Cut
from tests.databases import opened_store
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import KINDS, LOST, READ_COMMITTED, STRICT_LEVELS, Link, Opening, settled, verbs
from tests.producer.orm_kinds import ONE_OF_EACH_LIBRARY

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

every_kind = pytest.mark.parametrize("opened", [pytest.param(opening, id=name) for name, opening in KINDS.items()])
one_of_each_library = pytest.mark.parametrize(
    "opened", [pytest.param(KINDS[name], id=name) for name in ONE_OF_EACH_LIBRARY]
)

# Every character that some library could write for a parameter or would have to escape.
MANGLED = "100% %s %(name)s %% :name ::text ?1 $1 $$ {} \\ ' \" é\N{LINE SEPARATOR}"
FAR = datetime(2150, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WRITTEN = """
SELECT job.kind, job.queue, job.priority, tenant, correlation_id, key, max_attempts, payload, headers,
       run_at - created_at AS delay, run_at
FROM holdfast.job JOIN holdfast.ready USING (id) WHERE id = %s
"""


class Change(Exception):
    """Raised to roll back a transaction."""


async def enqueued_in(shop: Shop, link: Link, job: NewJob) -> Enqueued:
    return await settled(verbs(shop.app, link.connection).enqueue(job, conn=link.connection))


@every_kind
async def test_the_row_and_the_job_commit_together_and_roll_back_together(shop: Shop, opened: Opening) -> None:
    async with opened(shop.url, READ_COMMITTED) as link:
        await link.write(1)
        enqueued = await settled(
            verbs(shop.app, link.connection).enqueue("ship", {"order": 1}, conn=link.connection, queue="parcels")
        )
        assert enqueued.is_new
        assert (shop.orders(), shop.jobs()) == ([], [])
    assert (shop.orders(), shop.jobs()) == ([1], [enqueued.id])
    job = shop.app.job("ship", {"order": 2})
    with suppress(Change):
        async with opened(shop.url, READ_COMMITTED) as link:
            await link.write(2)
            assert await enqueued_in(shop, link, job) == Enqueued(job.id, is_new=True)
            raise Change
    assert (shop.orders(), shop.jobs()) == ([1], [enqueued.id])


@pytest.mark.fault
@pytest.mark.parametrize("answered", [False, True], ids=["before the server got it", "before its answer came"])
@every_kind
async def test_a_commit_that_is_cut_off_is_an_error_and_leaves_both_or_none(
    shop: Shop, opened: Opening, answered: bool
) -> None:
    job = shop.app.job("ship", {"order": 1}, key="order-1")
    with shop.proxy() as proxy:

        async def order() -> None:
            async with opened(proxy.url, READ_COMMITTED) as link:
                await link.write(1)
                await enqueued_in(shop, link, job)
                proxy.plan(Cut("after" if answered else "before", of="commit"))

        with pytest.raises(LOST):
            await order()
        assert (shop.orders(), shop.jobs()) == (([1], [job.id]) if answered else ([], []))
        # The caller cannot know the outcome and enqueues again; the key ensures that only one job exists.
        async with opened(proxy.url, READ_COMMITTED) as link:
            again = await enqueued_in(shop, link, shop.app.job("ship", {"order": 1}, key="order-1"))
    assert again.is_new is not answered
    assert shop.jobs() == [again.id]


@every_kind
async def test_a_rollback_to_a_savepoint_takes_the_job_away(shop: Shop, opened: Opening) -> None:
    first, second, third, fourth = (shop.app.job("ship", key=f"order-{number}") for number in range(4))
    async with opened(shop.url, READ_COMMITTED) as link:
        await enqueued_in(shop, link, first)
        with suppress(Change):
            async with link.nested():
                await link.write(2)
                await enqueued_in(shop, link, second)
                raise Change
        async with link.nested():
            await link.write(3)
            await enqueued_in(shop, link, third)
        assert (await enqueued_in(shop, link, fourth)).is_new
        assert (await enqueued_in(shop, link, shop.app.job("ship", key="order-1"))).is_new
    assert shop.orders() == [3]
    found = shop.jobs()
    assert [each.id in found for each in (first, second, third, fourth)] == [True, False, True, True]


@pytest.mark.parametrize("level", STRICT_LEVELS)
@one_of_each_library
async def test_stricter_isolation_levels_work_with_jobs_and_keys(shop: Shop, opened: Opening, level: str) -> None:
    async with opened(shop.url, level) as link:
        first = await enqueued_in(shop, link, shop.app.job("ship", key="order-1"))
    async with opened(shop.url, level) as link:
        await settled(link.execute("INSERT INTO levels SELECT current_setting('transaction_isolation')"))
        same = await enqueued_in(shop, link, shop.app.job("ship", key="order-1"))
        other = await enqueued_in(shop, link, shop.app.job("ship"))
        twice = await enqueued_in(shop, link, shop.app.job("ship", key="order-1"))
    assert same == twice == Enqueued(first.id, is_new=False)
    assert shop.jobs() == sorted([first.id, other.id])
    assert shop.rows("SELECT level FROM levels") == [{"level": level.lower()}]


def _jobs(shop: Shop) -> dict[str, NewJob]:
    """A job with every option, one with a time, and one with as little as possible."""
    job = shop.app.job
    payload = {MANGLED: [MANGLED, None, 1.5, {"deep": MANGLED}]}
    return {
        "full": job("ship", payload, queue="mail", priority=0, delay="36h 1s", tenant=MANGLED[:-1], attempts=1000,
                    key=MANGLED[:-1], correlation_id=MANGLED[:-1], headers={MANGLED: MANGLED}),
        "late": job("ship", payload, run_at=FAR, delay=None, priority=9),
        "bare": job("ship"),
    }  # fmt: skip


def _check_written(shop: Shop, jobs: dict[str, NewJob]) -> None:
    for name, job in jobs.items():
        (row,) = shop.rows(WRITTEN, job.id)
        delay, run_at = row.pop("delay"), row.pop("run_at")
        assert row == {
            "kind": "ship",
            "queue": job.queue,
            "priority": job.priority,
            "tenant": job.tenant,
            "correlation_id": job.correlation_id,
            "key": job.key,
            "max_attempts": job.max_attempts,
            "payload": decode(job.payload),
            "headers": None if job.headers is None else decode(job.headers),
        }
        if name == "late":
            assert run_at == FAR
        else:
            assert delay == (job.delay or timedelta(0))


@every_kind
async def test_every_option_is_stored_as_given(shop: Shop, opened: Opening) -> None:
    jobs = _jobs(shop)
    async with opened(shop.url, READ_COMMITTED) as link:
        for job in jobs.values():
            assert await enqueued_in(shop, link, job) == Enqueued(job.id, is_new=True)
    _check_written(shop, jobs)


@every_kind
async def test_one_statement_enqueues_many_jobs_and_answers_in_order(shop: Shop, opened: Opening) -> None:
    app = shop.app
    keyed, plain = _jobs(shop), {**_jobs(shop), "full": app.job("ship", MANGLED, delay="1s", headers={"a": MANGLED})}
    twin = app.job("ship", tenant=keyed["full"].tenant, key=keyed["full"].key)
    async with opened(shop.url, READ_COMMITTED) as link:
        assert await settled(verbs(app, link.connection).enqueue_many([], conn=link.connection)) == []
        answers = await settled(verbs(app, link.connection).enqueue_many(list(plain.values()), conn=link.connection))
        assert answers == [Enqueued(job.id, is_new=True) for job in plain.values()]
        answers = await settled(verbs(app, link.connection).enqueue_many([*keyed.values(), twin], conn=link.connection))
        assert answers == [Enqueued(job.id, is_new=True) for job in keyed.values()] + [
            Enqueued(keyed["full"].id, is_new=False)
        ]
        assert shop.jobs() == []
    _check_written(shop, plain)
    _check_written(shop, keyed)
    assert len(shop.jobs()) == 6


@one_of_each_library
async def test_a_job_is_finished_in_the_transaction_unless_its_lease_is_stale(shop: Shop, opened: Opening) -> None:
    async with opened_store(shop.url, pool_size=1) as store:
        await store.enqueue([shop.app.job("ship")])
        kinds = {"ship": KindClaim(timedelta(minutes=1), 1)}
        (leased,) = await store.claim(ClaimRequest(uuid4(), 1, ("default",), kinds))
        finish = store.finish_in
    stale = leased.lease._replace(claim=uuid4())

    async def write_and_finish(number: int, lease: Lease) -> None:
        async with opened(shop.url, READ_COMMITTED) as link:
            await link.write(number)
            await settled(finish.statement(lease, encode(MANGLED)).execute_on(link.connection))

    with pytest.raises(StaleLease, match=f"^the lease of job {leased.id} by claim .* was lost.* not to the database"):
        await write_and_finish(1, stale)
    await write_and_finish(2, leased.lease)
    assert shop.orders() == [2]
    assert shop.rows("SELECT id, result FROM holdfast.finished") == [{"id": leased.id, "result": MANGLED}]


@one_of_each_library
async def test_jobs_are_canceled_and_retried_in_the_callers_transaction(shop: Shop, opened: Opening) -> None:
    waiting, other = shop.app.job("ship"), shop.app.job("ship")
    async with opened_store(shop.url) as store:
        await store.enqueue([waiting, other])
    unknown = uuid4()
    with suppress(Change):
        async with opened(shop.url, READ_COMMITTED) as link:
            changing = verbs(shop.app, link.connection)
            answers = await settled(changing.cancel([waiting.id, unknown, str(waiting.id)], conn=link.connection))
            assert answers == [Canceling.CANCELED, Canceling.UNKNOWN, Canceling.CANCELED]
            raise Change
    assert shop.jobs() == [waiting.id, other.id]
    async with opened(shop.url, READ_COMMITTED) as link:
        changing = verbs(shop.app, link.connection)
        await settled(changing.cancel([waiting.id], conn=link.connection))
    assert shop.jobs() == [other.id]
    async with opened(shop.url, READ_COMMITTED) as link:
        changing = verbs(shop.app, link.connection)
        answers = await settled(changing.retry([waiting.id, other.id, unknown], conn=link.connection))
        assert answers == [Retrying.READY, Retrying.LIVE, Retrying.UNKNOWN]
        assert shop.jobs() == [other.id]
    assert shop.jobs() == [waiting.id, other.id]


@every_kind
async def test_jobs_are_deleted_in_the_callers_transaction(shop: Shop, opened: Opening) -> None:
    async with opened(shop.url, READ_COMMITTED) as link:
        changing = verbs(shop.app, link.connection)
        final = await settled(changing.enqueue("ship", conn=link.connection))
        live = await settled(changing.enqueue("ship", conn=link.connection))
    async with opened(shop.url, READ_COMMITTED) as link:
        await settled(verbs(shop.app, link.connection).cancel([final.id], conn=link.connection))
    for expected in (Deleting.DELETED, Deleting.UNKNOWN):
        async with opened(shop.url, READ_COMMITTED) as link:
            changing = verbs(shop.app, link.connection)
            answers = await settled(changing.delete([final.id, live.id], conn=link.connection))
            assert answers == [expected, Deleting.LIVE]
