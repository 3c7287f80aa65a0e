"""What becomes of a look that takes longer than a claim can wait for it."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.store.contract import Looked
from holdfast.worker.looking import Looking
from tests.worker.harness import PATIENCE


@pytest.mark.parametrize("due_in", [timedelta(0), timedelta(milliseconds=50)])
async def test_what_a_late_look_found_is_told_when_it_is_due(due_in: timedelta) -> None:
    is_due, may_answer = asyncio.Event(), asyncio.Event()

    async def look() -> Looked:
        await may_answer.wait()
        return Looked(due_in=due_in, suspect_due_in=None)

    looking = Looking(look, is_due.set, lambda: None)
    assert await looking.answer(is_patient=False) is None
    assert not is_due.is_set()
    may_answer.set()
    async with asyncio.timeout(PATIENCE):
        await is_due.wait()
    await looking.close()


async def test_what_a_look_found_for_whoever_waits_is_not_told_again() -> None:
    is_due = asyncio.Event()

    async def look() -> Looked:
        return Looked(due_in=timedelta(milliseconds=1), suspect_due_in=None)

    looking = Looking(look, is_due.set, lambda: None)
    assert await looking.answer(is_patient=True) is not None
    heard = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.1, heard.set_result, None)
    await heard
    assert not is_due.is_set()
    await looking.close()
