"""finish: every ending of a running job, exactly once, and what can be read afterwards."""

from datetime import timedelta

import pytest

from holdfast.domain.job import JobError, JobState
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import CANCEL_REQUESTED, KEPT_ERRORS, RULES, Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    BROKEN,
    ENDINGS,
    FINAL_ENDINGS,
    LEASE,
    SECOND,
    START,
    all_claimable,
    claimed,
    enqueued,
    error_dicts,
    everything,
    finished,
    job,
    lost,
    needs,
    running,
    shown,
    stored_error,
    told_apart,
    wants,
)

_BY_FINISH = [
    rule
    for rule in RULES
    if rule.before is JobState.RUNNING and rule.move not in (Move.RELEASE, Move.RESCUE, Move.BURY)
]


def test_every_ending_of_a_running_job_is_tested_here() -> None:
    assert {rule.move for rule in _BY_FINISH} == {transition.move for transition in ENDINGS.values()}


@pytest.mark.parametrize("event", told_apart(rule.move for rule in _BY_FINISH))
@needs(Part.LOSSES)
async def test_each_ending_follows_the_transition_table(case: StoreCase, event: Move) -> None:
    (entry,) = [each for each in _BY_FINISH if each.move is event]
    # Use a job that has an attempt and a loss, so no counter is right by accident.
    id = await lost(case, 1)
    leased = await claimed(case)
    await case.clock.advance(SECOND)
    assert await finished(case, leased.lease, ENDINGS[entry.move]) is Fenced.DONE
    found = await shown(case, id)
    assert found.state is entry.after
    assert found.attempt == 2 + {"same": 0, "-1": -1}[entry.attempt]
    assert (found.losses, entry.losses) == (1, "same")
    assert (found.holder, found.lease_until, found.cancel_requested) == (None, None, False)


@pytest.mark.parametrize("ending", FINAL_ENDINGS)
@needs(Part.STARTS, Part.ENDS)
async def test_a_final_job_shows_its_fence_and_when_it_started_and_ended(case: StoreCase, ending: str) -> None:
    leased = await running(case, delay=None)
    await case.clock.advance(3 * SECOND)
    await finished(case, leased.lease, ENDINGS[ending])
    found = await shown(case, leased.id)
    assert (found.started_at, found.finished_at) == (START, START + 3 * SECOND)
    assert (found.fence, found.run_at) == (leased.lease.fence, None)


@pytest.mark.parametrize("ending", FINAL_ENDINGS)
@needs(Part.KEYS)
async def test_a_final_job_keeps_everything_that_was_enqueued(case: StoreCase, ending: str) -> None:
    options = job(
        payload=Json('{"invoice": 17}'),
        headers=Json('{"trace": "abc"}'),
        priority=2,
        tenant="acme",
        correlation_id="request-1",
        max_attempts=7,
        key="invoice-17",
    )
    await case.store.enqueue([options])
    before = (await shown(case, options.id)).as_dict()
    leased = await claimed(case)
    await finished(case, leased.lease, ENDINGS[ending])
    after = (await shown(case, options.id)).as_dict()
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"state", "attempt", "run_at", "started_at", "finished_at", "fence", "result", "errors"}


@pytest.mark.parametrize("ending", FINAL_ENDINGS)
async def test_the_same_final_finish_sent_twice_is_done_and_then_already_done(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.DONE
    before = await everything(case)
    await case.clock.advance(SECOND)
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.ALREADY
    assert await everything(case) == before


@pytest.mark.parametrize("ending", ["retry", "snooze"])
async def test_a_finish_that_made_the_job_ready_is_stale_the_second_time(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.DONE
    before = await everything(case)
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.STALE
    assert await everything(case) == before


@needs(Part.RESULTS)
async def test_a_result_is_kept(case: StoreCase) -> None:
    leased = await running(case)
    await finished(case, leased.lease, Transition(Move.SUCCEED, result=Json('{"pages":[1,2,{"a":null}]}')))
    assert (await shown(case, leased.id)).as_dict()["result"] == {"pages": [1, 2, {"a": None}]}


@needs(Part.RESULTS)
async def test_a_result_of_null_is_read_like_no_result(case: StoreCase) -> None:
    nothing, null = await running(case), await running(case)
    await finished(case, nothing.lease, Transition(Move.SUCCEED))
    await finished(case, null.lease, Transition(Move.SUCCEED, result=Json("null")))
    assert [(await shown(case, each.id)).result for each in (nothing, null)] == [None, None]


@needs(Part.RESULTS)
async def test_plain_successes_and_results_are_written_in_one_call(case: StoreCase) -> None:
    plain, with_result, failing, stale = [await running(case) for _ in range(4)]
    await case.store.release([stale.lease])
    endings = [
        Finish(with_result.lease, ENDINGS["succeed"]),
        Finish(stale.lease, Transition(Move.SUCCEED)),
        Finish(plain.lease, Transition(Move.SUCCEED)),
        Finish(failing.lease, ENDINGS["fail"]),
    ]
    assert await case.store.finish(endings) == [Fenced.DONE, Fenced.STALE, Fenced.DONE, Fenced.DONE]
    states = [(await shown(case, each.id)).state for each in (plain, with_result, failing, stale)]
    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.READY]
    assert (await shown(case, with_result.id)).as_dict()["result"] == {"pages": 3}


async def test_finishing_no_jobs_does_nothing(case: StoreCase) -> None:
    assert await case.store.finish([]) == []


async def test_a_retry_waits_for_its_delay(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(SECOND)
    await finished(case, leased.lease, Transition(Move.RETRY, delay=timedelta(minutes=5), error=BROKEN))
    found = await shown(case, leased.id)
    assert (found.run_at, found.started_at) == (START + timedelta(minutes=5, seconds=1), None)
    await case.clock.advance(timedelta(minutes=5) - timedelta(microseconds=1))
    assert await all_claimable(case) == []
    await case.clock.advance(timedelta(microseconds=1))
    again = await claimed(case)
    assert (again.id, again.attempt) == (leased.id, 2)


async def test_a_retry_waits_for_its_time(case: StoreCase) -> None:
    leased = await running(case)
    at = START + timedelta(hours=1)
    await finished(case, leased.lease, Transition(Move.RETRY, at=at, error=BROKEN))
    assert (await shown(case, leased.id)).run_at == at


async def test_a_time_in_the_past_means_now(case: StoreCase) -> None:
    retried, snoozed = await running(case), await running(case)
    await case.clock.advance(SECOND)
    await finished(case, retried.lease, Transition(Move.RETRY, at=START, error=BROKEN))
    await finished(case, snoozed.lease, Transition(Move.SNOOZE, at=START))
    assert [(await shown(case, each.id)).run_at for each in (retried, snoozed)] == [START + SECOND] * 2


async def test_a_snooze_does_not_count_the_attempt(case: StoreCase) -> None:
    leased = await running(case)
    for _ in range(3):
        await finished(case, leased.lease, Transition(Move.SNOOZE, delay=SECOND))
        found = await shown(case, leased.id)
        assert (found.attempt, found.errors, found.run_at) == (0, (), await case.clock.now() + SECOND)
        await case.clock.advance(SECOND)
        leased = await claimed(case)
        assert leased.attempt == 1


@needs(Part.ERROR_HISTORY)
async def test_errors_are_kept_in_order_with_their_attempt_and_time(case: StoreCase) -> None:
    id = await enqueued(case)
    expected = []
    for attempt in (1, 2, 3):
        leased = await claimed(case)
        error = JobError(code=f"E{attempt}", type="ValueError", message='"quoted" \\u0041 ü', traceback="a\nb")
        await finished(case, leased.lease, Transition(Move.RETRY, error=error))
        expected.append(stored_error(error, attempt=attempt, at=await case.clock.now()))
        await case.clock.advance(timedelta(milliseconds=1500))
    assert error_dicts(await shown(case, id)) == expected


@pytest.mark.parametrize("ending", ["exhaust", "fail"])
@needs(Part.ERROR_HISTORY)
async def test_the_error_that_ended_the_job_comes_last(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    await finished(case, leased.lease, Transition(Move.RETRY, error=JobError(code="FIRST")))
    again = await claimed(case)
    await finished(case, again.lease, ENDINGS[ending])
    errors = error_dicts(await shown(case, leased.id))
    assert [(error["code"], error["attempt"]) for error in errors] == [("FIRST", 1), ("BROKEN", 2)]


@needs(Part.ERROR_HISTORY)
async def test_only_the_newest_errors_are_kept(case: StoreCase) -> None:
    id = await enqueued(case)
    total = KEPT_ERRORS + 3
    for number in range(total):
        leased = await claimed(case)
        await finished(case, leased.lease, Transition(Move.RETRY, error=JobError(code=str(number))))
    codes = [error["code"] for error in error_dicts(await shown(case, id))]
    assert codes == [str(number) for number in range(total - KEPT_ERRORS, total)]


@pytest.mark.parametrize("ending", ["retry", "snooze"])
@needs(Part.CANCEL_REQUESTS, Part.CANCELED, Part.WHOLE_ERRORS)
async def test_a_job_that_was_asked_to_cancel_does_not_become_ready_again(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    await case.store.cancel([leased.id])
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.DONE
    found = await shown(case, leased.id)
    assert (found.state, found.attempt, found.fence) == (JobState.CANCELED, 1, leased.lease.fence)
    noted = ENDINGS[ending].error or CANCEL_REQUESTED
    assert error_dicts(found) == [stored_error(noted, attempt=1, at=START)]
    assert await finished(case, leased.lease, ENDINGS[ending]) is Fenced.ALREADY


@pytest.mark.parametrize("ending", told_apart(FINAL_ENDINGS))
@needs(Part.CANCEL_REQUESTS)
async def test_a_final_ending_takes_precedence_over_a_request_to_cancel(case: StoreCase, ending: str) -> None:
    leased = await running(case)
    await case.store.cancel([leased.id])
    await finished(case, leased.lease, ENDINGS[ending])
    assert (await shown(case, leased.id)).state is ENDINGS[ending].state


async def test_an_expired_lease_that_was_not_rescued_can_still_finish(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE + SECOND)
    assert await finished(case, leased.lease, ENDINGS["succeed"]) is Fenced.DONE


@needs(Part.LOSSES, Part.SUSPECTS, Part.ANY_KIND)
async def test_a_suspect_that_succeeds_is_done_and_a_suspect_that_fails_stays_a_suspect(case: StoreCase) -> None:
    first, second = await lost(case, 2, kind="a"), await lost(case, 2, kind="b")
    one, two = await case.store.claim(wants("a", "b", suspects=True))
    assert (one.id, two.id) == (first, second)
    await finished(case, one.lease, ENDINGS["succeed"])
    await finished(case, two.lease, Transition(Move.RETRY, error=BROKEN))
    assert await case.store.claim(wants("a", "b")) == []
    assert [each.id for each in await case.store.claim(wants("a", "b", suspects=True))] == [second]
