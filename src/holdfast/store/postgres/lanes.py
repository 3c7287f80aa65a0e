"""Where a claim starts to read: lanes and floors.

A lane is one queue, priority and kind: one range of the claim index. While a snapshot elsewhere keeps deleted rows from
being removed, a claim that starts at the beginning of a lane walks over everything claimed since. So this process
remembers per lane how far it has claimed, and starts there.

A floor must never hide a job: one committed late, released, or of a lane not seen before lies behind it, and it may be
the one whose turn it is. So as long as looking is cheap, every claim is a full look at all lanes without floors. When
it is dear, claims look often enough for it to cost about a twentieth of the time, and no job that has just come waits
for it: a claim starts from the floors, and looks at everything only when that brought nothing, or the next time.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from holdfast.job import PRIORITIES
from holdfast.store.contract import ClaimRequest

_CHEAP_SECONDS = 0.001
_SHARE_OF_TIME = 20
_LONGEST_HIDDEN_SECONDS = 2.0
_LOOKS_COMPARED = 5
_SECONDS_PER_CLAIMED_JOB = 0.00003
_FETCH_AT_LEAST = 64
_NEVER = float("-inf")


class Lane(NamedTuple):
    queue: str
    priority: int
    kind: str


class Floor(NamedTuple):
    run_at: datetime
    id: UUID


_BEGINNING = Floor(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


@dataclass(frozen=True, slots=True)
class Probe:
    """One lane of one claim statement: where to start and how much to take at most."""

    lane: Lane
    floor: Floor
    fetch: int
    is_share: bool
    """Less than what is wanted of the lane: it may have more."""


class Columns(NamedTuple):
    """The probes of an ask, as the statement takes them."""

    queues: list[str]
    priorities: list[int]
    kinds: list[str]
    floor_times: list[datetime]
    floor_ids: list[UUID]
    fetches: list[int]


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
    def columns(self) -> Columns:
        return Columns(
            [probe.lane.queue for probe in self.probes],
            [probe.lane.priority for probe in self.probes],
            [probe.lane.kind for probe in self.probes],
            [probe.floor.run_at for probe in self.probes],
            [probe.floor.id for probe in self.probes],
            [probe.fetch for probe in self.probes],
        )


class Lanes:
    """The memory of one process; times are its monotonic seconds."""

    def __init__(self) -> None:
        self._floors: dict[Lane, Floor] = {}
        self._active: list[Lane] = []
        self._look_costs: deque[float] = deque(maxlen=_LOOKS_COMPARED)
        self._looked: dict[str, float] = {}
        """When each kind was last looked for everywhere. One that is at its limit is not asked for meanwhile."""
        self._put_off: set[str] = set()
        self.generation = 0
        """Rises when jobs came back: an ask from before has seen nothing of them."""
        self._last_look: tuple[ClaimRequest, int, Ask] | None = None
        self._last_glance: tuple[ClaimRequest, list[Lane], Ask] | None = None
        self._glances_pay = True

    def first_ask(self, request: ClaimRequest, now: float) -> Ask:
        is_owed = self._is_look_due((kind for kind in request.kinds if self._is_put_off(kind)), now)
        if is_owed or self._look_cost <= _CHEAP_SECONDS or not self._active_for(request):
            return self.all_lanes(request)
        return self._quick(request)

    def glance(self, request: ClaimRequest) -> Ask | None:
        """Where a job that has just come probably is: among the priorities that had jobs lately. None: not known.

        A tenth of the lanes, and for whoever is woken for one job that is most of what a claim costs.
        """
        if not self._glances_pay or not self._active_for(request):
            return None
        if self._look_cost > _CHEAP_SECONDS:
            return replace(self._quick(request), is_glance=True)
        last = self._last_glance
        if last is None or last[0] is not request or last[1] is not self._active:
            probes = _probes(request, self._active_priorities(request), {}, request.limit)
            glance = Ask(probes, request.limit, is_full_look=False, learns_floors=False, is_glance=True)
            last = self._last_glance = request, self._active, glance
        return last[2]

    def next_ask(self, request: ClaimRequest, ask: Ask, claimed: list[Lane], now: float) -> Ask | None:
        """After an ask that found too little; `request` is what is missing."""
        if not claimed and not ask.is_full_look and self._is_look_due(request.kinds, now):
            return self.all_lanes(request)
        counts = Counter(claimed)
        may_have_more = any(probe.is_share and counts[probe.lane] >= probe.fetch for probe in ask.probes)
        if request.limit <= 0 or not may_have_more:
            return None
        return self.all_lanes(request, whole=True) if ask.is_full_look else self._quick(request, whole=True)

    def learn(
        self, ask: Ask, last: dict[Lane, Floor], claimed: int, started: float, ended: float, generation: int
    ) -> None:
        """Take in what an ask found: how many jobs were claimed, and the last one of each lane in claim order."""
        if generation != self.generation:
            return
        kinds = set(ask.columns.kinds)
        if ask.is_full_look:
            self._looked.update(dict.fromkeys(kinds, ended))
            self._put_off -= kinds
            self._look_costs.append(max(0.0, ended - started - claimed * _SECONDS_PER_CLAIMED_JOB))
            if last:
                known = {lane.priority for lane in self._active}
                self._glances_pay = known.issuperset(lane.priority for lane in last)
                self._active = list(last)
        elif ask.is_glance:
            self._glances_pay = claimed > 0
        elif claimed:
            self._put_off |= {kind for kind in kinds if self._is_look_due([kind], ended)}
        if ask.learns_floors:
            self._floors.update(last)

    def forget(self) -> None:
        """Jobs came back to where they stood: the next claim looks at everything."""
        self.generation += 1
        self._floors.clear()
        self._looked.clear()

    def _is_put_off(self, kind: str) -> bool:
        return kind in self._put_off or kind not in self._looked

    def _is_look_due(self, kinds: Iterable[str], now: float) -> bool:
        """Whether it is for any of the kinds."""
        pause = min(_SHARE_OF_TIME * self._look_cost, _LONGEST_HIDDEN_SECONDS)
        return any(now - self._looked.get(kind, _NEVER) >= pause for kind in kinds)

    @property
    def _look_cost(self) -> float:
        # One slow look says little, so the first few count for nothing.
        return min(self._look_costs) if len(self._look_costs) >= _LOOKS_COMPARED else 0.0

    def all_lanes(self, request: ClaimRequest, *, whole: bool = False) -> Ask:
        share = self._share(request, whole=whole)
        learns_floors = self._look_cost > _CHEAP_SECONDS
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

    def _quick(self, request: ClaimRequest, *, whole: bool = False) -> Ask:
        """All lanes of the priorities that had jobs, so that kinds of one priority stay in order among each other."""
        probes = _probes(request, self._active_priorities(request), self._floors, self._share(request, whole=whole))
        return Ask(probes, request.limit, is_full_look=False)

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
