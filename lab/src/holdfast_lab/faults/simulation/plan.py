"""Everything a seed decides before a schedule begins: the weather, the jobs, and what each attempt of a job does."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from uuid import UUID

from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json
from holdfast.worker.settings import WorkerSettings

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time on the store's clock when the machine's clock shows 1000."""

FEWEST_JOBS = 50
FEWEST_STEPS = 200
"""Up to the last fault."""
TIMEOUT_SECONDS = 1.5
"""The timeout of all handlers; longer than any lease."""
USUAL, NARROW = "usual", "narrow"
"""Two kinds: one without limits, and one with a shorter lease, of which only a few jobs run at once."""

_EMPTY = Json("{}")
_ALWAYS = 9


class Act(StrEnum):
    """What a handler does in one attempt."""

    RETURN = "return"
    RETURN_RESULT = "return a result"
    RAISE = "raise an error"
    RETURN_ERROR = "return an error"
    PERMANENT = "raise Permanent"
    SNOOZE = "raise Snooze"
    GIVE_UP = "raise Cancel"
    OUTLAST = "outlast the lease"
    OVERRUN = "overrun the timeout"
    BLOCK = "block the event loop"
    IGNORE = "ignore the interruption"
    KILL = "kill the process"


@dataclass(frozen=True, slots=True)
class Attempt:
    act: Act
    waits: tuple[float, ...] = ()
    """The length of each await in seconds. If empty, the handler never yields to the event loop."""


QUICK = Attempt(Act.RETURN, (0.01,))
AT_ONCE = Attempt(Act.RETURN)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    new: NewJob
    attempts: tuple[Attempt, ...]
    """One for each start, in order; the last one is repeated."""
    losses: int = 0
    """Leases lost before the schedule begins, because a schedule is too short to make many suspects."""

    @property
    def is_killer(self) -> bool:
        """Whether it always kills the process that it runs in."""
        return self.attempts[-1].act is Act.KILL


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad conditions are: chances per request, answer and wake-up, and numbers of faults."""

    cut: float
    slow: float
    late: float
    """The chance per commit that its transaction was open for a while and its jobs carry the time when it began."""
    pause: float
    jolt_every: int
    lost_wake_up: float
    doubled_wake_up: float
    deaths: int
    shutdowns: int
    outages: int
    cancels: int
    retries: int
    is_orderly: bool


@dataclass(frozen=True, slots=True)
class Plan:
    weather: Weather
    settings: WorkerSettings
    processes: int
    seconds: float
    """The time up to the last fault."""
    bursts: tuple[tuple[float, tuple[PlannedJob, ...]], ...]
    has_schedule: bool


def draw_plan(random: Random) -> Plan:
    lease = random.choice((0.6, 0.8, 1.0))
    seconds = random.uniform(1.0, 2.6) * lease
    settings = WorkerSettings(
        concurrency=random.choice((2, 4, 8)),
        lease=timedelta(seconds=lease),
        poll=timedelta(seconds=random.choice((0.2, 0.5))),
        shutdown=timedelta(seconds=random.choice((0.0, 0.5, 2.0))),
        most_ahead=random.choice((0, 4, 50)),
    )
    return Plan(
        weather=_weather(random),
        settings=settings,
        processes=random.choice((2, 2, 2, 3)),
        seconds=seconds,
        bursts=_bursts(random, lease, seconds),
        has_schedule=random.random() < 0.3,
    )


def _weather(random: Random) -> Weather:
    """Half of the schedules have few faults, so that few oddities in them are excused."""
    rough = random.choice((0.2, 1.0))
    return Weather(
        cut=rough * random.choice((0.0, 0.05, 0.15)),
        slow=rough * random.choice((0.0, 0.05, 0.15)),
        late=random.choice((0.0, 0.3, 0.6)),
        pause=rough * random.choice((0.0, 0.02, 0.06)),
        jolt_every=int(random.choice((150, 400, 2000)) / rough),
        lost_wake_up=random.choice((0.0, 0.3, 1.0)),
        doubled_wake_up=random.choice((0.0, 0.3)),
        deaths=random.choice((0, 0, 1, 2)),
        shutdowns=random.choice((0, 0, 1, 1)),
        outages=random.choice((0, 1, 1)),
        cancels=random.randrange(5),
        retries=random.randrange(4),
        is_orderly=random.random() < 0.7,
    )


def _bursts(random: Random, lease: float, seconds: float) -> tuple[tuple[float, tuple[PlannedJob, ...]], ...]:
    # A job that kills twice makes suspects of itself and the jobs claimed with it, and all of them must succeed.
    kills = random.choice((*[0] * 17, _ALWAYS, 2, 2))
    jobs = [_job(random, lease, number, kills if number == 20 else 0) for number in range(FEWEST_JOBS)]
    has_past = random.choice((0.0, 0.0, 0.2))
    jobs = [replace(job, losses=random.choice((1, 2))) if random.random() < has_past else job for job in jobs]
    bursts = []
    while jobs:
        size = random.choice((1, 5, 20))
        bursts.append((random.uniform(0.0, 0.7) * seconds, tuple(jobs[:size])))
        jobs = jobs[size:]
    return tuple(bursts)


def _job(random: Random, lease: float, number: int, kills: int) -> PlannedJob:
    new = NewJob(
        id=UUID(int=(1 << 120) + number),
        kind=NARROW if random.random() < 0.2 else USUAL,
        payload=_EMPTY,
        priority=random.choice((5, 5, 5, 0, 9)),
        delay=timedelta(seconds=random.uniform(0.0, lease)) if random.random() < 0.2 else None,
        key=f"key {number}" if random.random() < 0.5 else None,
        max_attempts=random.choice((None, None, 2, 8)),
    )
    if kills:
        return PlannedJob(new, (Attempt(Act.KILL, (0.01,)),) * kills + ((QUICK,) if kills < _ALWAYS else ()))
    attempts: list[Attempt] = []
    while random.random() < 0.2 and len(attempts) < 4:
        attempts.append(_bad_attempt(random, lease))
    return PlannedJob(new, (*attempts, _last_attempt(random, lease)))


def _last_attempt(random: Random, lease: float) -> Attempt:
    chance = random.random()
    if chance < 0.06:
        return Attempt(Act.OUTLAST, (lease * random.uniform(1.0, 1.4),))
    if chance < 0.10:
        return Attempt(Act.PERMANENT)
    waits = tuple(random.expovariate(20.0) for _ in range(random.choice((0, 0, 1, 1, 3))))
    return Attempt(Act.RETURN_RESULT if chance < 0.3 else Act.RETURN, waits)


_BAD = (
    *(Act.RAISE, Act.RETURN_ERROR, Act.RETURN_ERROR) * 2,
    *(Act.SNOOZE,) * 6,
    *(Act.BLOCK, Act.OUTLAST, Act.GIVE_UP) * 2,
    *(Act.OVERRUN, Act.IGNORE),
)


def _bad_attempt(random: Random, lease: float) -> Attempt:
    act = random.choice(_BAD)
    if act in (Act.BLOCK, Act.OUTLAST):
        return Attempt(act, (lease * random.uniform(0.3, 1.4),))
    return Attempt(act, (random.expovariate(20.0),) if random.random() < 0.7 else ())
