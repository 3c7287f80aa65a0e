"""The memory store and PostgreSQL behave the same: Hypothesis sends both the same commands and compares everything.

The rules use stale leases on purpose, and time passes only when a rule says so. Fences differ between the stores, so
the test remembers which fences belong together and compares those.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from math import prod
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast
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

from holdfast.domain.claim import holder_of
from holdfast.domain.errors import DuplicateJob
from holdfast.domain.job import IfExists, Job, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json, decode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import (
    ClaimRequest,
    Deleting,
    Fenced,
    Finish,
    JobFilter,
    JobReader,
    KindClaim,
    Renewal,
    Rescued,
    Store,
    StoreClock,
)
from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock
from tests.databases import DatabaseMaker, OneConnectionStore
from tests.store_contract.steps import BROKEN, HOLDER, OTHER_HOLDER, SECOND, START, Options, job

Answer = TypeVar("Answer")

KINDS = ("a", "b")
QUEUES = ("one", "two")
MOST_JOBS = 18
# An ID of the day on which the template was made, and so of a partition other than the default one.
_TODAY = int(datetime.now(UTC).timestamp() * 1000) << 80
_TABLES = ("job", "ready", "lease", "finished", "dead_letter", "attempt_error", "progress", "key", "ledger")

# The two statements of the reader in one.
_EVERYTHING = f"""
SELECT counted.counts, shown.*, overlay(shown.claim::text PLACING '-0000-000000000000' FROM 19)::uuid AS holder
FROM (SELECT json_object_agg(state, jobs) AS counts FROM ({statement("count", "holdfast")}) AS each) AS counted
LEFT JOIN ({statement("show", "holdfast", 1)}) AS shown ON true
ORDER BY shown.id DESC
"""
# Fences differ, errors are formatted differently because they are jsonb, and a holder is compared by its claim.
_SAME_IN_BOTH = [name for name in Job.__slots__ if name not in ("fence", "errors", "holder")]
_of_memory = attrgetter(*_SAME_IN_BOTH, "holder")
_in_postgres = itemgetter(*_SAME_IN_BOTH, "holder")
_IN_JSON = ("payload", "headers", "result", "progress")

_SECONDS = [number * SECOND / 2 for number in range(41)]
_TIMES = [START + number * SECOND for number in range(-10, 61)]
_JSONS = [Json(text) for text in ("{}", "null", '{"b": 1, "a": [1.5, "\\u00fc"]}', "[1, 2]")]
_PERHAPS_JSON = [None, None, None, None, *_JSONS]
_QUEUES = [QUEUES, QUEUES[:1], QUEUES[1:], ("two", "one", "two")]
_LIMITS = [
    {kind: limit for kind, limit in zip(KINDS, limits, strict=True) if limit is not None}
    for limits in product((3, 2, 1, 0, None), repeat=len(KINDS))
]
# Places of one to three jobs or leases, counted from the newest.
_PLACES = [places for number in (1, 2, 3) for places in product(range(12), repeat=number)]
_ENDINGS = [
    *(Transition(Move.SUCCEED, result=result) for result in _PERHAPS_JSON * 5),
    *(Transition(Move.RETRY, delay=delay, error=BROKEN) for delay in _SECONDS),
    *(Transition(Move.RETRY, at=time, error=BROKEN) for time in _TIMES[::4]),
    *(Transition(Move.SNOOZE, at=time) for time in _TIMES[::4]),
    *(Transition(Move.SNOOZE, delay=delay) for delay in _SECONDS),
    *(Transition(event, error=BROKEN) for event in (Move.EXHAUST, Move.FAIL, Move.CANCEL, Move.INTERRUPT) * 11),
]
_NO_KEY: list[Options] = [{}] * 5
_KEPT: list[Options] = [{"key": key} for key in "xy"]
_REPLACED: list[Options] = [{"key": key, "if_exists": IfExists.REPLACE} for key in "xyxy"]
_KEPT_LIVE: list[Options] = [{"key": key, "if_exists": IfExists.KEEP_LIVE} for key in "xyxy"]
_WINDOWS: list[Options] = [{"key": key, "window": seconds * SECOND} for key in "xy" for seconds in (2, 15)]
_NOW: list[Options] = [{}] * 70
_DELAYS: list[Options] = [{"delay": delay} for delay in _SECONDS]
_RUN_ATS: list[Options] = [{"run_at": time} for time in _TIMES]


def each_of(*choices: Sequence[object]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Pick one of each in a single draw, because drawing is more than half the cost of an example."""

    def picked(number: int) -> tuple[object, ...]:
        chosen = []
        for choice in choices:
            number, place = divmod(number, len(choice))
            chosen.append(choice[place])
        return tuple(chosen)

    return st.integers(0, prod(map(len, choices)) - 1).map(picked)


def _new_job(chosen: tuple[Any, ...]) -> NewJob:
    when, about_key, kind, queue, priority, tenant, payload, headers, max_attempts = chosen
    lane = Options(kind=kind, queue=queue, priority=priority, tenant=tenant)
    rest = Options(payload=payload, headers=headers, max_attempts=max_attempts)
    options: Options = {**lane, **rest, **cast(Options, about_key), **cast(Options, when)}
    return job(**options)


new_jobs = each_of(
    _NOW + _DELAYS + _RUN_ATS,
    _NO_KEY + _KEPT + _KEPT_LIVE + _REPLACED + _WINDOWS,
    KINDS,
    QUEUES,
    (5, 5, 0, 9),
    ("", "", "acme"),
    _JSONS,
    _PERHAPS_JSON,
    (None, 1, 1000),
).map(_new_job)


def at_once(awaitable: Awaitable[Answer]) -> Answer:
    """Run a call of the memory store, which never waits, without an event loop."""
    try:
        cast(Coroutine[None, None, Answer], awaitable).send(None)
    except StopIteration as done:
        return cast(Answer, done.value)
    raise AssertionError("the memory store waited for something")


@dataclass(frozen=True, slots=True)
class Pair:
    """The leases of the two stores for the same claim."""

    memory: Lease
    postgres: Lease


class Bench:
    """One PostgreSQL store that is emptied before each example, and the event loop of both stores."""

    def __init__(self, runner: asyncio.Runner, store: OneConnectionStore) -> None:
        # `runner.run` also handles Ctrl-C, which costs a third of a millisecond each time.
        self.run = runner.get_loop().run_until_complete
        self.store = store

    def empty(self) -> None:
        # Much faster than TRUNCATE, which makes new files for tables and indexes and invalidates plans, as VACUUM does.
        self.run(self.store.connection.execute("; ".join(f"DELETE FROM holdfast.{table}" for table in _TABLES)))
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
        return at_once(verb(self.memory)), self.bench.run(verb(self.bench.store))

    def agree(self, verb: Callable[[Store], Awaitable[Answer]]) -> Answer:
        memory, postgres = self.both(verb)
        assert memory == postgres
        return memory

    @initialize(jobs=st.lists(new_jobs, min_size=3, max_size=6))
    def begin(self, jobs: list[NewJob]) -> None:
        self.bench.empty()
        at_once(self.memory.clock.freeze(START))
        self.enqueue(jobs, duplicate=False)

    def _pairs_at(self, chosen: Sequence[int]) -> list[Pair]:
        """Return the leases at these places without duplicates: held leases first, then stale ones, newest first."""
        if not any(map(self._is_held, self.pairs)):
            self._claim_everything(suspects=False)
        newest_first = list(reversed(self.pairs))
        ordered = sorted(newest_first, key=self._is_held, reverse=True)
        return list(dict.fromkeys(ordered[place % len(ordered)] for place in chosen if ordered))

    def _is_held(self, pair: Pair) -> bool:
        return self.memory._held(pair.memory) is not None

    def _fenced(self, pairs: Sequence[Pair], verb: Callable[[Store, list[Lease]], Awaitable[Answer]]) -> Answer:
        memory = at_once(verb(self.memory, [pair.memory for pair in pairs]))
        postgres = self.bench.run(verb(self.bench.store, [pair.postgres for pair in pairs]))
        assert memory == postgres
        return memory

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=3), duplicate=st.sampled_from([False] * 9 + [True]))
    def enqueue(self, jobs: list[NewJob], duplicate: bool) -> None:
        named: list[NewJob] = []
        for each in jobs:
            # Every other ID sorts before all earlier ones, so order by ID and order by time differ.
            self.numbers += 1
            id = UUID(int=_TODAY + self.numbers if self.numbers % 2 else 1000 - self.numbers)
            named.append(replace(each, id=id, correlation_id=str(id)))
        if duplicate and self.ids:
            named[-1] = replace(named[-1], id=self.ids[0])
        enqueued = self.agree(lambda store: _or_duplicate(store.enqueue(named)))
        self.ids += [each.id for each in enqueued or [] if each.is_new]

    @rule(ask=each_of(_LIMITS, _QUEUES, range(1, 6), (HOLDER, OTHER_HOLDER), (False, False, True), range(4)))
    def claim(self, ask: tuple[dict[str, int], tuple[str, ...], int, UUID, bool, int]) -> None:
        limits, queues, limit, holder, suspects, lease = ask
        kinds = {kind: KindClaim((lease + 1) * 5 * SECOND, most) for kind, most in limits.items()}
        request = ClaimRequest(holder, limit, queues, kinds, suspects)
        memory, postgres = self.both(lambda store: store.claim(request))
        assert [_comparable(each) for each in memory] == [_comparable(each) for each in postgres]
        for one, two in zip(memory, postgres, strict=True):
            earlier = [pair.postgres for pair in self.pairs if pair.postgres.id == two.lease.id]
            assert all(each.fence < two.lease.fence and each.claim != two.lease.claim for each in earlier)
            self.fences[one.lease.fence] = two.lease.fence
            self.pairs.append(Pair(one.lease, two.lease))

    def _claim_everything(self, *, suspects: bool) -> None:
        # The rule `claim` asks for nothing often enough. Doing it here would only take time.
        if any(job.state is JobState.READY for job in self.memory._jobs.values()):
            self.claim((dict.fromkeys(KINDS, 9), QUEUES, 9, OTHER_HOLDER, suspects, 1))

    @rule(ended=each_of(_PLACES, _ENDINGS, _ENDINGS))
    def finish(self, ended: tuple[tuple[int, ...], Transition, Transition]) -> None:
        chosen, first, second = ended
        endings = (first, second, first)

        async def finish(store: Store, leases: list[Lease]) -> list[Fenced]:
            return await store.finish([Finish(*each) for each in zip(leases, endings, strict=False)])

        self._fenced(self._pairs_at(chosen), finish)

    @rule(renewed=each_of(_PLACES, _SECONDS, _PERHAPS_JSON))
    def renew(self, renewed: tuple[tuple[int, ...], timedelta, Json | None]) -> None:
        chosen, extend, progress = renewed

        async def renew(store: Store, leases: list[Lease]) -> list[tuple[Fenced, bool]]:
            renewed = await store.renew([Renewal(lease, extend, progress) for lease in leases])
            assert [each.lease for each in renewed] == leases
            return [(each.fenced, each.cancel_requested) for each in renewed]

        self._fenced(self._pairs_at(chosen), renew)

    @rule(chosen=st.sampled_from(_PLACES))
    def release(self, chosen: tuple[int, ...]) -> None:
        self._fenced(self._pairs_at(chosen), lambda store, leases: store.release(leases))

    @rule(wish=each_of(_PLACES, ("retry", "cancel", "retry", "delete")))
    def a_person_interferes(self, wish: tuple[tuple[int, ...], str]) -> None:
        chosen, verb = wish
        known = [UUID(int=7), *self.ids]
        ids = [known[-1 - place % len(known)] for place in chosen]
        if verb == "cancel":
            self.agree(lambda store: store.cancel(ids))
        elif verb == "delete":
            answers = self.agree(lambda store: store.delete(ids))
            gone = {id for id, answer in zip(ids, answers, strict=True) if answer is Deleting.DELETED}
            self.ids = [id for id in self.ids if id not in gone]
        else:
            self.agree(lambda store: store.retry(ids))

    @rule(step=each_of(_SECONDS, (None, 10, 1, 2, 0)))
    def time_passes(self, step: tuple[timedelta, int | None]) -> None:
        passed, rescued = step

        async def run(store: Store) -> list[Rescued]:
            clock: StoreClock = self.memory.clock if store is self.memory else PostgresClock(self.bench.store)
            await clock.advance(passed)
            return [] if rescued is None else await store.rescue(rescued)

        self.agree(run)

    @rule(losses=st.sampled_from([1, 2, 1, 4]), crash_limit=st.sampled_from([1, 2]))
    def workers_crash(self, losses: int, crash_limit: int) -> None:
        """Make suspects, and dead letters from them."""
        for loss in range(losses):
            self._claim_everything(suspects=False)
            if loss >= 2:
                self._claim_everything(suspects=True)
                self.run_alone(((0, 1, 2), crash_limit))
            self.time_passes((10 * SECOND, 10))

    @rule(alone=each_of(_PLACES, (1, 2)))
    def run_alone(self, alone: tuple[tuple[int, ...], int]) -> None:
        chosen, crash_limit = alone

        async def run_alone(store: Store, leases: list[Lease]) -> list[Fenced]:
            return [await store.run_alone(lease, crash_limit) for lease in leases]

        self._fenced(self._pairs_at(chosen), run_alone)

    @rule(chosen=st.sampled_from(_PLACES))
    def workers_live(self, chosen: tuple[int, ...]) -> None:
        """Most of these leases are held or finished; the others were lost."""
        self._fenced(self._pairs_at(chosen), lambda store, leases: store.absolve(leases))
        lost = [pair for pair in self.pairs if not self._is_held(pair)][-3:]
        self._fenced(lost, lambda store, leases: store.absolve(leases))

    @rule(asked=each_of(_QUEUES, _LIMITS, (False, True)))
    def look(self, asked: tuple[tuple[str, ...], dict[str, int], bool]) -> None:
        queues, kinds, _ = asked
        self.agree(lambda store: store.look(queues, list(kinds)))

    def _reader(self, store: Store) -> JobReader:
        return self.memory if store is self.memory else PostgresReader(self.bench.store)

    @rule(limit=st.sampled_from([MOST_JOBS * 2, 1, 0, 3]))
    def backlog(self, limit: int) -> None:
        self.agree(lambda store: self._reader(store).backlog(limit))

    @rule(kind=st.sampled_from(KINDS), tenant=st.sampled_from(["", "acme"]))
    def find(self, kind: str, tenant: str) -> None:
        async def found(store: Store) -> list[UUID | None]:
            jobs = [await self._reader(store).find(kind, key, tenant) for key in "xy"]
            return [None if found is None else found.id for found in jobs]

        self.agree(found)

    @invariant()
    def everything_is_the_same(self) -> None:
        rows = self.bench.run(self.bench.store.connection.fetch(_EVERYTHING, self.ids))
        assert at_once(self.memory.count()) == dict.fromkeys(JobState, 0) | decode(rows[0]["counts"])
        jobs = at_once(self.memory.list(JobFilter(), MOST_JOBS * 2))
        assert sorted(self.ids, reverse=True) == [each.id for each in jobs]
        # Without jobs, the join still returns the counts, in a row without an ID.
        for each, row in zip(jobs, rows if jobs else [], strict=True):
            if _of_memory(each) != _of_postgres(row) or self.fences[each.fence] != row["fence"]:
                raise AssertionError(f"{each} in memory, {row} in PostgreSQL")
            if each.errors or row["errors"]:
                assert list(each.errors) == [decode(error) for error in row["errors"]]


def _of_postgres(row: "asyncpg.Record") -> object:
    return _in_postgres({**dict(row), **{name: None if row[name] is None else decode(row[name]) for name in _IN_JSON}})


async def _or_duplicate(enqueuing: Awaitable[Answer]) -> Answer | None:
    try:
        return await enqueuing
    except DuplicateJob:
        return None


def _comparable(leased: LeasedJob) -> tuple[object, ...]:
    """Return a claimed job without its fence and with its JSON decoded."""
    headers = None if leased.headers is None else decode(leased.headers)
    policy = (leased.attempt, leased.losses, leased.max_attempts, leased.created_at)
    names = (leased.kind, leased.queue, leased.priority, leased.tenant, leased.correlation_id)
    return leased.id, holder_of(leased.lease.claim), *names, *policy, decode(leased.payload), headers


@contextmanager
def _bench(server: DatabaseMaker) -> Iterator[Bench]:
    with server.fresh_database() as database, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Planning each execution of the same few statements would be a fifth of the server's work here.
        settings = {"plan_cache_mode": "force_generic_plan"}
        connection = runner.run(asyncpg.connect(database.url, server_settings=settings))
        try:
            yield Bench(runner, OneConnectionStore(connection))
        finally:
            runner.run(connection.close())


# Examples of 50 steps, as a share of the number in the Hypothesis profile; `make soak` runs many more.
_PARTS = [("embedded-18", 0.6), ("embedded-18", 0.6), ("embedded-16", 0.3)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("server", "share"),
    [
        pytest.param(name, share, id=f"{name}-part-{part}", marks=pytest.mark.long if part else [])
        for part, (name, share) in enumerate(_PARTS)
    ],
    indirect=["server"],
)
def test_memory_and_postgres_agree(threads_end: None, server: DatabaseMaker, share: float) -> None:
    chosen = settings(
        max_examples=round(share * settings().max_examples),
        stateful_step_count=50,
        derandomize=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=list(HealthCheck),
    )
    with _bench(server) as bench:
        run_state_machine_as_test(lambda: StoresAgree(bench), settings=chosen)  # type: ignore[arg-type]
