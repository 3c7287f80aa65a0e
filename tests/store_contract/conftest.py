"""`case`: each store in turn, empty, with its clock stopped at START.

A test of an optional part of the contract declares it with `@needs(Part.KEYS)`. It is not collected for the mappings of
ROW_CASES that lack the part; docs/rows.md lists the parts.
"""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import STORES
from tests.databases import ROW_CASES, Servers, StoreCase, no_task_left, opened_case
from tests.store_contract.steps import START

# "rows-outbox" covers only a part of what "rows-whole" covers.
_MAPPINGS = [pytest.param(name, marks=pytest.mark.long if name == "rows-outbox" else []) for name in ROW_CASES]


@pytest.fixture(params=("memory", *STORES, *_MAPPINGS))
async def store_case(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[StoreCase]:
    """Yields each store, including the tables of applications."""
    async with opened_case(request.param, servers) as case, no_task_left():
        yield case


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = {item for item in items if _lacks(item)}
    if lacking:
        config.hook.pytest_deselected(items=list(lacking))
        items[:] = [item for item in items if item not in lacking]


def _lacks(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    case = ROW_CASES.get(callspec.params.get("store_case", "")) if callspec is not None else None
    if case is None:
        return False
    needed = {part for marker in item.iter_markers("needs") for part in marker.args}
    return not needed <= case.rows.parts
