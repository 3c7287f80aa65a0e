"""Where a claim starts to read: lanes and floors.

A lane is one queue, priority and kind: one range of the claim index. While a snapshot elsewhere keeps deleted rows from
being removed, a claim that starts at the beginning of a lane walks over everything claimed since. So this process
remembers per lane how far it has claimed, and starts there.

A floor must never hide a job: one committed late, released, or of a lane not seen before lies behind it, and it may be
the one whose turn it is. So as long as looking is cheap, every claim is a full look at all lanes without floors. When
it is dear, claims start from the floors, and a survey beside them finds the first job of every lane and moves the floor
to it. A claim looks at everything itself only where there is reason not to trust the floors.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from statistics import median_low
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.job import PRIORITIES
from holdfast.store.contract import ClaimRequest

_CHEAP_SECONDS = 0.001
_SHARE_OF_TIME = 20
_LONGEST_HIDDEN_SECONDS = 2.0
_ASLEEP_SECONDS = 1.25 * _LONGEST_HIDDEN_SECONDS
_SHORTEST_SECONDS = 0.01
_FEW_LANES = 100
_LOOKS_COMPARED = 5
_SURVEY_TO_LOOK = 0.25
"""Of the same lanes, as a look is the whole of a claim and is timed by who asks."""
_SECONDS_PER_CLAIMED_JOB = 0.00003
_FETCH_AT_LEAST = 64
_NEVER = float("-inf")


class Lane(NamedTuple):
    queue: str
    priority: int
    kind: str


QueueAndKind = tuple[str, str]


class Floor(NamedTuple):
    run_at: datetime
    id: UUID


_BEGINNING = Floor(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))
_LAST_ID = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Survey:
    """What stood first in each of the lanes at that moment, by the store's clock; None where nothing was due.

    `seconds`: what it has cost the server.
    """

    firsts: Mapping[Lane, Floor | None]
    moment: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe:
    """One lane of one claim statement: where to start and how much to take at most."""

    lane: Lane
    floor: Floor
    fetch: int
    is_share: bool
    """Less than what is wanted of the lane: it may have more."""


class Starts(NamedTuple):
    """Lanes and where to start in each, as statements take them."""

    queues: list[str]
    priorities: list[int]
    kinds: list[str]
    floor_times: list[datetime]
    floor_ids: list[UUID]

    @classmethod
    def of(cls, places: Sequence[tuple[Lane, Floor]]) -> "Starts":
        return cls(
            [lane.queue for lane, _ in places],
            [lane.priority for lane, _ in places],
            [lane.kind for lane, _ in places],
            [floor.run_at for _, floor in places],
            [floor.id for _, floor in places],
        )


@dataclass(frozen=True)
class Ask:
    """`learns_floors`: what it claims moves the floors."""

    probes: list[Probe]
    limit: int
    is_full_look: bool
    learns_floors: bool = True
    is_glance: bool = False

    @property
    def teaches(self) -> bool:
        """Whether there is anything to learn from the jobs that it finds."""
        return self.is_full_look or self.learns_floors

    @cached_property
    def has_shares(self) -> bool:
        """Whether a lane may have more than was asked for."""
        return any(probe.is_share for probe in self.probes)

    @cached_property
    def kinds(self) -> frozenset[QueueAndKind]:
        return frozenset((probe.lane.queue, probe.lane.kind) for probe in self.probes)

    @cached_property
    def starts(self) -> Starts:
        return Starts.of([(probe.lane, probe.floor) for probe in self.probes])

    @cached_property
    def fetches(self) -> list[int]:
        return [probe.fetch for probe in self.probes]


class Lanes:
    """The memory of one process; times are its monotonic seconds.

    `round_trip`: what any question costs, and so no part of what a look does.
    """

    def __init__(self, round_trip: float = 0.0) -> None:
        self._round_trip = round_trip
        self._floors: dict[Lane, Floor] = {}
        self._active: list[Lane] = []
        self._claimed_from: set[Lane] = set()
        """Since the last survey."""
        self.is_dear = False
        """Whether claims start from the floors, because to look at everything takes long."""
        self._dear_looks = 0
        self._dear_kinds: frozenset[QueueAndKind] = frozenset()
        """Those of the last look that was dear: one that leaves some of them out says nothing about it."""
        self._costs: deque[float] = deque(maxlen=_LOOKS_COMPARED)
        """Of surveys, the first one being that of the look for which they are made."""
        self._known: frozenset[QueueAndKind] = frozenset()
        """All that was ever asked for. What is at its limit is not asked for meanwhile."""
        self._surveyed: frozenset[QueueAndKind] = frozenset()
        """Those of which every lane has a floor that can be trusted."""
        self._asked_at: dict[QueueAndKind, float] = {}
        self._awake_since = _NEVER
        self._survey_began = self._survey_ended = _NEVER
        """Of the last one. As long as it is under way, it began after the last one ended."""
        self._is_surveying = False
        self._has_failed = False
        self.generation = 0
        """Rises when jobs came back: an ask from before has seen nothing of them."""
        self._last_look: tuple[ClaimRequest, int, Ask] | None = None
        self._last_glance: tuple[ClaimRequest, list[Lane], Ask] | None = None
        self._glances_pay = True

    def first_ask(self, request: ClaimRequest, now: float) -> Ask:
        if not self.is_dear:
            return self.all_lanes(request)
        kinds = _kinds(request)
        if self._is_asleep(kinds, now):
            # It has not surveyed either, and may not ask again soon, like a tick: so it has to see everything.
            self._surveyed = self._surveyed.difference(kinds)
            self._awake_since = now
        self._asked_at.update(dict.fromkeys(kinds, now))
        return self._from_floors(request) or self.all_lanes(request)

    def idle_ask(self, request: ClaimRequest, now: float) -> Ask | None:
        """Of whoever wants to know what is next. None: everything has to be looked at."""
        kinds = _kinds(request)
        if not self.is_dear or self._is_asleep(kinds, now):
            return None
        self._asked_at.update(dict.fromkeys(kinds, now))
        return self._from_floors(request)

    def _is_asleep(self, kinds: Iterable[QueueAndKind], now: float) -> bool:
        return any(now - self._asked_at.get(kind, _NEVER) >= _ASLEEP_SECONDS for kind in kinds)

    def _from_floors(self, request: ClaimRequest) -> Ask | None:
        # If surveys fail, looks at everything would do so as well.
        is_trusted = self._has_failed or self._surveyed.issuperset(_kinds(request))
        return self._quick(request, self._priorities(request)) if is_trusted else None

    def glance(self, request: ClaimRequest) -> Ask | None:
        """Where a job that has just come probably is: among the priorities that had jobs lately. None: not known.

        A tenth of the lanes, and for whoever is woken for one job that is most of what a claim costs.
        """
        if not self._glances_pay or not self._active_for(request):
            return None
        if self.is_dear:
            return replace(self._quick(request, self._active_priorities(request)), is_glance=True)
        last = self._last_glance
        if last is None or last[0] is not request or last[1] is not self._active:
            probes = _probes(request, self._active_priorities(request), {}, request.limit)
            glance = Ask(probes, request.limit, is_full_look=False, learns_floors=False, is_glance=True)
            last = self._last_glance = request, self._active, glance
        return last[2]

    def next_ask(self, request: ClaimRequest, ask: Ask, claimed: list[Lane]) -> Ask | None:
        """After an ask that found too little; `request` is what is missing."""
        counts = Counter(claimed)
        may_have_more = any(probe.is_share and counts[probe.lane] >= probe.fetch for probe in ask.probes)
        if request.limit <= 0 or not may_have_more:
            return None
        if ask.is_full_look:
            return self.all_lanes(request, whole=True)
        return self._quick(request, self._priorities(request), whole=True)

    def learn(
        self, ask: Ask, last: dict[Lane, Floor], claimed: int, started: float, ended: float, generation: int
    ) -> None:
        """Take in what an ask found: how many jobs were claimed, and the last one of each lane in claim order."""
        if generation != self.generation:
            return
        if ask.is_glance:
            self._glances_pay = claimed > 0
        elif last:
            known = {lane.priority for lane in self._active}
            self._glances_pay = known.issuperset(lane.priority for lane in last)
        if ask.is_full_look:
            self._learn_look(ask, ended - started - claimed * _SECONDS_PER_CLAIMED_JOB - self._round_trip, ended)
            if last:
                self._active = list(last)
        if ask.learns_floors:
            self._claimed_from.update(last)
            if started > self._survey_ended:
                # Otherwise it began at the floors of before, and tells nothing of what the survey found behind them.
                self._floors.update(last)

    def _learn_look(self, ask: Ask, seconds: float, ended: float) -> None:
        if not ask.kinds <= self._known:
            self._known |= ask.kinds
        if self.is_dear:
            return
        if seconds > _CHEAP_SECONDS:
            self._dear_looks += 1
            self._dear_kinds = ask.kinds
        elif ask.kinds >= self._dear_kinds:
            self._dear_looks = 0
        # One slow look says little.
        if self._dear_looks >= _LOOKS_COMPARED:
            self.is_dear, self._has_failed, self._surveyed = True, False, frozenset()
            self._asked_at = dict.fromkeys(ask.kinds, ended)
            self._costs.clear()
            self._costs.append(seconds)

    def forget(self) -> None:
        """Jobs came back to where they stood: the next claim looks at everything."""
        self.generation += 1
        self._floors.clear()
        self._surveyed = frozenset()

    def start_survey(self, now: float, *, is_idle: bool) -> Starts | None:
        """For the first job of every lane, if it is time for that: `surveyed` or `not_surveyed` has to follow.

        `is_idle`: nothing was found, and if nothing is found the next time either, once in a while is enough.
        """
        if not self.is_dear or self._is_surveying or now < self._next_survey(is_idle=is_idle):
            return None
        self._is_surveying, self._survey_began = True, now
        lanes = (Lane(queue, priority, kind) for priority in PRIORITIES for queue, kind in self._known)
        return Starts.of([(lane, _BEGINNING) for lane in lanes])

    def surveyed(self, survey: Survey, ended: float, generation: int) -> None:
        """Start where the first job stands, be it behind the floor or past it.

        Claims beside the survey may have gone further: that costs the next one a few steps.
        """
        self._is_surveying, self._survey_ended, self._has_failed = False, ended, False
        self._costs.append(survey.seconds)
        if generation == self.generation:
            self._put_floors(survey)
        # One survey that is cheap says little: it had the good luck to find a job right at the beginning.
        if len(self._costs) == _LOOKS_COMPARED and self._cost <= _CHEAP_SECONDS * _SURVEY_TO_LOOK:
            self.is_dear, self._dear_looks = False, 0

    def _put_floors(self, survey: Survey) -> None:
        # Not up to the moment itself, because a transaction that is not over yet may have taken its time before.
        recent = Floor(survey.moment - timedelta(seconds=_LONGEST_HIDDEN_SECONDS), _BEGINNING.id)
        for lane, first in survey.firsts.items():
            if first is not None:
                self._floors[lane] = _before(first)
            elif not recent < self._floors.get(lane, _BEGINNING) < (survey.moment, _LAST_ID):
                self._floors[lane] = recent
        if self._survey_began >= self._awake_since:
            self._surveyed = frozenset((lane.queue, lane.kind) for lane in survey.firsts)
        busy = {lane for lane, first in survey.firsts.items() if first is not None} | self._claimed_from
        if busy:
            self._active = list(busy)
        self._claimed_from.clear()

    def not_surveyed(self, ended: float) -> bool:
        """Jobs past the floors can be claimed meanwhile. Whether this is news."""
        is_news = self._is_surveying and not self._has_failed
        self._is_surveying, self._survey_ended, self._has_failed = False, ended, True
        return is_news

    def until_survey(self, now: float) -> float:
        """Seconds after which whoever is idle may get to know more."""
        if self._is_surveying:
            # Twice as late each time, should it hang.
            return max(self._cost, now - self._survey_began, _SHORTEST_SECONDS)
        return max(0.0, self._next_survey(is_idle=True) - now)

    def _next_survey(self, *, is_idle: bool) -> float:
        if not self._surveyed >= self._known and not self._has_failed:
            return self._survey_ended + max(self._cost, _SHORTEST_SECONDS)
        longest = max(_LONGEST_HIDDEN_SECONDS, 2 * self._cost)
        return self._survey_began + (longest if is_idle else min(_SHARE_OF_TIME * self._cost, longest))

    @property
    def _cost(self) -> float:
        return median_low(self._costs)

    def all_lanes(self, request: ClaimRequest, *, whole: bool = False) -> Ask:
        share = self._share(request, whole=whole)
        learns_floors = self.is_dear
        # An idle worker asks for the same again and again, and whoever has just been woken is to ask soon.
        if self._last_look is not None and self._last_look[:2] == (request, share):
            look = self._last_look[2]
            if look.learns_floors is not learns_floors:
                look = replace(look, learns_floors=learns_floors)
                self._last_look = request, share, look
            return look
        probes = _probes(request, PRIORITIES, {}, share)
        # Floors are of no use while looking is cheap; when it is no longer, the first claims from the start set them.
        look = Ask(probes, request.limit, is_full_look=True, learns_floors=learns_floors)
        self._last_look = request, share, look
        return look

    def _quick(self, request: ClaimRequest, priorities: Sequence[int], *, whole: bool = False) -> Ask:
        """Whole priorities, so that kinds of one priority stay in order among each other."""
        probes = _probes(request, priorities, self._floors, self._share(request, whole=whole))
        return Ask(probes, request.limit, is_full_look=False)

    def _priorities(self, request: ClaimRequest) -> Sequence[int]:
        """All, unless that is too many lanes to be asked for each time: then those that had jobs."""
        is_few = len(_kinds(request)) * len(PRIORITIES) <= _FEW_LANES
        return PRIORITIES if is_few else self._active_priorities(request) or PRIORITIES

    def _active_for(self, request: ClaimRequest) -> list[Lane]:
        return [lane for lane in self._active if lane.kind in request.kinds and lane.queue in request.queues]

    def _active_priorities(self, request: ClaimRequest) -> list[int]:
        return sorted({lane.priority for lane in self._active_for(request)})

    def _share(self, request: ClaimRequest, *, whole: bool) -> int:
        """How much to read from one lane. The whole limit from each would lock many times what is taken."""
        lanes = len(self._active_for(request))
        return (
            request.limit
            if whole or lanes < 2
            else min(request.limit, max(_FETCH_AT_LEAST, 2 * request.limit // lanes))
        )


def _kinds(request: ClaimRequest) -> list[QueueAndKind]:
    return [(queue, kind) for queue in request.queues for kind in request.kinds]


def _before(place: Floor) -> Floor:
    """Claims start after their floor."""
    return Floor(place.run_at - timedelta.resolution, place.id)


def _probes(request: ClaimRequest, priorities: Iterable[int], floors: Mapping[Lane, Floor], share: int) -> list[Probe]:
    """Of all lanes of these priorities, and of each lane at most `share`."""
    return [
        Probe(
            lane := Lane(queue, priority, kind),
            floors.get(lane, _BEGINNING),
            min(share, wanted := min(request.limit, claim.limit)),
            is_share=share < wanted,
        )
        for priority in priorities
        for queue in dict.fromkeys(request.queues)
        for kind, claim in request.kinds.items()
    ]
