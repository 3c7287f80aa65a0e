"""Shards: N of them cover every job exactly once, and every store and language assigns a job to the same shard."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.store.contract import Shard
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import enqueued, job, lost, needs, wants, with_new_ids


@pytest.mark.parametrize(
    ("id", "count", "index"),
    [
        # Computed with md5sum, so no release of Holdfast can move a job to another shard.
        ("01890a5d-ac96-774b-bcce-b302099a8057", 2, 1),
        ("01890a5d-ac96-774b-bcce-b302099a8057", 7, 4),
        ("00000000-0000-0000-0000-000000000000", 2, 0),
        ("00000000-0000-0000-0000-000000000000", 7, 5),
    ],
)
@needs(Part.CORRELATION_IDS)
async def test_a_job_stays_in_its_shard(case: StoreCase, id: str, count: int, index: int) -> None:
    await case.store.enqueue([replace(job(), id=UUID(id))])
    for other in range(count):
        shard = Shard(other, count)
        due = (await case.store.look(["default"], ["work"], shard=shard)).due_in
        claimed = await case.store.claim(replace(wants(), shard=shard))
        assert (due == timedelta(0), len(claimed)) == (other == index, int(other == index))
        await case.store.release([leased.lease for leased in claimed])


async def test_all_shards_together_take_every_job_once(case: StoreCase) -> None:
    jobs = with_new_ids(200)
    await case.store.enqueue(jobs)
    taken: list[UUID] = []
    for index in range(3):
        claimed = await case.store.claim(replace(wants(limit=500), shard=Shard(index, 3)))
        assert 30 < len(claimed) < 110
        assert all(Shard(index, 3).has(leased.lease.id) for leased in claimed)
        taken += [leased.lease.id for leased in claimed]
    assert sorted(taken) == sorted(new.id for new in jobs)


async def test_a_single_shard_takes_every_job(case: StoreCase) -> None:
    id = await enqueued(case)
    (leased,) = await case.store.claim(replace(wants(), shard=Shard(0, 1)))
    assert leased.lease.id == id


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_suspects_have_a_shard_too(case: StoreCase) -> None:
    id = await lost(case, 2)
    mine = next(index for index in range(2) if Shard(index, 2).has(id))
    for index in (1 - mine, mine):
        due = (await case.store.look(["default"], ["work"], shard=Shard(index, 2))).suspect_due_in
        claimed = await case.store.claim(replace(wants(suspects=True), shard=Shard(index, 2)))
        assert (due is not None, len(claimed)) == (index == mine, int(index == mine))


@pytest.mark.parametrize(("index", "count"), [(0, 0), (2, 2), (-1, 2), (5, -5)])
def test_an_impossible_shard_is_refused(index: int, count: int) -> None:
    with pytest.raises(InvalidInput, match="shard"):
        Shard(index, count)
