"""A verb reads no more when there are rows that it does not want, or when it was planned for empty tables.

The tests count blocks in the statistics of the transaction, because times would say more about this machine.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import asyncpg
import pytest

from holdfast.domain.job import IfExists, Lease, NewJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.postgres.reader import PostgresReader
from tests.databases import Database, DatabaseMaker, OneConnectionStore, connected
from tests.store_contract.steps import BROKEN, LEASE, job, wants

pytestmark = pytest.mark.long

Answer = TypeVar("Answer")

MANY = 50_000
FEWER = 20_000
# Ten jobs in ten lanes cost a few blocks each. Scanning the other rows would read 500 to 50,000 blocks more.
AT_MOST = 400
HOT_TABLES = ("ready", "lease", "dead_letter", "key", "progress", "attempt_error", "job_other", "finished_other")

_BLOCKS = """
SELECT sum(pg_stat_get_xact_blocks_fetched(relation.oid))::integer
FROM pg_class AS relation
LEFT JOIN pg_index AS index ON index.indexrelid = relation.oid
JOIN pg_class AS parent ON parent.oid = coalesce(index.indrelid, relation.oid)
JOIN pg_namespace AS space ON space.oid = parent.relnamespace
WHERE space.nspname = 'holdfast' AND parent.relname = ANY ($1)
"""
_FILL_READY = """
INSERT INTO holdfast.ready (id, run_at, priority, losses, is_suspect, queue, kind)
SELECT gen_random_uuid(), holdfast.now() + $1::interval + number * interval '1 millisecond', $2, $3::smallint,
       $3::smallint >= 2, 'default', $4
FROM generate_series(1, $5::integer) AS number
"""
_FILL_LANES = """
INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
SELECT gen_random_uuid(), holdfast.now(), 5, 'queue ' || number, 'work' FROM generate_series(1, $1::integer) AS number
"""
_FILL_LEASES = """
INSERT INTO holdfast.lease (id, claim, fence, until, claimed_at, run_at, priority, attempt, losses, queue, kind)
SELECT gen_random_uuid(), gen_random_uuid(), 1, holdfast.now() + interval '1 hour',
       holdfast.now(), holdfast.now(), 5, 1, 0, 'default', 'work'
FROM generate_series(1, $1::integer)
"""
_FILL_ERRORS = """
INSERT INTO holdfast.attempt_error (job_id, error)
SELECT gen_random_uuid(), '{}' FROM generate_series(1, $1::integer)
"""
_FILL_DEAD_LETTERS = """
INSERT INTO holdfast.dead_letter (id, created_at, finished_at, priority, attempt, losses, state, queue, kind, tenant,
                                  correlation_id, payload)
SELECT gen_random_uuid(), holdfast.now(), holdfast.now(), 5, 1, 0, 'dead', 'default', 'work', '', '', '{}'
FROM generate_series(1, $1::integer)
"""
_FILL_KEYS = """
WITH filled AS (
    INSERT INTO holdfast.job (id, created_at, priority, queue, kind, tenant, correlation_id, key, payload)
    SELECT gen_random_uuid(), holdfast.now(), 5, 'default', 'other', '', '', number::text, '{}'
    FROM generate_series(1, $1::integer) AS number RETURNING id, key
)
INSERT INTO holdfast.key (job_id, tenant, kind, key, until)
SELECT id, '', 'other', key, holdfast.now() + interval '1 day' FROM filled
"""


class Measured:
    """A store on one connection, and the number of blocks that a verb reads there."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection
        self.store = OneConnectionStore(connection)

    async def blocks(self, verb: Callable[[], Awaitable[Answer]]) -> tuple[Answer, int]:
        async with self.connection.transaction():
            before = await self.connection.fetchval(_BLOCKS, HOT_TABLES) or 0
            answer = await verb()
            return answer, (await self.connection.fetchval(_BLOCKS, HOT_TABLES) or 0) - before

    async def fill(self, delay: timedelta, priority: int, kind: str, *, losses: int = 0, number: int = MANY) -> None:
        await self.connection.execute(_FILL_READY, delay, priority, losses, kind, number)

    async def use_every_verb(self) -> None:
        """Run each verb often enough for PostgreSQL to settle on a generic plan."""
        lease = Lease(uuid4(), 1, uuid4())
        for _ in range(7):
            await self.store.claim(wants())
            await self.store.claim(wants(suspects=True))
            await self.store.look(["default"], ["work"])
            await self.store.renew([Renewal(lease, LEASE)])
            await self.store.finish([Finish(lease, Transition(Move.SUCCEED))])
            await self.store.finish([Finish(lease, Transition(Move.RETRY, error=BROKEN))])
            await self.store.rescue(10)
            await self.store.cancel([lease.id])
            await self.store.retry([lease.id])
            await self.store.delete([lease.id])
            for keyed in _keyed():
                await self.store.enqueue([keyed])
            await self.store.fetch("forget_keys", 10)


def _keyed() -> list[NewJob]:
    """Return a job for each way to use a key. Its random ID belongs to the default partition."""
    return [
        job(kind="keyed", key="a", id=uuid4()),
        job(kind="keyed", key="a", id=uuid4(), if_exists=IfExists.KEEP_LIVE),
        job(kind="keyed", key="a", id=uuid4(), if_exists=IfExists.REPLACE),
        job(kind="keyed", key="a", id=uuid4(), window=LEASE),
    ]


@pytest.fixture
def database(server: DatabaseMaker) -> Iterator[Database]:
    """Use a fresh database: earlier tests would leave pages in the indexes."""
    with server.fresh_database() as database:
        yield database


@pytest.fixture(params=["planned when empty", "planned when full"])
async def measured(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[tuple[Measured, bool]]:
    async with connected(database.url) as connection:
        measured = Measured(connection)
        if request.param == "planned when empty":
            # The usual case after a deployment: empty tables that autovacuum has analyzed.
            await connection.execute("VACUUM ANALYZE")
            await measured.use_every_verb()
        yield measured, request.param == "planned when full"


async def _full(measured: Measured, analyzed: bool) -> None:
    """Add deferred jobs, jobs of another kind and suspects, all more urgent than the wanted jobs, and many leases."""
    await measured.fill(timedelta(hours=1), 0, "work")
    await measured.fill(timedelta(hours=-1), 1, "unhandled")
    await measured.connection.execute(_FILL_LEASES, FEWER)
    await measured.connection.execute(_FILL_DEAD_LETTERS, FEWER)
    if analyzed:
        await measured.connection.execute("VACUUM ANALYZE")


async def test_no_verb_scans_rows_that_it_does_not_want(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await _full(at, analyzed)
    store = at.store
    await store.enqueue([job(priority=9) for _ in range(20)])
    blocks: dict[str, int] = {}
    leased, blocks["claim"] = await at.blocks(lambda: store.claim(wants(limit=10)))
    assert len(leased) == 10
    looked, blocks["look"] = await at.blocks(lambda: store.look(["default"], ["work"]))
    assert looked.due_in == timedelta(0)
    renewed, blocks["renew"] = await at.blocks(lambda: store.renew([Renewal(each.lease, LEASE) for each in leased]))
    assert {each.fenced for each in renewed} == {Fenced.DONE}
    retries = [Finish(each.lease, Transition(Move.RETRY, error=BROKEN)) for each in leased[:5]]
    fenced, blocks["finish: retry"] = await at.blocks(lambda: store.finish(retries))
    assert fenced == [Fenced.DONE] * 5
    successes = [Finish(each.lease, Transition(Move.SUCCEED)) for each in leased[5:]]
    fenced, blocks["finish: succeed"] = await at.blocks(lambda: store.finish(successes))
    assert fenced == [Fenced.DONE] * 5
    fenced, blocks["finish: again"] = await at.blocks(lambda: store.finish(retries + successes))
    assert fenced == [Fenced.STALE] * 5 + [Fenced.ALREADY] * 5
    ids = [each.id for each in leased]
    canceled, blocks["cancel"] = await at.blocks(lambda: store.cancel(ids))
    assert canceled == ["canceled"] * 5 + ["final"] * 5
    deleted, blocks["delete"] = await at.blocks(lambda: store.delete(ids[4:6]))
    assert deleted == ["deleted"] * 2
    revived, blocks["retry"] = await at.blocks(lambda: store.retry(ids))
    assert revived == ["ready"] * 4 + ["unknown"] * 2 + ["ready"] * 4
    unknown = [uuid4() for _ in range(10)]
    for verb, call in (("cancel", store.cancel), ("retry", store.retry), ("delete", store.delete)):
        answers, blocks[f"{verb}: unknown"] = await at.blocks(lambda call=call: call(unknown))  # type: ignore[misc]
        assert {*answers} == {"unknown"}
    assert {verb: number for verb, number in blocks.items() if number > AT_MOST} == {}, blocks


async def test_a_look_reads_each_lane_once_and_skips_other_queues(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await _full(at, analyzed)
    await at.store.enqueue([job(priority=9)])
    await at.connection.execute(_FILL_LANES, FEWER)
    looked, blocks = await at.blocks(lambda: at.store.look(["default"], ["work"]))
    assert looked.due_in == timedelta(0)
    assert blocks <= AT_MOST


async def test_a_rescue_reads_the_leases_once_and_only_the_errors_of_its_jobs(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.connection.execute(_FILL_LEASES, FEWER)
    await at.connection.execute(_FILL_ERRORS, FEWER)
    await at.store.enqueue([job() for _ in range(5)])
    leased = await at.store.claim(wants(lease=timedelta(0)))
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    pages = await at.connection.fetchval("SELECT pg_relation_size('holdfast.lease') / 8192")
    rescued, blocks = await at.blocks(lambda: at.store.rescue(100))
    assert {each.id for each in rescued} == {each.id for each in leased}
    assert blocks <= pages + AT_MOST


async def test_a_failed_attempt_does_not_read_the_errors_of_other_jobs(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.connection.execute(_FILL_ERRORS, FEWER)
    await at.store.enqueue([job() for _ in range(5)])
    leased = await at.store.claim(wants())
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    finishes = [Finish(each.lease, Transition(Move.FAIL, error=BROKEN)) for each in leased]
    fenced, blocks = await at.blocks(lambda: at.store.finish(finishes))
    assert fenced == [Fenced.DONE] * 5
    assert blocks <= AT_MOST


async def test_queries_for_suspects_read_only_suspects(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.fill(timedelta(hours=-1), 5, "work")
    await at.fill(timedelta(hours=-1), 5, "unhandled", losses=2)
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    blocks: dict[str, int] = {}
    nobody, blocks["claim"] = await at.blocks(lambda: at.store.claim(wants(suspects=True, limit=5)))
    assert nobody == []
    looked, blocks["look"] = await at.blocks(lambda: at.store.look(["default"], ["work"]))
    assert looked.suspect_due_in is None
    assert {verb: number for verb, number in blocks.items() if number > AT_MOST} == {}, blocks


async def test_a_backlog_reads_at_most_its_counting_limit(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.fill(timedelta(hours=1), 0, "work")
    for kind in ("one", "other"):
        await at.fill(timedelta(hours=-1), 1, kind)
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    (backlog,), blocks = await at.blocks(lambda: PostgresReader(at.store).backlog(100))
    assert (backlog.queue, backlog.due, backlog.is_more) == ("default", 100, True)
    assert backlog.oldest > timedelta(minutes=59)
    assert blocks <= AT_MOST


async def test_a_claim_reads_only_the_suspects_of_its_own_lanes(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.fill(timedelta(hours=-1), 5, "unhandled", losses=2)
    await at.store.enqueue([job() for _ in range(20)])
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    leased, blocks = await at.blocks(lambda: at.store.claim(wants(limit=10)))
    assert len(leased) == 10
    assert blocks <= AT_MOST


async def test_a_producer_that_finds_its_key_taken_reads_no_other_keys(measured: tuple[Measured, bool]) -> None:
    at, analyzed = measured
    await at.connection.execute(_FILL_KEYS, FEWER)
    await at.fill(timedelta(hours=1), 5, "other", number=FEWER)
    await at.store.enqueue(_keyed()[:1])
    if analyzed:
        await at.connection.execute("VACUUM ANALYZE")
    _, blocks = await at.blocks(lambda: at.store.enqueue(_keyed()))
    assert blocks <= AT_MOST
    forgotten, blocks = await at.blocks(lambda: at.store.fetch("forget_keys", 10))
    assert [row["forgotten"] for row in forgotten] == [0]
    assert blocks <= AT_MOST
