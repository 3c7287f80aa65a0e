"""The engine or its store, each broken in one place. A simulation that misses one of these is itself broken."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobState, Lease, LeasedJob
from holdfast.domain.lifecycle import SUSPECT, Transition
from holdfast.domain.outcome import Outcome, Succeeded
from holdfast.store.contract import Canceling, ClaimRequest, Ended, Fenced, Finish, Renewal, Renewer, Rescued
from holdfast.store.floors import First, Floors
from holdfast.store.memory.jobs import Record
from holdfast.store.memory.store import MemoryStore
from holdfast.worker.executor import Executor
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJob, Slots
from holdfast.worker.lease_keeper import KeeperRules, LeaseKeeper, Stop
from holdfast.worker.worker import Rescue, Worker
from holdfast_lab.faults.simulation import engine

Sabotage = Callable[[pytest.MonkeyPatch], None]


def no_fence_check(patch: pytest.MonkeyPatch) -> None:
    """Jobs are finished by their ID alone, as in most peers."""

    def finish(store: MemoryStore, lease: Lease, transition: Transition) -> Fenced:
        store._write(store._jobs[lease.id], transition)
        return Fenced.DONE

    patch.setattr(MemoryStore, "_finish", finish)


def no_rescue(patch: pytest.MonkeyPatch) -> None:
    async def rescue(store: MemoryStore, limit: int, ended: Ended | None = None) -> list[Rescued]:
        return []

    patch.setattr(MemoryStore, "rescue", rescue)


def late_rescue(patch: pytest.MonkeyPatch) -> None:
    """Rescues are a second late, while the longest lease is one second."""
    rescue = MemoryStore.rescue

    async def rescue_late(store: MemoryStore, limit: int, ended: Ended | None = None) -> list[Rescued]:
        ends = {id: record.until for id, record in store._jobs.items() if record.until is not None}
        for id, end in ends.items():
            store._jobs[id].until = end + timedelta(seconds=1)
        rescued = await rescue(store, limit)
        for id, end in ends.items():
            if store._jobs[id].until is not None:
                store._jobs[id].until = end
        return rescued

    patch.setattr(MemoryStore, "rescue", rescue_late)


def rare_rescue(patch: pytest.MonkeyPatch) -> None:
    """Rescues run only a quarter as often as they should."""
    rescue = Worker.rescue

    async def rescue_rarely(worker: Worker) -> Rescue:
        rescued, again_in = await rescue(worker)
        return Rescue(rescued, 4 * again_in)

    patch.setattr(Worker, "rescue", rescue_rarely)


def attempt_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A claim after a lost lease does not count the attempt."""
    lease = MemoryStore._lease

    def lease_again(store: MemoryStore, record: Record, request: ClaimRequest, claim: UUID, now: datetime) -> LeasedJob:
        record.attempt -= record.losses
        return lease(store, record, request, claim, now)

    patch.setattr(MemoryStore, "_lease", lease_again)


def keeper_never_renews(patch: pytest.MonkeyPatch) -> None:
    def to_renew(rules: KeeperRules, now: float) -> dict[HeldJob, Renewal]:
        return {}

    patch.setattr(KeeperRules, "to_renew", to_renew)


def keeper_never_stops(patch: pytest.MonkeyPatch) -> None:
    """A handler keeps running although its lease could not be renewed."""

    def to_stop(rules: KeeperRules, now: float) -> list[Stop]:
        return []

    patch.setattr(KeeperRules, "to_stop", to_stop)


def lease_kept_by_the_event_loop(patch: pytest.MonkeyPatch) -> None:
    """The event loop keeps the lease, so a handler can block renewals."""
    start = engine._KeeperInLoop.start

    def start_here(keeper: LeaseKeeper) -> None:
        process = asyncio.get_running_loop().owner  # type: ignore[attr-defined]
        keeper_loop, process.keeper_loop = process.keeper_loop, process.loop
        start(keeper)  # type: ignore[arg-type]
        process.keeper_loop = keeper_loop

    patch.setattr(engine._KeeperInLoop, "start", start_here)


def outcome_dropped_at_shutdown(patch: pytest.MonkeyPatch) -> None:
    async def drained(finisher: Finisher, seconds: float) -> int:
        finisher._pending.clear()
        return 0

    patch.setattr(Finisher, "drained", drained)


def acknowledged_before_running(patch: pytest.MonkeyPatch) -> None:
    async def run(executor: Executor, held: HeldJob) -> Outcome | None:
        return Succeeded()

    patch.setattr(Executor, "run", run)


def late_claim_started(patch: pytest.MonkeyPatch) -> None:
    """Every claimed job is started, even after the end of its lease."""
    may_start = Worker._may_start

    def never_too_late(worker: Worker, held: HeldJob) -> bool:
        until, held.safe_until = held.safe_until, math.inf
        may = may_start(worker, held)
        held.safe_until = until
        return may

    patch.setattr(Worker, "_may_start", never_too_late)


def cancel_changes_what_succeeded(patch: pytest.MonkeyPatch) -> None:
    cancel = MemoryStore._cancel

    def cancel_all(store: MemoryStore, record: Record | None) -> Canceling:
        if record is not None and record.state is JobState.SUCCEEDED:
            record.state = JobState.CANCELED
            return Canceling.CANCELED
        return cancel(store, record)

    patch.setattr(MemoryStore, "_cancel", cancel_all)


def result_overwritten(patch: pytest.MonkeyPatch) -> None:
    """A refused finish still leaves its result behind."""
    finish = MemoryStore._finish

    def finish_or_spoil(store: MemoryStore, lease: Lease, transition: Transition) -> Fenced:
        answer = finish(store, lease, transition)
        if answer is not Fenced.DONE:
            store._jobs[lease.id].result = transition.result
        return answer

    patch.setattr(MemoryStore, "_finish", finish_or_spoil)


def result_of_another(patch: pytest.MonkeyPatch) -> None:
    """The outcomes of two jobs that are written together are swapped."""
    finish = MemoryStore.finish

    async def finish_crosswise(store: MemoryStore, finishes: Sequence[Finish]) -> list[Fenced]:
        results = [each.transition.result for each in reversed(finishes)]
        return await finish(
            store,
            [
                Finish(each.lease, replace(each.transition, result=result))
                for each, result in zip(finishes, results, strict=True)
            ],
        )

    patch.setattr(MemoryStore, "finish", finish_crosswise)


def result_dropped(patch: pytest.MonkeyPatch) -> None:
    """The worker drops the result before it is written."""
    decide = Worker._decide

    def without_result(worker: Worker, held: HeldJob, outcome: Outcome | None) -> Transition | None:
        transition = decide(worker, held, outcome)
        return None if transition is None else replace(transition, result=None)

    patch.setattr(Worker, "_decide", without_result)


def error_not_kept(patch: pytest.MonkeyPatch) -> None:
    """A retry forgets why the previous attempt failed."""
    write = MemoryStore._write

    def write_over(store: MemoryStore, record: Record, transition: Transition) -> None:
        record.errors.clear()
        write(store, record, transition)

    patch.setattr(MemoryStore, "_write", write_over)


def withdrawn_job_started(patch: pytest.MonkeyPatch) -> None:
    """The event loop starts a job that the lease keeper releases."""
    patch.setattr(HeldJob, "withdraw", lambda held: held.is_unstarted)


def failed_renewal_costs_a_lease(patch: pytest.MonkeyPatch) -> None:
    """After a failed renewal, the lease keeper pauses for longer than the lease."""
    turn = LeaseKeeper._turn

    async def turn_or_sleep(keeper: LeaseKeeper, renewer: Renewer) -> None:
        try:
            await turn(keeper, renewer)
        except StoreUnavailable:
            await asyncio.sleep(1.5 * keeper._rules.shortest_lease(keeper._default_lease))
            raise

    patch.setattr(LeaseKeeper, "_turn", turn_or_sleep)


def floors_only_rise(patch: pytest.MonkeyPatch) -> None:
    """A look does not go back to jobs that were committed late."""
    looked = Floors.looked

    def looked_ahead(
        floors: Floors, queues: Sequence[str], firsts: Sequence[First], moment: datetime, generation: int
    ) -> None:
        before = {**floors._busy, **floors._empty}
        looked(floors, queues, firsts, moment, generation)
        for lanes in (floors._busy, floors._empty):
            lanes.update({lane: max(floor, before.get(lane, floor)) for lane, floor in lanes.items()})

    patch.setattr(Floors, "looked", looked_ahead)


def suspect_in_company(patch: pytest.MonkeyPatch) -> None:
    """A worker starts a suspect next to the jobs that it already runs."""
    patch.setattr(Slots, "has_only_suspects", property(lambda slots: True))


def suspects_for_all(patch: pytest.MonkeyPatch) -> None:
    """Every worker is given suspects, so all of them run empty at once."""
    patch.setattr(MemoryStore, "_has_leased_suspects", lambda store, queues, now: False)


def company_kills(patch: pytest.MonkeyPatch) -> None:
    """The third lost lease ends the job, no matter how the leases were lost."""
    lose = MemoryStore._lose

    def lose_for_good(store: MemoryStore, record: Record) -> None:
        record.crash_limit = int(record.suspicion >= SUSPECT)
        lose(store, record)

    patch.setattr(MemoryStore, "_lose", lose_for_good)


def crash_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The store forgets that a job ran alone, so a killer goes on killing forever."""
    lose = MemoryStore._lose

    def lose_in_company(store: MemoryStore, record: Record) -> None:
        record.crash_limit = 0
        lose(store, record)

    patch.setattr(MemoryStore, "_lose", lose_in_company)


def absolved_twice(patch: pytest.MonkeyPatch) -> None:
    """Every report lowers the suspicion, even a second one of the same loss, or one of a loss that did not count."""

    async def absolve(store: MemoryStore, leases: Sequence[Lease]) -> None:
        for lease in leases:
            record = store._jobs[lease.id]
            record.suspicion = max(0, record.suspicion - 1)

    patch.setattr(MemoryStore, "absolve", absolve)


SABOTAGES: Mapping[Sabotage, str] = {
    no_fence_check: "^stale write accepted: ",
    no_rescue: "^stuck: ",
    late_rescue: "^stuck: .* free to rescue it",
    rare_rescue: "^stuck: .* free to rescue it",
    attempt_not_counted: "^attempt not counted: ",
    keeper_never_renews: "^unexplained duplicate: .* lost the lease",
    keeper_never_stops: "^two at once: .* runs in",
    lease_kept_by_the_event_loop: "^unexplained duplicate: .* lost the lease",
    outcome_dropped_at_shutdown: "^unexplained duplicate: .* lost the lease|^lost: .* stopped with unfinished work",
    acknowledged_before_running: "^unexpected: .* its handler never started",
    late_claim_started: "^unexpected: .* after the end of its lease",
    cancel_changes_what_succeeded: "^final state changed: .* while it was succeeded",
    result_overwritten: "^final state changed: .* the store has the result",
    result_of_another: "^final state changed: .* the store has the result",
    result_dropped: "^unexpected: .* was written, but its handler returned",
    withdrawn_job_started: "^unexpected: .* started after it was released",
    failed_renewal_costs_a_lease: "^unexplained duplicate: .* lost the lease",
    error_not_kept: "^unexpected: .* the store has the errors",
    floors_only_rise: "^stuck: ",
    suspect_in_company: "^two at once: .* one of them is a suspect",
    suspects_for_all: "^two at once: .* was given suspects while",
    company_kills: "^unexpected: .* rescued as dead",
    crash_not_counted: "^unexpected: .* with suspicion|^unexpected: .* rescued as ready, not as dead|^stuck: ",
    absolved_twice: "^unexpected: .* suspicion",
}
"""The violation that must reveal each sabotage. An unforeseen error only shows that the sabotage itself is broken."""
