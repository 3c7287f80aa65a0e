"""Death events on every store: one job for each death and each matching subscription."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.event import EVENT_HEADER
from holdfast.domain.job import Job, JobError, JobState
from holdfast.domain.json_text import Json, decode
from holdfast.domain.lifecycle import SUSPECT, Move, Transition
from holdfast.store.contract import Fenced, Finish, Retrying
from holdfast.store.events import EventStore, NewSubscription
from tests.databases import StoreCase
from tests.store_contract.steps import (
    BROKEN,
    ENDINGS,
    HOLDER,
    SECOND,
    START,
    claimed,
    crash,
    dead_of_crashes,
    enqueued,
    everything,
    finished,
    lost,
    running,
    shown,
    wants,
)

DEAD = "work.dead"


@pytest.fixture(autouse=True)
async def declared(events: EventStore) -> None:
    await events.declare([NewSubscription(DEAD, "holdfast.dead.work", queue="mourning", priority=2, max_attempts=9)])


async def made(case: StoreCase, kind: str = DEAD) -> list[Job]:
    return [job for job in await everything(case) if job.kind == kind]


async def deaths(case: StoreCase, kind: str = DEAD) -> list[Any]:
    """Return the payloads of the jobs made by deaths, newest first."""
    return [job.payload for job in await made(case, kind)]


@pytest.mark.parametrize("ending", ["fail", "exhaust"])
async def test_a_death_makes_one_job(case: StoreCase, ending: str) -> None:
    leased = await running(case, payload=Json('{"n": 1.50}'), tenant="acme", correlation_id="order-4", key="k")
    await case.clock.advance(SECOND)
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.DONE
    (job,) = await made(case)
    assert job.payload == {
        "id": str(leased.id),
        "kind": "work",
        "payload": {"n": 1.5},
        "code": BROKEN.code,
        "message": BROKEN.message,
        "state": ENDINGS[ending].state,
        "attempts": 1,
        "tenant": "acme",
        "correlation_id": "order-4",
    }
    assert (job.state, job.queue, job.priority, job.max_attempts) == (JobState.READY, "mourning", 2, 9)
    assert (job.tenant, job.correlation_id, job.key) == ("acme", "order-4", None)
    assert (job.created_at, job.run_at, job.attempt) == (START + SECOND, START + SECOND, 0)
    header = job.headers[EVENT_HEADER]
    assert (header["type"], header["published_at"]) == ("holdfast.dead.work", "2030-01-01T12:00:01.000000Z")
    mourner = await claimed(case, wants(DEAD, queues=("mourning",)))
    assert '{"n": 1.50}' in mourner.payload


@pytest.mark.parametrize("ending", ["succeed", "retry", "snooze", "cancel", "interrupt"])
async def test_other_endings_make_no_job(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS[ending])
    assert len(await everything(case)) == 1


async def test_a_job_found_dead_by_a_rescue_makes_one_job(case: StoreCase) -> None:
    id = await dead_of_crashes(case)
    (death,) = await deaths(case)
    found = await shown(case, id)
    assert (death["id"], death["code"], death["state"]) == (str(id), "LEASE_LOST", "dead")
    assert death["attempts"] == found.attempt == SUSPECT + 1


async def test_a_lost_lease_makes_no_job_while_its_job_lives(case: StoreCase) -> None:
    await lost(case, SUSPECT)
    await crash(case, crash_limit=2)
    assert await made(case) == []


async def test_a_rescued_job_that_a_person_canceled_makes_no_job(case: StoreCase) -> None:
    await lost(case, SUSPECT)
    leased = await claimed(case, wants(suspects=True))
    await case.store.run_alone(leased.lease, 1)
    await case.store.cancel([leased.id])
    await case.clock.advance(timedelta(minutes=1))
    await case.store.rescue(10)
    assert (await shown(case, leased.id)).state is JobState.CANCELED
    assert await made(case) == []


async def test_a_repeated_finish_makes_no_second_job(case: StoreCase) -> None:
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS["fail"])
    assert await finished(case, leased.lease, ENDINGS["fail"]) is Fenced.ALREADY
    again = [Finish(leased.lease, ENDINGS["fail"]), Finish(leased.lease, ENDINGS["exhaust"])]
    assert await case.store.finish(again) == [Fenced.ALREADY, Fenced.ALREADY]
    assert len(await made(case)) == 1


async def test_a_stale_claim_makes_no_job(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(timedelta(minutes=1))
    await case.store.rescue(10)
    assert await finished(case, leased.lease, ENDINGS["fail"]) is Fenced.STALE
    assert await made(case) == []


async def test_a_retried_job_that_dies_again_makes_a_second_job(case: StoreCase) -> None:
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS["fail"])
    assert await case.store.retry([leased.id]) == [Retrying.READY]
    again = await claimed(case)
    other = JobError(code="OTHER", type="ValueError", message="this time")
    await finished(case, again.lease, Transition(Move.FAIL, error=other))
    assert [death["code"] for death in await deaths(case)] == ["OTHER", BROKEN.code]
    assert {death["id"] for death in await deaths(case)} == {str(leased.id)}


async def test_each_death_of_a_batch_makes_its_own_job(case: StoreCase) -> None:
    for number in range(9):
        await enqueued(case, payload=Json(f'{{"n":{number}}}'))
    leased = await case.store.claim(wants())
    endings = ["fail", "exhaust", "succeed"] * 3
    await case.store.finish([Finish(each.lease, ENDINGS[ending]) for each, ending in zip(leased, endings, strict=True)])
    found = {death["payload"]["n"]: death["state"] for death in await deaths(case)}
    assert found == {0: "failed", 1: "dead", 3: "failed", 4: "dead", 6: "failed", 7: "dead"}
    assert len(await made(case)) == 6


async def test_the_death_of_a_job_made_by_a_death_makes_no_job(case: StoreCase, events: EventStore) -> None:
    await events.declare(
        [NewSubscription("all", "holdfast.dead.*"), NewSubscription("loop", "holdfast.dead.work.dead")]
    )
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS["fail"])
    for kind, queue in ((DEAD, "mourning"), ("all", "default")):
        job = await claimed(case, wants(kind, queues=(queue,)))
        await finished(case, job.lease, ENDINGS["fail"])
    assert Counter(job.kind for job in await everything(case)) == {"work": 1, DEAD: 1, "all": 1}


async def test_each_subscription_that_matches_the_kind_gets_a_job(case: StoreCase, events: EventStore) -> None:
    patterns = {
        "exact": "holdfast.dead.invoice.send",
        "prefix": "holdfast.dead.invoice.*",
        "any": "holdfast.dead.*",
        "other": "holdfast.dead.order.*",
        "events": "*",
        "ours": "holdfast.*",
        "same": "invoice.send",
    }
    await events.declare([NewSubscription(name, pattern) for name, pattern in patterns.items()])
    leased = await running(case, kind="invoice.send")
    await finished(case, leased.lease, ENDINGS["fail"])
    found = {job.kind for job in await everything(case)} - {"invoice.send"}
    assert found == {"exact", "prefix", "any"}


async def test_a_death_before_the_declaration_is_not_published(case: StoreCase, events: EventStore) -> None:
    await events.remove(DEAD)
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS["fail"])
    await events.declare([NewSubscription(DEAD, "holdfast.dead.work")])
    assert await made(case) == []


async def test_the_largest_payload_still_fits(case: StoreCase) -> None:
    large = Json(f'"{"x" * (10 * 1024 * 1024 - 2)}"')
    leased = await running(case, payload=large)
    assert await finished(case, leased.lease, ENDINGS["fail"]) is Fenced.DONE
    (job,) = await made(case)
    assert job.payload["payload"] == decode(large)
    mourner = await claimed(case, wants(DEAD, queues=("mourning",), holder=HOLDER))
    assert large in mourner.payload


async def test_unusual_names_and_messages_are_kept(case: StoreCase, events: EventStore) -> None:
    kind = "é\"'\\%_.x"
    await events.declare([NewSubscription("odd", f"holdfast.dead.{kind}")])
    leased = await running(case, kind=kind, tenant='"', correlation_id="\\")
    error = JobError(code='"}', type="X", message='line\n"two"\\ é')
    await finished(case, leased.lease, Transition(Move.FAIL, error=error))
    (death,) = await deaths(case, "odd")
    assert (death["kind"], death["code"], death["message"]) == (kind, error.code, error.message)
    assert (death["tenant"], death["correlation_id"]) == ('"', "\\")
