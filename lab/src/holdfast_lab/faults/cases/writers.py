"""Writers that get in each other's way, without any other fault."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import JobError, LeasedJob, NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Move, Transition
from holdfast.store.contract import Canceling, ClaimRequest, Fenced, Finish, KindClaim, Renewal
from holdfast.store.opening import OpenStore, opened
from holdfast_lab.faults.app import WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.judge import LOST, STUCK, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import DONE, What

_WRITERS = 8
_LEASE = timedelta(minutes=5)
_SHORT_LEASE = timedelta(milliseconds=50)
_ABANDONED = 3
_KEYS = 10
_DAYS_AGO = 400
_ADD_DAY_SECONDS = 1.0
_DRAINED_SECONDS = 60.0
_SETTLED_SECONDS = 1.5
_FAILED = JobError(code="NOT_YET", type="NotYet", message="one of many")


@case(
    "R19",
    "eight writers enqueue, claim, renew, finish, cancel, rescue and prune at once",
    small={"seconds": 15},
    large={"seconds": 60},
)
async def mixed_writers(lab: Lab) -> None:
    """Past days are added and dropped while their jobs are being worked on."""
    mix = _Mix(lab)
    ((before,),) = await lab.fetch("count_deadlocks")
    until = time.monotonic() + lab.size["seconds"]
    async with AsyncExitStack() as exits, asyncio.TaskGroup() as tasks:
        stores = [await exits.enter_async_context(opened(lab.url, lab.schema)) for _ in range(_WRITERS)]
        writing = [tasks.create_task(mix.write(each, number, until)) for number, each in enumerate(stores)]
        adding = tasks.create_task(mix.add_days(until))
        await asyncio.wait([*writing, adding])
        lab.check("jobs rescued under load", mix.rescued, at_least=1)
        patience = time.monotonic() + _DRAINED_SECONDS
        while left := await lab.open_jobs():
            if time.monotonic() > patience:
                lab.violation(
                    STUCK, f"{left} jobs are not final {_DRAINED_SECONDS:g} s after the last writer has ended"
                )
                break
            await mix.rescue(stores[0], Random(0))  # noqa: S311 - a plan
            await mix.claim_and_finish(stores[0], Random(0), is_last=True)  # noqa: S311 - a plan
    # The server counts a deadlock a moment after it finds it.
    await asyncio.sleep(_SETTLED_SECONDS)
    ((after,),) = await lab.fetch("count_deadlocks")
    lab.note("steps", sum(mix.steps.values()))
    lab.check("deadlocks detected by the server", after - before, at_most=0)
    lab.check("errors that reached a writer", mix.errors, at_most=0)
    lab.check("days dropped under load", mix.dropped, at_least=1)
    for id in mix.past - mix.ended:
        lab.violation(LOST, f"job {id} is gone with its dropped day, but had not ended", id)


class _Mix:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._today: list[UUID] = []
        self.past: set[UUID] = set()
        """Jobs with ids of past days may be pruned as soon as they end, so the judge does not expect to find them."""
        self.ended: set[UUID] = set()
        self._day = _DAYS_AGO
        self.dropped = 0
        self.rescued = 0
        self.errors = 0
        self.steps: dict[str, int] = {}

    async def add_days(self, until: float) -> None:
        while time.monotonic() < until:
            day = (datetime.now(UTC) - timedelta(days=self._day - 1)).date()
            await self._lab.fetch("add_day", day)
            self._day -= 1
            await asyncio.sleep(_ADD_DAY_SECONDS)

    async def write(self, store: OpenStore, number: int, until: float) -> None:
        random = Random(self._lab.random.getrandbits(32))  # noqa: S311 - a plan
        while time.monotonic() < until:
            step = self._step(random, number)
            name = step.__name__
            try:
                await step(store, random)
            except HoldfastError as error:
                self.errors += 1
                self._lab.violation(TARGET, f"{name}: {type(error).__name__}: {error}")
            self.steps[name] = self.steps.get(name, 0) + 1

    def _step(self, random: Random, number: int) -> Callable[[OpenStore, Random], Awaitable[None]]:
        weights: dict[Callable[[OpenStore, Random], Awaitable[None]], int] = {
            self.enqueue: 4,
            self.enqueue_past: 3,
            self.claim_and_finish: 8,
            self.abandon: 1,
            self.cancel: 3,
            self.rescue: 1,
            self.prune: 2 if number < 2 else 0,
        }
        return random.choices(list(weights), list(weights.values()))[0]

    async def enqueue(self, store: OpenStore, random: Random) -> None:
        """Two producers enqueue the same new keys at once in different orders, and then jobs without keys."""
        keys = [f"{random.getrandbits(64):x}" for _ in range(_KEYS)]
        await asyncio.gather(*(self._enqueue(store, random.sample(keys, _KEYS)) for _ in range(2)))
        await self._enqueue(store, [None] * 5)

    async def _enqueue(self, store: OpenStore, keys: Sequence[str | None]) -> None:
        jobs = [NewJob(kind=WORK, payload=Json("{}"), key=key) for key in keys]
        for job in jobs:
            self._lab.record.note(What.ENQUEUING, job.id)
        for enqueued in await store.store.enqueue(jobs):
            self._lab.record.note(What.ACCEPTED, enqueued.id)
            self._today.append(enqueued.id)

    async def enqueue_past(self, store: OpenStore, random: Random) -> None:
        jobs = [
            NewJob(kind=WORK, payload=Json("{}"), id=_id_of(self._day + random.randrange(3), random)) for _ in range(5)
        ]
        for job in jobs:
            self._lab.record.note(What.ENQUEUING, job.id, is_prunable=True)
        await store.store.enqueue(jobs)
        self.past.update(job.id for job in jobs)

    async def claim_and_finish(self, store: OpenStore, random: Random, *, is_last: bool = False) -> None:
        claimed = await self._claim(store)
        if claimed and random.random() < 0.5:
            await store.store.renew([Renewal(job.lease, _LEASE) for job in claimed])
        await self._finish(store, random, claimed, is_last=is_last)

    async def _finish(
        self, store: OpenStore, random: Random, claimed: Sequence[LeasedJob], *, is_last: bool = False
    ) -> None:
        finishes = []
        for job in claimed:
            transition = self._end(job.lease.fence, random, is_last=is_last)
            how = DONE if transition.move is Move.SUCCEED else "NotYet"
            self._lab.record.note(What.EFFECT, job.lease.id, job.lease.fence)
            self._lab.record.note(What.END, job.lease.id, job.lease.fence, how=how)
            finishes.append(Finish(job.lease, transition))
            if how == DONE:
                self.ended.add(job.lease.id)
        while finishes:
            # Another writer may be canceling or moving the job right now: ask again, as a worker does.
            answers = await store.store.finish(finishes)
            finishes = [each for each, fenced in zip(finishes, answers, strict=True) if fenced is Fenced.LOCKED]
            if Fenced.STALE in answers:
                self._lab.violation(TARGET, "a finish was refused, although its lease was never lost")

    async def abandon(self, store: OpenStore, random: Random) -> None:
        """Leave some jobs to be rescued, each once: after two losses a job is a suspect, and no writer claims those."""
        claimed = await self._claim(store)
        abandoned = [job for job in claimed if not job.losses][:_ABANDONED]
        for job in abandoned:
            self._lab.record.note(What.END, job.lease.id, job.lease.fence, how="abandoned")
        await self._finish(store, random, [job for job in claimed if job not in abandoned])
        ends = [Renewal(job.lease, _SHORT_LEASE) for job in abandoned]
        while ends:
            # As in _finish: another writer may hold the row right now.
            answers = await store.store.renew(ends)
            ends = [each for each, answer in zip(ends, answers, strict=True) if answer.fenced is Fenced.LOCKED]

    async def _claim(self, store: OpenStore) -> Sequence[LeasedJob]:
        request = ClaimRequest(uuid4(), 10, ("default",), {WORK: KindClaim(_LEASE, 10)})
        await store.store.look(["default"], [WORK])
        claimed = await store.store.claim(request)
        for job in claimed:
            self._lab.record.note(What.START, job.lease.id, job.lease.fence, attempt=job.attempt)
        return claimed

    def _end(self, fence: int, random: Random, *, is_last: bool) -> Transition:
        chance = random.random()
        if chance < 0.2 and not is_last:
            return Transition(Move.RETRY, error=_FAILED)
        return PLAIN_SUCCESS if chance < 0.6 else Transition(Move.SUCCEED, result=encode({"fence": fence}))

    async def cancel(self, store: OpenStore, random: Random) -> None:
        """Cancel ready, running and final jobs at random."""
        known = [*self._today[-100:], *list(self.past)[-100:]]
        ids = random.sample(known, min(5, len(known)))
        self._lab.record.note_each(What.CANCEL, ids)
        answers = await store.store.cancel(ids)
        # A job whose cancel was requested ends instead of making its next attempt.
        ends = (Canceling.CANCELED, Canceling.REQUESTED)
        self.ended.update(id for id, answer in zip(ids, answers, strict=True) if answer in ends)

    async def rescue(self, store: OpenStore, random: Random) -> None:  # noqa: ARG002
        self.rescued += len(await store.store.rescue(100))

    async def prune(self, store: OpenStore, random: Random) -> None:
        does_compact = random.random() < 0.5
        chore = store.maintenance.compact_counts() if does_compact else store.maintenance.prune_jobs(timedelta(0))
        async for batch in chore:
            self.dropped += batch.counts.get("partitions_dropped", 0) // 2


def _id_of(days_ago: int, random: Random) -> UUID:
    """An id as if it had been made that many days ago."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    return UUID(int=(int(at.timestamp() * 1000) << 80) | (7 << 76) | random.getrandbits(76))
