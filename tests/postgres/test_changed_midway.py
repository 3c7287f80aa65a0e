"""A verb locks thousands of rows and then reads partitions while others change rows that it has not reached yet.

PostgreSQL 18 can crash when one statement does both (docs/decisions/0003-nothing-waits-for-a-job.md).
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

import asyncpg
import pytest

from holdfast.domain.job import JobState, Lease
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, Deleting, Finish
from holdfast.store.postgres import maintenance
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import NOON, RETENTION, id_of, is_sound, pruned
from tests.store_contract.steps import LEASE, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

Answer = TypeVar("Answer")

_MANY = 2000
_LAST = slice(-3, None)
"""The rows to change once the first row is locked."""
_TIMES = 8
_DIE_AT_THEIR_RESCUE = "UPDATE holdfast.lease SET crash_limit = 1, suspicion = 3"
# The server watches for the lock, because a client would learn of it too late.
_ONCE_LOCKED = """
CREATE FUNCTION pg_temp.once_locked(is_locked text, first uuid, change text, ids uuid[], claims uuid[])
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    is_time boolean := false;
    changed integer;
    deadline timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
    WHILE NOT is_time AND clock_timestamp() < deadline LOOP
        EXECUTE is_locked INTO is_time USING first;
    END LOOP;
    IF is_time THEN
        EXECUTE change INTO changed USING ids, claims;
    END IF;
    RETURN coalesce(changed, 0);
END
$$
"""
_IS_LEASE_LOCKED = "SELECT xmax <> '0'::xid FROM holdfast.lease WHERE id = $1"
_RENEW = """
SELECT count(*) FROM holdfast.renew($1::uuid[], $2::uuid[], array_fill(interval '30 seconds', ARRAY[cardinality($1)]),
                                    array_fill(NULL::text, ARRAY[cardinality($1)]))
"""
_IS_KEY_LOCKED = "SELECT xmax <> '0'::xid FROM holdfast.key WHERE job_id = $1"
_TAKE_KEYS = """
SELECT count(*) FROM unnest($1::uuid[], $2::uuid[]) AS old (id, claim), LATERAL holdfast.enqueue(
    kind => 'work', payload => '1', key => old.id::text, key_window => '1 second'
) AS new WHERE new.is_new
"""


@dataclass(frozen=True, slots=True)
class _Race:
    store: PostgresStore
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def leased(self) -> list[Lease]:
        await self.store.enqueue([job() for _ in range(_MANY)])
        leased = await self.store.claim(wants(limit=_MANY))
        assert len(leased) == _MANY
        return sorted((each.lease for each in leased), key=lambda lease: lease.id)

    async def changed_during(self, verb: Awaitable[Answer], *watched: object) -> tuple[int, Answer]:
        """Return how many rows were changed while the verb was taking its locks, and the verb's answer."""
        change = self.connection.fetchval("SELECT pg_temp.once_locked($1, $2, $3, $4, $5)", *watched)
        changed, answer = await asyncio.gather(change, verb)
        return changed, answer

    async def renewed_during(self, verb: Awaitable[Answer], leases: Sequence[Lease]) -> tuple[int, Answer]:
        last = leases[_LAST]
        ids, claims = [lease.id for lease in last], [lease.claim for lease in last]
        return await self.changed_during(verb, _IS_LEASE_LOCKED, leases[0].id, _RENEW, ids, claims)

    async def until_met(self, race: Callable[[], Awaitable[int]]) -> None:
        """Repeat the race, because the verb may finish before the change."""
        met, deadline = 0, time.monotonic() + 60
        while met < _TIMES:
            assert time.monotonic() < deadline, "the change always came too late"
            met += await race() > 0
        await is_sound(self.connection)


@pytest.fixture
async def race(database: Database) -> AsyncIterator[_Race]:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await connection.execute(_ONCE_LOCKED)
        # Prepare the statement now, because planning it takes as long as locking the rows.
        await connection.fetch(_RENEW, [], [])
        yield _Race(store, connection)


async def test_leases_are_renewed_while_others_die_at_their_rescue(race: _Race) -> None:
    async def rescue() -> int:
        leases = await race.leased()
        await race.connection.execute(_DIE_AT_THEIR_RESCUE)
        await PostgresClock(race.store).advance(LEASE)
        renewed, rescued = await race.renewed_during(race.store.rescue(_MANY + 1), leases)
        assert Counter(each.state for each in rescued) == {JobState.DEAD: _MANY - renewed}
        # The renewed leases must not come first in the next round.
        await race.store.finish([Finish(lease, Transition(Move.SUCCEED)) for lease in leases[_LAST]])
        return renewed

    await race.until_met(rescue)


async def test_leases_are_renewed_while_their_jobs_are_canceled(race: _Race) -> None:
    async def cancel() -> int:
        leases = await race.leased()
        final, running = leases[::10], [lease for number, lease in enumerate(leases) if number % 10]
        await race.store.finish([Finish(lease, Transition(Move.SUCCEED)) for lease in final])
        ids = [*(lease.id for lease in leases), *(uuid4() for _ in range(100))]
        renewed, answers = await race.renewed_during(race.store.cancel(ids), running)
        expected = {Canceling.REQUESTED: len(running), Canceling.FINAL: len(final), Canceling.UNKNOWN: 100}
        assert Counter(answers) == expected
        return renewed

    await race.until_met(cancel)


async def test_keys_get_new_jobs_while_their_old_jobs_are_pruned(race: _Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_BATCH", _MANY + 1)
    clock = PostgresClock(race.store)

    async def prune() -> int:
        await clock.freeze(NOON - 4 * RETENTION)
        old = sorted(id_of(5) for _ in range(_MANY))
        await race.store.enqueue([job(id=id, key=str(id)) for id in old])
        leases = [each.lease for each in await race.store.claim(wants(limit=_MANY))]
        await race.store.finish([Finish(lease, Transition(Move.SUCCEED)) for lease in leases])
        await clock.freeze(NOON)
        taken, counts = await race.changed_during(
            pruned(race.store), _IS_KEY_LOCKED, old[0], _TAKE_KEYS, old[_LAST], old[_LAST]
        )
        # A job whose key is being taken over at that moment stays until the next pass.
        assert counts["jobs_pruned"] + (await pruned(race.store))["jobs_pruned"] == _MANY
        assert not await race.connection.fetch("SELECT FROM holdfast.job WHERE id = ANY ($1)", old)
        assert not await race.connection.fetch("SELECT FROM holdfast.key WHERE job_id = ANY ($1)", old)
        await race.store.cancel([row["id"] for row in await race.connection.fetch("SELECT id FROM holdfast.ready")])
        return taken

    await race.until_met(prune)


async def test_keys_get_new_jobs_while_their_old_jobs_are_deleted(race: _Race) -> None:
    clock = PostgresClock(race.store)

    async def delete() -> int:
        await clock.freeze(NOON - RETENTION)
        old = sorted(id_of(1) for _ in range(_MANY))
        await race.store.enqueue([job(id=id, key=str(id)) for id in old])
        leases = [each.lease for each in await race.store.claim(wants(limit=_MANY))]
        await race.store.finish([Finish(lease, Transition(Move.SUCCEED)) for lease in leases])
        await clock.freeze(NOON)
        taken, answers = await race.changed_during(
            race.store.delete(old), _IS_KEY_LOCKED, old[0], _TAKE_KEYS, old[_LAST], old[_LAST]
        )
        assert set(answers) == {Deleting.DELETED}
        assert not await race.connection.fetch("SELECT FROM holdfast.job WHERE id = ANY ($1)", old)
        assert not await race.connection.fetch("SELECT FROM holdfast.key WHERE job_id = ANY ($1)", old)
        await race.store.cancel([row["id"] for row in await race.connection.fetch("SELECT id FROM holdfast.ready")])
        return taken

    await race.until_met(delete)
