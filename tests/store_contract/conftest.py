"""`case`: each store in turn, empty, its clock stopped at START."""

import pytest

from tests.databases import StoreCase
from tests.store_contract.steps import START


@pytest.fixture
async def case(store_case: StoreCase, cheap_looks: None) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case
