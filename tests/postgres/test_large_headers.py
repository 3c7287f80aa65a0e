"""Headers beyond the limit, as earlier releases accepted from SQL, do not make a claim large."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.domain.json_text import encode
from holdfast.store.contract import Store
from holdfast.store.memory.store import MemoryStore
from tests.conftest import STORES
from tests.databases import Servers, opened_store
from tests.store_contract.steps import job, wants


@pytest.fixture(params=("memory", *STORES))
async def store(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with servers.get(request.param).emptied_database() as database:
        async with opened_store(database.url) as opened:
            yield opened


async def test_headers_count_against_the_limit_of_a_claim(store: Store) -> None:
    headers = encode({"x": "x" * 100_000})
    jobs = [job(headers=headers), job(), *(job(headers=headers) for _ in range(3))]
    await store.enqueue(jobs)
    taken = await store.claim(replace(wants(), most_bytes=250_000))
    assert [leased.id for leased in taken] == [each.id for each in jobs[:4]]
    assert [leased.headers for leased in taken] == [headers, None, headers, headers]
    assert [leased.payload for leased in taken] == [each.payload for each in jobs[:4]]
    assert [leased.id for leased in await store.claim(replace(wants(), most_bytes=1))] == [jobs[4].id]
