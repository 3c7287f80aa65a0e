"""The memory store and PostgreSQL do the same: Hypothesis sends both the same commands and compares everything.

Stale leases are used on purpose, and time passes only when a rule says so. Fences differ between the stores, so each
pair of them is remembered and compared by that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.errors import DuplicateJob
from holdfast.job import Job, JobState, Lease, LeasedJob, NewJob
from holdfast.json_text import Json, decode
from holdfast.lifecycle import Event, Transition
from holdfast.store.contract import ClaimRequest, Fenced, Finish, KindClaim, Renewal, Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock
from tests.databases import DatabaseMaker, OneConnectionStore
from tests.store_contract.steps import BROKEN, HOLDER, OTHER_HOLDER, SECOND, START

Answer = TypeVar("Answer")

KINDS = ("a", "b", "c")
QUEUES = ("one", "two")
MOST_JOBS = 18
# An id of the day on which the template was made, and so of a partition other than the default one.
_TODAY = int(START.timestamp() * 1000) << 80

seconds = st.integers(0, 40).map(lambda number: number * SECOND / 2)
times = st.integers(-10, 60).map(lambda number: START + number * SECOND)
jsons = st.sampled_from(["{}", "null", '{"b": 1, "a": [1.5, "\\u00fc"]}', "[1, 2]"]).map(Json)
queues = st.sampled_from([QUEUES, QUEUES[:1], QUEUES[1:], ("two", "one", "two")])
# Large, because it stands for a place counted from the newest.
places = st.integers(0, 11)

new_jobs = st.builds(
    NewJob,
    kind=st.sampled_from(KINDS),
    payload=jsons,
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from([5, 5, 0, 9]),
    tenant=st.sampled_from(["", "", "acme"]),
    max_attempts=st.sampled_from([None, 1, 1000]),
    key=st.sampled_from([None, None, None, "x", "y"]),
    headers=st.none() | jsons,
).flatmap(
    lambda job: (
        st.just(job)
        | seconds.map(lambda delay: replace(job, delay=delay))
        | times.map(lambda at: replace(job, run_at=at))
    )
)
limits = st.fixed_dictionaries({}, optional={kind: st.integers(0, 3) for kind in KINDS})
endings = st.one_of(
    st.builds(Transition, st.just(Event.SUCCEED), result=st.none() | jsons),
    st.builds(Transition, st.just(Event.RETRY), delay=seconds, error=st.just(BROKEN)),
    st.builds(Transition, st.sampled_from([Event.RETRY, Event.SNOOZE]), at=times, error=st.none() | st.just(BROKEN)),
    st.builds(Transition, st.just(Event.SNOOZE), delay=seconds),
    st.builds(Transition, st.sampled_from([Event.EXHAUST, Event.FAIL, Event.CANCEL]), error=st.just(BROKEN)),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two leases of one claim."""

    memory: Lease
    postgres: Lease


class Bench:
    """One PostgreSQL store that is emptied before each example, and the loop that both stores run on."""

    def __init__(self, runner: asyncio.Runner, store: OneConnectionStore) -> None:
        # The runner's own `run` also takes care of Ctrl-C, which costs a third of a millisecond each time.
        self.run = runner.get_loop().run_until_complete
        self.store = store

    def empty(self) -> None:
        tables = ("job", "ready", "lease", "finished", "dead_letter", "attempt_error", "progress", "key", "ledger")
        # Far quicker than TRUNCATE, which makes a new file for each table and index.
        self.run(self.store.connection.execute("; ".join(f"DELETE FROM holdfast.{table}" for table in tables)))
        self.run(PostgresClock(self.store).freeze(START))


class StoresAgree(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.memory = MemoryStore()
        self.numbers = 0
        self.ids: list[UUID] = []
        self.pairs: list[Pair] = []
        self.fences: dict[int | None, int | None] = {None: None}

    def both(self, verb: Callable[[Store], Awaitable[Answer]]) -> tuple[Answer, Answer]:
        async def run() -> tuple[Answer, Answer]:
            return await verb(self.memory), await verb(self.bench.store)

        return self.bench.run(run())

    def agree(self, verb: Callable[[Store], Awaitable[Answer]]) -> Answer:
        memory, postgres = self.both(verb)
        assert memory == postgres
        return memory

    @initialize(jobs=st.lists(new_jobs, min_size=3, max_size=6))
    def begin(self, jobs: list[NewJob]) -> None:
        self.bench.empty()
        self.bench.run(self.memory.clock.freeze(START))
        self.enqueue(jobs, duplicate=False)

    def _pairs_at(self, chosen: Sequence[int]) -> list[Pair]:
        """The leases at these places, each once: first those that are held, then the stale ones, newest first."""
        if not any(map(self._is_held, self.pairs)):
            self._claim_everything(suspects=False)
        newest_first = list(reversed(self.pairs))
        ordered = sorted(newest_first, key=self._is_held, reverse=True)
        return list(dict.fromkeys(ordered[place % len(ordered)] for place in chosen if ordered))

    def _is_held(self, pair: Pair) -> bool:
        return self.memory._held(pair.memory) is not None

    def _fenced(self, pairs: Sequence[Pair], verb: Callable[[Store, list[Lease]], Awaitable[Answer]]) -> Answer:
        async def run() -> tuple[Answer, Answer]:
            memory = await verb(self.memory, [pair.memory for pair in pairs])
            return memory, await verb(self.bench.store, [pair.postgres for pair in pairs])

        memory, postgres = self.bench.run(run())
        assert memory == postgres
        return memory

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=3), duplicate=st.sampled_from([False] * 9 + [True]))
    def enqueue(self, jobs: list[NewJob], duplicate: bool) -> None:
        named: list[NewJob] = []
        for job in jobs:
            # Every other id comes before all earlier ones, so that order by id and by time are not the same.
            self.numbers += 1
            id = UUID(int=_TODAY + self.numbers if self.numbers % 2 else 1000 - self.numbers)
            named.append(replace(job, id=id, correlation_id=str(id)))
        if duplicate and self.ids:
            named[-1] = replace(named[-1], id=self.ids[0])
        enqueued = self.agree(lambda store: _or_duplicate(store.enqueue(named)))
        self.ids += [each.id for each in enqueued or [] if each.is_new]

    @rule(
        limits=limits,
        limit=st.integers(1, 5),
        queues=queues,
        holder=st.sampled_from([HOLDER, OTHER_HOLDER]),
        suspects=st.sampled_from([False, False, True]),
        lease=st.integers(0, 3),
    )
    def claim(
        self, limits: dict[str, int], limit: int, queues: tuple[str, ...], holder: UUID, suspects: bool, lease: int
    ) -> None:
        kinds = {kind: KindClaim((lease + 1) * 5 * SECOND, most) for kind, most in limits.items()}
        request = ClaimRequest(holder, limit, queues, kinds, suspects)
        memory, postgres = self.both(lambda store: store.claim(request))
        assert [_comparable(each) for each in memory] == [_comparable(each) for each in postgres]
        for one, two in zip(memory, postgres, strict=True):
            newest = max((fence for fence in self.fences.values() if fence is not None), default=0)
            assert two.lease.fence > newest
            self.fences[one.lease.fence] = two.lease.fence
            self.pairs.append(Pair(one.lease, two.lease))

    def _claim_everything(self, *, suspects: bool) -> None:
        # The rule `claim` asks for nothing often enough; here it would only take time.
        if any(job.state is JobState.READY for job in self.memory._jobs.values()):
            self.claim(dict.fromkeys(KINDS, 9), 9, QUEUES, OTHER_HOLDER, suspects, lease=1)

    @rule(chosen=st.lists(st.tuples(places, endings), min_size=1, max_size=3))
    def finish(self, chosen: list[tuple[int, Transition]]) -> None:
        transitions = [ending for _, ending in chosen]

        async def finish(store: Store, leases: list[Lease]) -> list[Fenced]:
            return await store.finish([Finish(*each) for each in zip(leases, transitions, strict=False)])

        self._fenced(self._pairs_at([place for place, _ in chosen]), finish)

    @rule(chosen=st.lists(places, min_size=1, max_size=3), extend=seconds, progress=st.none() | jsons)
    def renew(self, chosen: list[int], extend: timedelta, progress: Json | None) -> None:
        async def renew(store: Store, leases: list[Lease]) -> list[tuple[Fenced, bool]]:
            renewed = await store.renew([Renewal(lease, extend, progress) for lease in leases])
            assert [each.lease for each in renewed] == leases
            return [(each.fenced, each.cancel_requested) for each in renewed]

        self._fenced(self._pairs_at(chosen), renew)

    @rule(chosen=st.lists(places, min_size=1, max_size=3))
    def release(self, chosen: list[int]) -> None:
        self._fenced(self._pairs_at(chosen), lambda store, leases: store.release(leases))

    @rule(chosen=st.lists(places, min_size=1, max_size=3), verb=st.sampled_from(["retry", "cancel", "retry"]))
    def a_person_interferes(self, chosen: list[int], verb: str) -> None:
        known = [UUID(int=7), *self.ids]
        ids = [known[-1 - place % len(known)] for place in chosen]
        if verb == "cancel":
            self.agree(lambda store: store.cancel(ids))
        else:
            self.agree(lambda store: store.retry(ids))

    @rule(passed=seconds, rescued=st.sampled_from([None, 10, 1, 2, 0]))
    def time_passes(self, passed: timedelta, rescued: int | None) -> None:
        self.bench.run(self.memory.clock.advance(passed))
        self.bench.run(PostgresClock(self.bench.store).advance(passed))
        if rescued is not None:
            self.agree(lambda store: store.rescue(rescued))

    @rule(losses=st.sampled_from([1, 2, 1, 3]))
    def workers_crash(self, losses: int) -> None:
        """Makes suspects, and dead letters of them."""
        for loss in range(losses):
            self._claim_everything(suspects=False)
            if loss == 2:
                self._claim_everything(suspects=True)
            self.time_passes(10 * SECOND, rescued=10)

    @rule(queues=queues, kinds=limits, suspects=st.booleans())
    def next_due(self, queues: tuple[str, ...], kinds: dict[str, int], suspects: bool) -> None:
        self.agree(lambda store: store.next_due(queues, list(kinds), suspects=suspects))

    @invariant()
    def all_jobs_are_the_same(self) -> None:
        async def read() -> tuple[list[Job | None], list[dict[str, object]]]:
            memory = [await self.memory.get(id) for id in sorted(self.ids, reverse=True)]
            return memory, [dict(row) for row in await self.bench.store.fetch("show", self.ids)]

        memory, postgres = self.bench.run(read())
        assert len(memory) == len(postgres)
        for job, row in zip(memory, postgres, strict=True):
            assert job is not None
            for name in Job.__slots__:
                expected, found = getattr(job, name), row[name]
                if expected != found and not self._same(name, expected, found):
                    raise AssertionError(f"{name} of {job.id}: {expected!r} in memory, {found!r} in PostgreSQL")

    @invariant()
    def all_counts_are_the_same(self) -> None:
        async def read() -> tuple[Mapping[JobState, int], Mapping[JobState, int]]:
            return await self.memory.count(), await PostgresReader(self.bench.store).count()

        memory, postgres = self.bench.run(read())
        assert memory == postgres

    def _same(self, name: str, expected: object, found: object) -> bool:
        match name, expected, found:
            case "state", JobState(), str():
                return expected.value == found
            case "fence", int() | None, _:
                return self.fences[expected] == found
            case "errors", tuple(), list():
                return [decode(each) for each in expected] == [decode(each) for each in found]
            case (("payload" | "headers" | "result" | "progress"), str(), str()):
                return bool(decode(expected) == decode(found))
            case _:
                return False


async def _or_duplicate(enqueuing: Awaitable[Answer]) -> Answer | None:
    try:
        return await enqueuing
    except DuplicateJob:
        return None


def _comparable(leased: LeasedJob) -> tuple[object, ...]:
    """A claimed job without its fence, and with JSON as values."""
    headers = None if leased.headers is None else decode(leased.headers)
    policy = (leased.attempt, leased.losses, leased.max_attempts, leased.created_at, leased.until)
    names = (leased.kind, leased.queue, leased.priority, leased.tenant, leased.correlation_id)
    return leased.id, leased.lease.holder, *names, *policy, decode(leased.payload), headers


@contextmanager
def _bench(server: DatabaseMaker) -> Iterator[Bench]:
    with server.fresh_database() as database, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(database.url))
        try:
            yield Bench(runner, OneConnectionStore(connection))
        finally:
            runner.run(connection.close())


# 510 examples of 50 steps, spread over processes by xdist.
_PARTS = [("embedded-18", 110)] * 4 + [("embedded-16", 70)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("server", "examples"),
    _PARTS,
    indirect=["server"],
    ids=[f"{name}-part-{part}" for part, (name, _) in enumerate(_PARTS)],
)
def test_memory_and_postgres_agree(threads_end: None, cheap_looks: None, server: DatabaseMaker, examples: int) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=50,
        derandomize=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=list(HealthCheck),
    )
    with _bench(server) as bench:
        run_state_machine_as_test(lambda: StoresAgree(bench), settings=chosen)  # type: ignore[arg-type]
