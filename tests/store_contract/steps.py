"""Helpers for the behavior suite: jobs, claims and endings with the usual defaults."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import UUID, uuid4

import pytest

from holdfast.domain.job import IfExists, Job, JobError, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.domain.lifecycle import LEASE_LOST, SUSPECT, Move, Transition
from holdfast.store.contract import ClaimRequest, Fenced, Finish, JobFilter, KindClaim
from holdfast.store.parts import Part
from tests.databases import StoreCase

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

needs = pytest.mark.needs

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
HOLDER = UUID("00000001-0000-4000-0000-000000000000")
OTHER_HOLDER = UUID("00000002-0000-4000-0000-000000000000")
BROKEN = JobError(code="BROKEN", type="ValueError", message="no such invoice", traceback="line 1\nline 2")

ENDINGS: Mapping[str, Transition] = {
    "succeed": Transition(Move.SUCCEED, result=Json('{"pages": 3}')),
    "retry": Transition(Move.RETRY, delay=5 * SECOND, error=BROKEN),
    "exhaust": Transition(Move.EXHAUST, error=BROKEN),
    "fail": Transition(Move.FAIL, error=BROKEN),
    "snooze": Transition(Move.SNOOZE, delay=5 * SECOND),
    "cancel": Transition(Move.CANCEL, error=JobError(code="CANCELED", type="Cancel", message="not wanted")),
    "interrupt": Transition(Move.INTERRUPT, error=JobError(code="INTERRUPTED", type="Interrupted", message="deployed")),
}
FINAL_ENDINGS = [name for name, transition in ENDINGS.items() if transition.state.is_final]


_TOLD_APART = {"dead": Part.DEAD, "exhaust": Part.DEAD, "canceled": Part.CANCELED, "cancel": Part.CANCELED}


def told_apart(values: Iterable[str]) -> "list[ParameterSet]":
    """Parametrize tests that see the state with states or endings: some tables store several of them as failed."""
    parts = {value: _TOLD_APART.get(value) for value in values}
    return [pytest.param(value, id=str(value), marks=[needs(part)] if part else []) for value, part in parts.items()]


class Options(TypedDict, total=False):
    kind: str
    payload: Json
    id: UUID
    queue: str
    priority: int
    delay: timedelta | None
    run_at: datetime | None
    tenant: str
    correlation_id: str
    max_attempts: int | None
    key: str | None
    if_exists: IfExists
    window: timedelta | None
    headers: Json | None


def job(**options: Unpack[Options]) -> NewJob:
    complete: Options = {"kind": "work", "payload": encode({}), **options}
    return NewJob(**complete)


def wants(
    *kinds: str,
    limit: int = 100,
    queues: tuple[str, ...] = ("default",),
    lease: timedelta = LEASE,
    holder: UUID = HOLDER,
    suspects: bool = False,
    limits: Mapping[str, int] | None = None,
) -> ClaimRequest:
    wanted = {kind: KindClaim(lease, (limits or {}).get(kind, limit)) for kind in kinds or ("work",)}
    return ClaimRequest(holder=holder, limit=limit, queues=queues, kinds=wanted, suspects=suspects)


async def enqueued(case: StoreCase, **options: Unpack[Options]) -> UUID:
    (answer,) = await case.store.enqueue([job(**options)])
    return answer.id


async def claimed(case: StoreCase, request: ClaimRequest | None = None) -> LeasedJob:
    """Claim and return the only job found."""
    (leased,) = await case.store.claim(request or wants())
    return leased


async def running(case: StoreCase, **options: Unpack[Options]) -> LeasedJob:
    """Enqueue a job and claim it."""
    id = await enqueued(case, **options)
    leased = await claimed(case, wants(options.get("kind", "work"), queues=(options.get("queue", "default"),)))
    assert leased.id == id
    return leased


async def finished(case: StoreCase, lease: Lease, transition: Transition) -> Fenced:
    (answer,) = await case.store.finish([Finish(lease, transition)])
    return answer


async def lost(case: StoreCase, times: int, **options: Unpack[Options]) -> UUID:
    """Enqueue a job and let it lose its lease this many times while other jobs run in its worker."""
    id = await enqueued(case, **options)
    for loss in range(times):
        await claimed(case, wants(options.get("kind", "work"), suspects=loss >= SUSPECT))
        await case.clock.advance(LEASE)
        assert [rescued.id for rescued in await case.store.rescue(10)] == [id]
    return id


async def crash(case: StoreCase, *, crash_limit: int = 2) -> LeasedJob:
    """Let the only suspect run alone and its worker die."""
    leased = await claimed(case, wants(suspects=True))
    assert await case.store.run_alone(leased.lease, crash_limit) is Fenced.DONE
    await case.clock.advance(LEASE)
    assert [rescued.id for rescued in await case.store.rescue(10)] == [leased.id]
    return leased


async def dead_of_crashes(case: StoreCase) -> UUID:
    """Enqueue a job and let it end dead because its worker died."""
    id = await lost(case, SUSPECT)
    await crash(case, crash_limit=1)
    return id


async def in_state(case: StoreCase, state: JobState, **options: Unpack[Options]) -> UUID:
    """Bring a new job into this state in the shortest way."""
    if state is JobState.READY:
        return await enqueued(case, **options)
    leased = await running(case, **options)
    ending = {
        JobState.SUCCEEDED: "succeed",
        JobState.FAILED: "fail",
        JobState.DEAD: "exhaust",
        JobState.CANCELED: "cancel",
    }.get(state)
    if ending is not None:
        assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.DONE
    return leased.id


async def shown(case: StoreCase, id: UUID) -> Job:
    found = await case.reader.get(id)
    assert found is not None
    return found


async def everything(case: StoreCase) -> list[Job]:
    return await case.reader.list(JobFilter(), 1000)


async def all_claimable(case: StoreCase, *kinds: str) -> list[UUID]:
    return [leased.id for leased in await case.store.claim(wants(*kinds))]


def error_dicts(found: Job) -> list[dict[str, Any]]:
    errors = found.as_dict()["errors"]
    assert isinstance(errors, list)
    return errors


def stored_error(error: JobError, *, attempt: int, at: datetime) -> dict[str, object]:
    """Return the error as the store keeps it: with the failed attempt and the store's time."""
    return {**error.as_dict(), "attempt": attempt, "at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def lease_lost(*, attempt: int, at: datetime) -> dict[str, object]:
    return stored_error(LEASE_LOST, attempt=attempt, at=at)


def with_new_ids(number: int) -> Sequence[NewJob]:
    return [job() for _ in range(number)]


def stranger(lease: Lease) -> Lease:
    """Return a lease on the same job and fence under another claim."""
    return lease._replace(claim=uuid4())
