"""How a finisher handles outcomes that are still unwritten when its worker is about to end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.handlers import make_handler
from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.domain.retry import exponential
from holdfast.store.contract import Fenced, Finish, Store
from holdfast.worker import finisher as module
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJob

Answer = Callable[["Requests", list[UUID]], Any]
PATIENCE = 60.0
TIME = 2.0
"""In seconds: for half of it nothing happens here but waiting."""


class Requests:
    """A store that answers the first requests to finish with the given answers, and writes all later ones."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[list[UUID]] = []
        self.written: set[UUID] = set()
        self.let_go = asyncio.Event()

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        ids = [finish.lease.id for finish in finishes]
        assert len(set(ids)) == len(ids), "nothing is written twice in one request"
        self.asked.append(ids)
        answer = self.answers.pop(0) if self.answers else writes
        return cast("list[Fenced]", await answer(self, ids))


async def writes(store: Requests, ids: list[UUID]) -> list[Fenced]:
    answers = [Fenced.ALREADY if id in store.written else Fenced.DONE for id in ids]
    store.written.update(ids)
    return answers


async def hangs(store: Requests, ids: list[UUID]) -> list[Fenced]:
    await store.let_go.wait()
    return await writes(store, ids)


async def hangs_for_ever(store: Requests, ids: list[UUID]) -> list[Fenced]:
    """Like a request to a server that is cut off: even canceling it has no effect."""
    while not store.let_go.is_set():
        with suppress(asyncio.CancelledError):
            await store.let_go.wait()
    raise StoreUnavailable("the connection was lost")


async def fails(store: Requests, ids: list[UUID]) -> list[Fenced]:
    raise StoreUnavailable("away")


async def is_canceled(store: Requests, ids: list[UUID]) -> list[Fenced]:
    raise asyncio.CancelledError


async def breaks(store: Requests, ids: list[UUID]) -> list[Fenced]:
    raise ValueError("a bug of the driver")


async def finds_them_locked(store: Requests, ids: list[UUID]) -> list[Fenced]:
    return [Fenced.LOCKED for _ in ids]


def held() -> HeldJob:
    handler = make_handler("do", lambda job: None)
    lease = Lease(uuid4(), 1, uuid4())
    job = LeasedJob(lease, "do", "default", 0, Json("{}"), None, "", "", 1, 0, None, datetime.now(UTC))
    return HeldJob(job, handler, 30.0, 0.0, asyncio.get_running_loop())


class Case:
    def __init__(self, *answers: Answer) -> None:
        self.store = Requests(*answers)
        self.reported: list[tuple[UUID, Fenced]] = []
        self.finisher = Finisher(cast(Store, self.store), self._report)
        self.outcomes = [held() for _ in range(5)]

    def _report(self, batch: list[HeldJob], answers: list[Fenced]) -> None:
        self.reported += [(each.id, fenced) for each, fenced in zip(batch, answers, strict=True)]

    @property
    def ids(self) -> list[UUID]:
        return [each.id for each in self.outcomes]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Enter with all outcomes in the finisher and its first request sent."""
        running = asyncio.create_task(self.finisher.run())
        for each in self.outcomes:
            self.finisher.put(each, Transition(Move.SUCCEED))
        async with asyncio.timeout(PATIENCE):
            while not self.store.asked:  # noqa: ASYNC110 - a look
                await asyncio.sleep(0)
        try:
            yield
        finally:
            self.finisher.stop()
            self.store.let_go.set()
            await running


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the regular retry wait for an hour, so that only the last writes can succeed."""
    monkeypatch.setattr("holdfast.worker.loop._BACKOFF", exponential(base="1h", max="1h", jitter="0s"))
    monkeypatch.setattr(module, "_TRY_SECONDS", 0.05)


@pytest.mark.parametrize(
    "answers",
    [
        [hangs],
        [hangs, hangs, hangs],
        [hangs, fails, fails],
        [hangs, finds_them_locked, finds_them_locked],
        [hangs, is_canceled, breaks],
        [fails],
        [fails, fails, hangs],
    ],
    ids=lambda answers: " ".join(answer.__name__ for answer in answers),
)
async def test_every_outcome_is_written_and_reported_once(answers: list[Answer]) -> None:
    case = Case(*answers)
    async with case.writing():
        assert await case.finisher.drained(TIME) == 0
        assert case.store.written == set(case.ids)
    assert sorted(id for id, _ in case.reported) == sorted(case.ids)


async def test_outcomes_not_yet_sent_are_written_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hanging request may have locked the rows it writes."""
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
    case = Case(hangs)
    async with case.writing():
        assert await case.finisher.drained(TIME) == 0
    first, *others = case.store.asked
    assert first == case.ids[:2]
    assert [id for asked in others for id in asked][:3] == case.ids[2:]
    assert sorted(id for id, _ in case.reported) == sorted(case.ids)


async def test_a_late_answer_is_not_reported_again() -> None:
    case = Case(hangs)
    async with case.writing():
        assert await case.finisher.drained(TIME) == 0
    assert len(case.store.asked) == 2
    assert [fenced for _, fenced in case.reported] == [Fenced.DONE] * 5


async def test_an_outcome_that_arrives_at_the_last_moment_is_written_too() -> None:
    late = held()

    async def writes_and_meets_another(store: Requests, ids: list[UUID]) -> list[Fenced]:
        case.finisher.put(late, Transition(Move.SUCCEED))
        return await writes(store, ids)

    case = Case(hangs, writes_and_meets_another)
    async with case.writing():
        assert await case.finisher.drained(TIME) == 0
        assert case.store.written == {*case.ids, late.id}


async def test_a_server_that_is_cut_off_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(*[hangs_for_ever] * 50)
    async with case.writing():
        # These requests cannot end before `drained` returns.
        assert await case.finisher.drained(0.5) == 5
        assert case.reported == []
        assert "stopping although outcomes could not be written" in caplog.text


async def test_with_no_time_left_nothing_more_is_sent() -> None:
    case = Case(hangs)
    async with case.writing():
        assert await case.finisher.drained(0) == 5
    assert len(case.store.asked) == 1
