"""Keys: what enqueueing does when the key already has a job, and how long it has one."""

from datetime import timedelta
from typing import NamedTuple, Unpack
from uuid import UUID, uuid4

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob, InvalidInput
from holdfast.domain.job import IfExists, JobState, NewJob
from holdfast.domain.json_text import Json
from holdfast.store.contract import Fenced
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    SECOND,
    START,
    Options,
    all_claimable,
    claimed,
    enqueued,
    error_dicts,
    everything,
    finished,
    in_state,
    job,
    lost,
    needs,
    running,
    shown,
    wants,
)

pytestmark = needs(Part.KEYS)

REPLACE = IfExists.REPLACE
KEEP_LIVE = IfExists.KEEP_LIVE
WINDOW = timedelta(minutes=5)
FINAL = [state for state in JobState if state.is_final]


def newer(**options: Unpack[Options]) -> NewJob:
    """Return the same job with newer data."""
    complete: Options = {"key": "report", "payload": Json('{"newer": true}'), **options}
    return job(**complete)


async def answer(case: StoreCase, new: NewJob) -> Enqueued:
    (enqueued,) = await case.store.enqueue([new])
    return enqueued


async def test_a_replaced_job_becomes_the_new_one_and_keeps_its_id(case: StoreCase) -> None:
    id = await enqueued(
        case, key="report", priority=7, max_attempts=2, correlation_id="first", headers=Json('{"old": 1}')
    )
    before = (await shown(case, id)).as_dict()
    await case.clock.advance(SECOND)
    new = newer(
        if_exists=REPLACE, queue="reports", priority=1, delay=5 * SECOND, max_attempts=9,
        correlation_id="second", headers=Json('{"new": 1}'),
    )  # fmt: skip
    assert await answer(case, new) == Enqueued(id, is_new=False, replaced=True)
    after = (await shown(case, id)).as_dict()
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert changed == {
        "payload": {"newer": True},
        "headers": {"new": 1},
        "queue": "reports",
        "priority": 1,
        "max_attempts": 9,
        "correlation_id": "second",
        "run_at": (START + 6 * SECOND).isoformat(),
    }
    assert len(await everything(case)) == 1


async def test_a_replaced_job_is_claimed_in_its_new_place(case: StoreCase) -> None:
    id = await enqueued(case, key="report", priority=9)
    other = await enqueued(case)
    assert (await answer(case, newer(if_exists=REPLACE, queue="reports", priority=0))).replaced
    assert await all_claimable(case) == [other]
    leased = await claimed(case, wants(queues=("reports",)))
    assert (leased.id, leased.payload, leased.priority, leased.attempt) == (id, '{"newer": true}', 0, 1)


@pytest.mark.parametrize(
    ("options", "due"),
    [({}, SECOND), ({"delay": 5 * SECOND}, 6 * SECOND), ({"run_at": START}, SECOND)],
    ids=["now", "delay", "a time that is past"],
)
async def test_a_replaced_job_is_never_due_before_its_replacement(
    case: StoreCase, options: Options, due: timedelta
) -> None:
    id = await enqueued(case, key="report", run_at=START + timedelta(hours=1))
    await case.clock.advance(SECOND)
    complete: Options = {"if_exists": REPLACE, **options}
    assert (await answer(case, newer(**complete))).replaced
    assert (await shown(case, id)).run_at == START + due


async def test_a_replacement_without_a_correlation_id_keeps_the_existing_one(case: StoreCase) -> None:
    id = await enqueued(case, key="report")
    named = await enqueued(case, key="named", correlation_id="order-7")
    await case.store.enqueue([newer(if_exists=REPLACE), newer(key="named", if_exists=REPLACE)])
    assert (await shown(case, id)).correlation_id == str(id)
    assert (await shown(case, named)).correlation_id == "order-7"


async def test_a_replaced_job_that_waited_for_a_retry_starts_over(case: StoreCase) -> None:
    leased = await running(case, key="report", max_attempts=2)
    assert await finished(case, leased.lease, ENDINGS["retry"]) is Fenced.DONE
    assert await answer(case, newer(if_exists=REPLACE)) == Enqueued(leased.id, is_new=False, replaced=True)
    found = await shown(case, leased.id)
    assert (found.attempt, found.losses, found.max_attempts, found.run_at) == (0, 0, None, START)
    assert [error["code"] for error in error_dicts(found)] == ["BROKEN"]
    assert (await claimed(case)).payload == '{"newer": true}'
    assert await finished(case, leased.lease, ENDINGS["succeed"]) is Fenced.STALE


@pytest.mark.parametrize("losses", [1, 2])
async def test_a_replaced_job_keeps_its_suspicion(case: StoreCase, losses: int) -> None:
    """Its attempts start over, but newer work of the same kind has not proved to be harmless."""
    id = await lost(case, losses, key="report")
    assert (await answer(case, newer(if_exists=REPLACE))).replaced
    assert (await shown(case, id)).suspicion == losses
    leased = await claimed(case, wants(suspects=losses == 2))
    assert (leased.id, leased.attempt, leased.losses) == (id, 1, 0)


@pytest.mark.parametrize("state", [JobState.RUNNING, *FINAL])
async def test_a_job_that_has_started_is_not_replaced_but_followed_by_a_new_one(
    case: StoreCase, state: JobState
) -> None:
    first = await in_state(case, state, key="report")
    before = await shown(case, first)
    new = newer(if_exists=REPLACE)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)
    assert await shown(case, first) == before
    assert (await claimed(case)).payload == '{"newer": true}'
    # The new job has the key.
    assert await answer(case, newer()) == Enqueued(new.id, is_new=False)


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING])
async def test_keep_live_returns_a_live_job(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, key="report")
    before = await everything(case)
    assert await answer(case, newer(if_exists=KEEP_LIVE)) == Enqueued(id, is_new=False)
    assert await everything(case) == before


async def test_a_job_waiting_for_a_retry_is_live(case: StoreCase) -> None:
    leased = await running(case, key="report")
    assert await finished(case, leased.lease, ENDINGS["retry"]) is Fenced.DONE
    assert await answer(case, newer(if_exists=KEEP_LIVE)) == Enqueued(leased.id, is_new=False)


@pytest.mark.parametrize("state", FINAL)
async def test_keep_live_makes_a_new_job_that_takes_the_key_of_a_final_one(case: StoreCase, state: JobState) -> None:
    first = await in_state(case, state, key="report")
    before = await shown(case, first)
    new = newer(if_exists=KEEP_LIVE)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)
    assert await shown(case, first) == before
    assert await answer(case, newer(if_exists=KEEP_LIVE)) == Enqueued(new.id, is_new=False)
    assert await answer(case, newer()) == Enqueued(new.id, is_new=False)


async def test_keep_live_makes_a_job_if_the_key_is_free(case: StoreCase) -> None:
    new = newer(if_exists=KEEP_LIVE)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)


async def test_the_first_job_of_a_keep_live_batch_wins(case: StoreCase) -> None:
    first = await in_state(case, JobState.DEAD, key="report")
    jobs = [newer(if_exists=KEEP_LIVE) for _ in range(3)]
    answers = await case.store.enqueue(jobs)
    assert answers == [Enqueued(jobs[0].id, is_new=number == 0) for number in range(3)]
    assert {found.id for found in await everything(case)} == {first, jobs[0].id}


@pytest.mark.parametrize("state", FINAL)
async def test_repeating_keep_live_with_the_id_of_a_final_job_makes_no_job(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, key="report")
    assert await answer(case, newer(id=id, if_exists=KEEP_LIVE)) == Enqueued(id, is_new=False)
    later = await answer(case, newer(if_exists=KEEP_LIVE))
    assert later.is_new
    # The job that has the key is live, so it is returned whatever the ID is.
    assert await answer(case, newer(id=id, if_exists=KEEP_LIVE)) == Enqueued(later.id, is_new=False)
    (leased,) = await case.store.claim(wants())
    assert await finished(case, leased.lease, ENDINGS["succeed"]) is Fenced.DONE
    assert await answer(case, newer(id=id, if_exists=KEEP_LIVE)) == Enqueued(id, is_new=False)
    assert await answer(case, newer()) == Enqueued(later.id, is_new=False)


@pytest.mark.parametrize("state", list(JobState))
async def test_keep_live_ignores_the_window_of_an_earlier_job_and_checks_its_state(
    case: StoreCase, state: JobState
) -> None:
    id = await in_state(case, state, key="report", window=WINDOW)
    await case.clock.advance(WINDOW - SECOND)
    assert await answer(case, new := newer(if_exists=KEEP_LIVE)) == (
        Enqueued(new.id, is_new=True) if state.is_final else Enqueued(id, is_new=False)
    )


async def test_a_second_replacement_replaces_the_job_that_follows_the_running_one(case: StoreCase) -> None:
    first = await running(case, key="report")
    second = newer(if_exists=REPLACE)
    assert (await answer(case, second)).is_new
    last = newer(if_exists=REPLACE, payload=Json('"last"'))
    assert await answer(case, last) == Enqueued(second.id, is_new=False, replaced=True)
    assert await finished(case, first.lease, ENDINGS["succeed"]) is Fenced.DONE
    assert [(each.id, each.payload) for each in await case.store.claim(wants())] == [(second.id, '"last"')]


async def test_a_job_released_by_its_worker_can_be_replaced_again(case: StoreCase) -> None:
    leased = await running(case, key="report")
    await case.store.release([leased.lease])
    assert (await answer(case, newer(if_exists=REPLACE))).replaced
    assert (await claimed(case)).payload == '{"newer": true}'


async def test_replace_makes_a_job_if_the_key_is_free(case: StoreCase) -> None:
    new = newer(if_exists=REPLACE)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)


async def test_the_last_replacement_of_a_batch_wins(case: StoreCase) -> None:
    jobs = [newer(if_exists=REPLACE, payload=Json(str(number))) for number in range(3)]
    first = jobs[0].id
    assert await case.store.enqueue(jobs) == [
        Enqueued(first, is_new=True),
        Enqueued(first, is_new=False, replaced=True),
        Enqueued(first, is_new=False, replaced=True),
    ]
    assert [(each.id, each.payload) for each in await case.store.claim(wants())] == [(first, "2")]


async def test_a_refused_batch_replaces_nothing(case: StoreCase) -> None:
    await enqueued(case, key="report")
    taken = await enqueued(case, kind="other")
    await running(case, key="running", kind="running")
    before = await everything(case)
    with pytest.raises(DuplicateJob):
        await case.store.enqueue(
            [
                newer(if_exists=REPLACE),
                newer(key="running", kind="running", if_exists=REPLACE),
                newer(key="window", window=WINDOW),
                job(id=taken),
            ]
        )
    assert await everything(case) == before
    assert not (await answer(case, newer(key="running", kind="running"))).is_new
    assert (await answer(case, newer(key="window"))).is_new


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.SUCCEEDED])
@pytest.mark.parametrize("if_exists", list(IfExists))
async def test_repeating_a_call_with_the_same_id_changes_nothing(
    case: StoreCase, state: JobState, if_exists: IfExists
) -> None:
    """A producer whose reply was lost can repeat its call without undoing later changes."""
    id = await in_state(case, state, key="report")
    before = await shown(case, id)
    assert await answer(case, newer(id=id, if_exists=if_exists)) == Enqueued(id, is_new=False)
    assert await shown(case, id) == before


@pytest.mark.parametrize("state", list(JobState))
async def test_repeating_a_call_with_the_same_id_after_the_window_changes_nothing(
    case: StoreCase, state: JobState
) -> None:
    id = await in_state(case, state, key="report", window=WINDOW)
    await case.clock.advance(WINDOW)
    before = await everything(case)
    for again in (newer(id=id, window=WINDOW), newer(id=id, if_exists=REPLACE), newer(id=id)):
        assert await answer(case, again) == Enqueued(id, is_new=False)
    assert await everything(case) == before
    # Returning the existing job started no window.
    assert (await answer(case, newer(window=WINDOW))).is_new


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUCCEEDED])
async def test_repeating_a_call_with_the_same_id_does_not_replace_the_job_that_followed(
    case: StoreCase, state: JobState
) -> None:
    first = await in_state(case, state, key="report")
    last = (await answer(case, newer(if_exists=REPLACE))).id
    before = await everything(case)
    old = newer(id=first, if_exists=REPLACE, payload=Json('"old"'))
    assert await answer(case, old) == Enqueued(first, is_new=False)
    assert await everything(case) == before
    assert await answer(case, newer()) == Enqueued(last, is_new=False)


async def test_an_id_used_by_another_job_is_refused_and_holds_no_key(case: StoreCase) -> None:
    taken = await enqueued(case, key="other")
    for refused in (newer(id=taken), newer(id=taken, if_exists=REPLACE), newer(id=taken, window=WINDOW)):
        with pytest.raises(DuplicateJob):
            await case.store.enqueue([refused])
    new = newer()
    assert await answer(case, new) == Enqueued(new.id, is_new=True)


@pytest.mark.parametrize("state", list(JobState))
async def test_within_its_window_a_key_returns_its_job_in_any_state(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, key="report", window=WINDOW)
    await case.clock.advance(WINDOW - SECOND)
    before = await everything(case)
    assert await answer(case, newer(window=WINDOW)) == Enqueued(id, is_new=False)
    assert await everything(case) == before


@pytest.mark.parametrize("state", list(JobState))
async def test_after_the_window_a_new_job_is_made_regardless_of_the_old_ones_state(
    case: StoreCase, state: JobState
) -> None:
    id = await in_state(case, state, key="report", window=WINDOW)
    before = await shown(case, id)
    await case.clock.advance(WINDOW)
    new = newer(window=WINDOW)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)
    assert await shown(case, id) == before
    # The new job starts its own window.
    await case.clock.advance(WINDOW - SECOND)
    assert await answer(case, newer(window=WINDOW)) == Enqueued(new.id, is_new=False)
    await case.clock.advance(SECOND)
    assert (await answer(case, newer(window=WINDOW))).is_new


async def test_returning_an_existing_job_does_not_extend_its_window(case: StoreCase) -> None:
    await enqueued(case, key="report", window=WINDOW)
    for _ in range(4):
        await case.clock.advance(WINDOW / 4 - SECOND / 4)
        assert not (await answer(case, newer(window=WINDOW))).is_new
    await case.clock.advance(SECOND)
    assert (await answer(case, newer(window=WINDOW))).is_new


async def test_a_batch_within_one_window_makes_one_job(case: StoreCase) -> None:
    jobs = [newer(window=WINDOW) for _ in range(3)]
    answers = await case.store.enqueue(jobs)
    assert answers == [Enqueued(jobs[0].id, is_new=number == 0) for number in range(3)]


class Mixed(NamedTuple):
    """First a job with `first`; then, after `passed`, one with `second`."""

    first: Options
    passed: timedelta
    second: Options
    expected: str


MIXED = {
    "a window is asked for where none was, and the job is young": Mixed({}, WINDOW / 2, {"window": WINDOW}, "kept"),
    "a window is asked for where none was, and the job is old": Mixed({}, WINDOW, {"window": WINDOW}, "new"),
    "a longer window is asked for": Mixed({"window": WINDOW}, WINDOW, {"window": 2 * WINDOW}, "new"),
    "a shorter window is asked for": Mixed({"window": WINDOW}, WINDOW / 2, {"window": SECOND}, "kept"),
    "no window is asked for while there is one": Mixed({"window": WINDOW}, WINDOW / 2, {}, "kept"),
    "no window is asked for after it": Mixed({"window": WINDOW}, WINDOW, {}, "new"),
    "a replacement while there is a window": Mixed({"window": WINDOW}, WINDOW / 2, {"if_exists": REPLACE}, "replaced"),
    "a replacement after the window": Mixed({"window": WINDOW}, WINDOW, {"if_exists": REPLACE}, "new"),
}


@pytest.mark.parametrize("mixed", list(MIXED.values()), ids=list(MIXED))
async def test_producers_with_different_options_share_one_key(case: StoreCase, mixed: Mixed) -> None:
    first = await answer(case, newer(**mixed.first))
    await case.clock.advance(mixed.passed)
    second = await answer(case, new := newer(**mixed.second))
    expected = {
        "kept": Enqueued(first.id, is_new=False),
        "replaced": Enqueued(first.id, is_new=False, replaced=True),
        "new": Enqueued(new.id, is_new=True),
    }
    assert second == expected[mixed.expected]


async def test_the_window_of_a_dead_letter_also_starts_at_its_enqueue(case: StoreCase) -> None:
    id = await in_state(case, JobState.DEAD, key="report")
    await case.clock.advance(WINDOW - SECOND)
    assert await answer(case, newer(window=WINDOW)) == Enqueued(id, is_new=False)
    await case.clock.advance(SECOND)
    assert (await answer(case, newer(window=WINDOW))).is_new


async def test_a_key_taken_over_by_another_job_does_not_return(case: StoreCase) -> None:
    first = await in_state(case, JobState.SUCCEEDED, key="report")
    second = (await answer(case, newer(if_exists=REPLACE))).id
    await case.store.retry([first])
    assert await answer(case, newer()) == Enqueued(second, is_new=False)
    assert (await answer(case, newer(if_exists=REPLACE))).id == second


@pytest.mark.parametrize("state", list(JobState))
async def test_a_job_is_found_by_its_key_in_any_state(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, key="report", tenant="acme")
    assert await case.reader.find("work", "report", "acme") == await shown(case, id)
    assert await case.reader.find("work", "report") is None
    assert await case.reader.find("other", "report", "acme") is None
    assert await case.reader.find("work", "other", "acme") is None


@pytest.mark.parametrize("if_exists", [REPLACE, KEEP_LIVE])
async def test_the_newest_job_is_found_by_its_key(case: StoreCase, if_exists: IfExists) -> None:
    await in_state(case, JobState.SUCCEEDED, key="report")
    newest = (await answer(case, newer(if_exists=if_exists))).id
    assert await case.reader.find("work", "report") == await shown(case, newest)


async def test_a_job_is_found_by_its_key_until_its_window_ends(case: StoreCase) -> None:
    id = await enqueued(case, key="report", window=WINDOW)
    await case.clock.advance(WINDOW - SECOND)
    assert await case.reader.find("work", "report") == await shown(case, id)
    await case.clock.advance(SECOND)
    assert await case.reader.find("work", "report") is None


async def test_searching_for_an_invalid_key_is_refused(case: StoreCase) -> None:
    with pytest.raises(InvalidInput, match=r"^key: is empty"):
        await case.reader.find("work", "")
    with pytest.raises(InvalidInput, match=r"^kind: is empty"):
        await case.reader.find("", "report")


async def test_keys_of_other_tenants_and_kinds_are_unaffected(case: StoreCase) -> None:
    ids: list[UUID] = [
        await enqueued(case, key="report", tenant="acme"),
        await enqueued(case, key="report", kind="other"),
        await enqueued(case, key="other", id=uuid4()),
    ]
    before = await everything(case)
    new = newer(if_exists=REPLACE)
    assert await answer(case, new) == Enqueued(new.id, is_new=True)
    assert [found for found in await everything(case) if found.id in ids] == before
