"""What a look at everything costs, decided by the test and not by the machine."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast.store.contract import ClaimRequest
from holdfast.store.postgres import lanes
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes, Starts, Survey
from tests.store_contract.steps import wants

WORK = Lane("default", 5, "work")
OTHER = Lane("default", 5, "other")
FLOOR = Floor(datetime(2030, 1, 1, tzinfo=UTC), UUID(int=5))
DEAR = 10 * lanes._CHEAP_SECONDS
DUTY = lanes._SHARE_OF_TIME * DEAR
BEGAN = 1000.0
FIRST_MOMENT, MOMENT = FLOOR.run_at + timedelta(seconds=1), FLOOR.run_at + timedelta(hours=2)
BOTH = wants("work", "other")


def looks_are(price: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dear` or `cheap`, from the first one on."""
    monkeypatch.setattr(lanes, "_CHEAP_SECONDS", {"dear": -1.0, "cheap": float("inf")}[price])
    monkeypatch.setattr(lanes, "_LOOKS_COMPARED", 1)
    monkeypatch.setattr(lanes, "_SECONDS_PER_CLAIMED_JOB", 0.0)


def looked(*claimed: Lane, cost: float, times: int = lanes._LOOKS_COMPARED, ended: float = 1000.0) -> Lanes:
    """Lanes that have just had so many full looks of this cost, each of which found a job in each of these."""
    memory = Lanes()
    ask = replace(memory.first_ask(wants("work", "other"), ended - cost), learns_floors=True)
    found = [(lane, FLOOR) for lane in claimed]
    for _ in range(times):
        memory.learn(
            ask,
            dict(found),
            len(found),
            ended - cost - len(found) * lanes._SECONDS_PER_CLAIMED_JOB,
            ended,
            memory.generation,
        )
    return memory


def starts(ask: Ask) -> dict[Lane, Floor]:
    return {probe.lane: probe.floor for probe in ask.probes}


def lanes_of(survey: Starts) -> list[Lane]:
    return [Lane(*each) for each in zip(survey.queues, survey.priorities, survey.kinds, strict=True)]


def answered(
    memory: Lanes,
    survey: Starts,
    at: float,
    firsts: dict[Lane, Floor] | None = None,
    *,
    cost: float = DEAR,
    moment: datetime = MOMENT,
) -> None:
    """The survey has found these first jobs, and nothing else that is due."""
    found = dict.fromkeys(lanes_of(survey)) | (firsts or {})
    memory.surveyed(Survey(found, moment, cost), at, memory.generation)


def claimed(memory: Lanes, last: Floor, at: float, request: ClaimRequest = BOTH) -> None:
    """A job of the lane WORK, up to which its floor moves."""
    memory.learn(memory.first_ask(request, at), {WORK: last}, 1, at, at, memory.generation)


def settled(*active: Lane) -> Lanes:
    """Lanes for which looks are dear, with one survey behind them, which began at BEGAN, and a claim after it."""
    memory = looked(*active, cost=DEAR, ended=BEGAN - DEAR)
    claimed(memory, FLOOR, BEGAN)
    survey = memory.start_survey(BEGAN, is_idle=False)
    assert survey is not None
    answered(memory, survey, BEGAN + DEAR, moment=FIRST_MOMENT)
    claimed(memory, FLOOR, BEGAN + 1.1 * DEAR)
    return memory
