"""`case`: each store in turn, empty, with its clock stopped at START; `events`: the store's subscriptions."""

import pytest

from holdfast.store.events import EventStore
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.store import PostgresStore
from tests.databases import StoreCase
from tests.store_contract.steps import START


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


@pytest.fixture
def events(case: StoreCase) -> EventStore:
    match case.store:
        case MemoryStore():
            return MemoryEvents(case.store)
        case PostgresStore():
            return PostgresEvents(case.store)
        case _:
            raise TypeError(case.name)
