"""Looks that take longer than a claim can wait for them."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers, make_handler
from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest, Looked, Shard
from holdfast.store.memory.store import MemoryStore
from holdfast.worker.looking import Looking, is_due
from holdfast.worker.worker import Worker
from tests.store_contract.steps import job
from tests.worker.harness import PATIENCE, fast, until
from tests.worker.test_idling import no_renewals


@pytest.mark.parametrize("due_in", [timedelta(0), timedelta(milliseconds=50)])
async def test_a_job_found_by_a_late_look_is_announced_when_it_is_due(due_in: timedelta) -> None:
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


async def test_an_answer_given_to_a_waiting_claim_is_not_announced_again() -> None:
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


class Looks:
    """Looks of which each ends when it is told what it has found."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[Looked]] = []
        self.is_due = asyncio.Event()
        self.looking = Looking(self._look, self.is_due.set, lambda: None)

    async def _look(self) -> Looked:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    async def begin(self, number: int) -> None:
        await until(lambda: len(self.begun) >= number, f"{number} looks have begun")

    async def end(self, due_in: timedelta | StoreUnavailable | None) -> None:
        if isinstance(due_in, StoreUnavailable):
            self.begun[-1].set_exception(due_in)
        else:
            self.begun[-1].set_result(Looked(due_in, suspect_due_in=None))
        for _ in range(5):
            await asyncio.sleep(0)


NOTHING = timedelta(hours=1)
DUE = timedelta(0)


async def test_looks_that_fail_in_the_background_are_logged_once_and_so_is_their_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = Looks()
    for number, error in enumerate((StoreUnavailable("away"), StoreUnavailable("still away"), None, None), 1):
        assert await looks.looking.answer(is_patient=False) is None
        await looks.begin(number)
        await looks.end(error)
    await looks.looking.close()
    said = [record.getMessage().split("  ")[0] for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["cannot look at the queue, late jobs may wait", "looks at the queue again"]


async def test_a_look_that_began_before_the_question_does_not_answer_that_nothing_is_due() -> None:
    """The job that the caller was told of may have been committed after the look's snapshot."""
    looks = Looks()
    looks.looking.keep_up()
    await looks.begin(1)
    asking = asyncio.create_task(looks.looking.answer(is_patient=False))
    await looks.end(NOTHING)
    await looks.begin(2)
    await looks.end(DUE)
    answer = await asking
    # On a slow machine the second look is too late for the answer.
    assert looks.is_due.is_set() if answer is None else answer.due_in == DUE
    assert len(looks.begun) == 2
    await looks.looking.close()


async def test_after_a_slow_look_that_began_before_the_question_there_is_one_more() -> None:
    looks = Looks()
    looks.looking.keep_up()
    await looks.begin(1)
    assert await looks.looking.answer(is_patient=False) is None
    await looks.end(NOTHING)
    await looks.begin(2)
    assert not looks.is_due.is_set()
    await looks.end(DUE)
    async with asyncio.timeout(PATIENCE):
        await looks.is_due.wait()
    assert len(looks.begun) == 2
    await looks.looking.close()


async def test_a_look_that_began_before_the_question_and_found_a_due_job_is_enough() -> None:
    looks = Looks()
    looks.looking.keep_up()
    await looks.begin(1)
    assert await looks.looking.answer(is_patient=False) is None
    await looks.end(DUE)
    async with asyncio.timeout(PATIENCE):
        await looks.is_due.wait()
    assert len(looks.begun) == 1
    await looks.looking.close()


async def test_one_slow_look_answers_all_questions_of_one_turn() -> None:
    looks = Looks()
    turn = looks.looking.begun
    assert await looks.looking.answer(is_patient=False, after=turn) is None
    assert await looks.looking.answer(is_patient=False, after=turn) is None
    await looks.end(NOTHING)
    heard = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.2, heard.set_result, None)
    await heard
    assert len(looks.begun) == 1
    await looks.looking.close()


class SlowLooks(MemoryStore):
    """A look returns what was due when it began, once it may. As in PostgreSQL, a claim finds what a look found."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.looks = 0
        self._is_known = False

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        self.looks += 1
        looked = await super().look(queues, kinds, shard=shard)
        await self.may_answer.wait()
        self._is_known = is_due(looked)
        return looked

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        return await super().claim(request) if self._is_known else []


async def test_a_worker_told_of_a_job_during_a_look_looks_once_more() -> None:
    async def work(job: object) -> None: ...

    store, handlers = SlowLooks(), Handlers()
    handlers.add(make_handler("work", work))
    worker = Worker(store, no_renewals, handlers, Failures(), fast())
    worker.start()
    try:
        store.may_answer.set()
        await worker.fill()
        store.may_answer.clear()
        before = store.looks
        # A poll asks again after its claim, but for both questions one look is enough.
        assert (await worker.fill(looks_first=True)).claimed == 0
        assert store.looks == before + 1
        await store.enqueue([job()])
        assert (await worker.fill()).claimed == 0
        store.may_answer.set()
        await until(lambda: worker.may_claim, "a second look finds the job")
        assert store.looks == before + 2
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.is_empty, "the job has ended")
    finally:
        await worker.close(0)
