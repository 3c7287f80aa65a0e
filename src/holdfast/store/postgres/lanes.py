"""Where a claim starts to read: lanes and floors.

A lane is one queue, priority and kind: one range of the claim index. While a snapshot elsewhere keeps deleted rows from
being removed, a claim that starts at the beginning of a lane walks over everything claimed since. So this process
remembers per lane how far it has claimed, and starts there.

A floor must never hide a job: one committed late, released, or of a lane not seen before lies behind it, and it may be
the one whose turn it is. So as long as looking is cheap, every claim is a full look at all lanes without floors. When
it is dear, claims look often enough for it to cost about a twentieth of the time.
"""

from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from holdfast.job import PRIORITIES
from holdfast.store.contract import ClaimRequest

_CHEAP_SECONDS = 0.005
_SHARE_OF_TIME = 20
_LONGEST_HIDDEN_SECONDS = 2.0
_LOOKS_COMPARED = 5
_SECONDS_PER_CLAIMED_JOB = 0.00003
_FETCH_AT_LEAST = 64


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


@dataclass(frozen=True, slots=True)
class Ask:
    probes: list[Probe]
    limit: int
    is_full_look: bool


class Lanes:
    """The memory of one process; times are its monotonic seconds."""

    def __init__(self) -> None:
        self._floors: dict[Lane, Floor] = {}
        self._active: list[Lane] = []
        self._look_costs: deque[float] = deque(maxlen=_LOOKS_COMPARED)
        self._looked = float("-inf")

    def first_ask(self, request: ClaimRequest, now: float) -> Ask:
        cost = self._look_cost
        is_due = now - self._looked >= min(_SHARE_OF_TIME * cost, _LONGEST_HIDDEN_SECONDS)
        if is_due or cost <= _CHEAP_SECONDS or not self._active_for(request):
            return self.all_lanes(request)
        return self._quick(request)

    def next_ask(self, request: ClaimRequest, ask: Ask, claimed: list[Lane]) -> Ask | None:
        """After an ask that found too little because a lane was read up to its share; `request` is what is missing."""
        counts = Counter(claimed)
        may_have_more = any(probe.is_share and counts[probe.lane] >= probe.fetch for probe in ask.probes)
        if request.limit <= 0 or not may_have_more:
            return None
        return self.all_lanes(request, whole=True) if ask.is_full_look else self._quick(request, whole=True)

    def learn(self, ask: Ask, claimed: list[tuple[Lane, Floor]], started: float, ended: float) -> None:
        """Take in what an ask found; `claimed` is in claim order."""
        if ask.is_full_look:
            self._looked = ended
            self._look_costs.append(max(0.0, ended - started - len(claimed) * _SECONDS_PER_CLAIMED_JOB))
            self._active = list(dict.fromkeys(lane for lane, _ in claimed)) or self._active
        self._floors.update(claimed)

    def forget(self) -> None:
        """Jobs came back to where they stood: the next claim looks at everything."""
        self._floors.clear()
        self._looked = float("-inf")

    @property
    def _look_cost(self) -> float:
        # One slow look says little, so the first few count for nothing.
        return min(self._look_costs) if len(self._look_costs) >= _LOOKS_COMPARED else 0.0

    def all_lanes(self, request: ClaimRequest, *, whole: bool = False) -> Ask:
        share = self._share(request, whole=whole)
        probes = [
            _probe(Lane(queue, priority, kind), _BEGINNING, share, min(request.limit, claim.limit))
            for priority in PRIORITIES
            for queue in dict.fromkeys(request.queues)
            for kind, claim in request.kinds.items()
        ]
        return Ask(probes, request.limit, is_full_look=True)

    def _quick(self, request: ClaimRequest, *, whole: bool = False) -> Ask:
        """All lanes of the priorities that had jobs, so that kinds of one priority stay in order among each other."""
        share = self._share(request, whole=whole)
        probes = [
            _probe(
                lane := Lane(queue, priority, kind),
                self._floors.get(lane, _BEGINNING),
                share,
                min(request.limit, claim.limit),
            )
            for priority in sorted({lane.priority for lane in self._active_for(request)})
            for queue in dict.fromkeys(request.queues)
            for kind, claim in request.kinds.items()
        ]
        return Ask(probes, request.limit, is_full_look=False)

    def _active_for(self, request: ClaimRequest) -> list[Lane]:
        return [lane for lane in self._active if lane.kind in request.kinds and lane.queue in request.queues]

    def _share(self, request: ClaimRequest, *, whole: bool) -> int:
        """How much to read from one lane. The whole limit from each would lock many times what is taken."""
        lanes = len(self._active_for(request))
        return (
            request.limit
            if whole or lanes < 2
            else min(request.limit, max(_FETCH_AT_LEAST, 2 * request.limit // lanes))
        )


def _probe(lane: Lane, floor: Floor, share: int, wanted: int) -> Probe:
    return Probe(lane, floor, min(share, wanted), is_share=share < wanted)
