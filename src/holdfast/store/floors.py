"""Where a claim starts reading: the lanes that exist, and how far this process has claimed in each.

No I/O: `store/claims.py` drives it, over PostgreSQL and in the simulation. A floor may hide a job that was committed
late or released; the next look finds it. docs/decisions/0002-lanes-and-floors.md has the reasons.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from holdfast.store.contract import ClaimRequest, Looked

MARGIN = timedelta(milliseconds=250)
"""A floor stays this far behind the claim that sets it, so it cannot hide a transaction shorter than that."""

_LANES_AT_LEAST = 50
_EMPTY_LANES = 100
"""How many lanes without a known job to read. The most recent ones are the likeliest to get the next job."""
_ROWS_AT_LEAST = 512


class Lane(NamedTuple):
    """One range of the claim index. Suspects have separate lanes, because they run alone."""

    queue: str
    is_suspect: bool
    priority: int
    kind: str


class Position(NamedTuple):
    """A place in a lane. Claims start after it."""

    run_at: datetime
    id: UUID


class First(NamedTuple):
    lane: Lane
    position: Position


_BEGINNING = Position(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


@dataclass(frozen=True)
class Starts:
    """The lanes one statement reads, where it starts in each, and how many rows it reads of each; most urgent first."""

    lanes: list[Lane]
    floors: list[Position]
    share: int
    generation: int

    @cached_property
    def columns(self) -> tuple[list[str], list[int], list[str], list[datetime], list[UUID]]:
        return (
            [lane.queue for lane in self.lanes],
            [lane.priority for lane in self.lanes],
            [lane.kind for lane in self.lanes],
            [floor.run_at for floor in self.floors],
            [floor.id for floor in self.floors],
        )


class Floors:
    """What one process remembers about the lanes of one shard."""

    def __init__(self) -> None:
        self._busy: dict[Lane, Position] = {}
        """Floors of lanes that had a due job when last read."""
        self._empty: dict[Lane, Position] = {}
        """All other lanes, the one with the most recent due job last."""
        self._looked_at: set[str] = set()
        self._generation = 0
        """Rises with every look and whenever jobs come back. Claims that started earlier no longer move floors."""
        self._last: tuple[ClaimRequest, Starts] | None = None

    @property
    def generation(self) -> int:
        return self._generation

    def has_looked(self, queues: Iterable[str]) -> bool:
        return self._looked_at.issuperset(queues)

    def forget(self) -> None:
        """Drop all floors, because jobs came back to their old places or to lanes that had none."""
        self._generation += 1
        self._busy.clear()
        self._empty.clear()
        self._looked_at.clear()
        self._last = None

    def starts(self, request: ClaimRequest) -> Starts:
        """Return the same object until something changes, because an idle worker asks the same again and again."""
        if self._last is not None and self._last[0] is request:
            return self._last[1]
        busy = self._wanted(self._busy, request)
        # The n earliest jobs lie in at most n lanes. The other lanes are read once these are empty.
        busy = sorted(busy, key=lambda lane: (lane.priority, self._busy[lane]))[: max(request.limit, _LANES_AT_LEAST)]
        lanes = sorted(busy + self._wanted(self._empty, request)[-_EMPTY_LANES:], key=lambda lane: lane.priority)
        # Reading locks rows. Reading the whole limit from each of many lanes would lock many times what is taken.
        share = max(2 * request.limit, _ROWS_AT_LEAST) // max(1, len(busy))
        floors = [self._busy.get(lane) or self._empty[lane] for lane in lanes]
        starts = Starts(lanes, floors, max(1, min(share, request.limit)), self._generation)
        self._last = request, starts
        return starts

    def _wanted(self, lanes: Iterable[Lane], request: ClaimRequest) -> list[Lane]:
        return [
            lane
            for lane in lanes
            if lane.is_suspect is request.suspects and lane.kind in request.kinds and lane.queue in request.queues
        ]

    def claimed(self, starts: Starts, counts: Mapping[Lane, int], request: ClaimRequest) -> bool:
        """Learn from a claim that got less than it asked for. Return whether lanes may hold more of the remainder."""
        if starts.generation == self._generation:
            for lane in starts.lanes:
                if counts.get(lane, 0) < min(starts.share, request.kinds[lane.kind].limit):
                    self._move_to_empty(lane, is_recent=lane in counts)
                elif lane in self._empty:
                    self._busy[lane] = self._empty.pop(lane)
                    self._last = None
        if not self._busy:
            return False
        taken: Counter[str] = Counter()
        for lane, count in counts.items():
            taken[lane.kind] += count
        return any(taken[lane.kind] < request.kinds[lane.kind].limit for lane in self._wanted(self._busy, request))

    def _move_to_empty(self, lane: Lane, *, is_recent: bool) -> None:
        floor = self._busy.pop(lane, None)
        if floor is not None or is_recent:
            self._empty[lane] = floor or self._empty.pop(lane)
            if floor is not None or len(self._empty) > _EMPTY_LANES:
                # Otherwise every claim reads all of them, and their order does not matter.
                self._last = None

    def left(self, starts: Starts, floors: Mapping[Lane, Position]) -> None:
        """Move floors to where a claim left its lanes."""
        if starts.generation == self._generation:
            for lane, floor in floors.items():
                (self._busy if lane in self._busy else self._empty)[lane] = floor
            self._last = None

    def looked(self, queues: Sequence[str], firsts: Sequence[First], moment: datetime, generation: int) -> None:
        """Move each lane's floor to just before its first job, back or forward, but never closer to now than MARGIN.

        Running claims have not seen what the look found behind their floors, so they no longer move any floor.
        """
        if generation != self._generation:
            return
        self._generation += 1
        self._last = None
        recent = Position(moment - MARGIN, _BEGINNING.id)
        looked_at = frozenset(queues)
        self._looked_at |= looked_at
        before = [lane for lane in (*self._empty, *self._busy) if lane.queue in looked_at]
        for lane in before:
            self._busy.pop(lane, None)
            self._empty.pop(lane, None)
        floors = {lane: min(recent, _just_before(first)) for lane, first in firsts}
        due = {lane for lane, first in firsts if first.run_at <= moment}
        self._busy |= {lane: floor for lane, floor in floors.items() if lane in due}
        # Lanes with only future jobs come first, because claims read the last ones.
        self._empty |= {lane: floor for lane, floor in floors.items() if lane not in due}
        self._empty |= {lane: recent for lane in before[-_EMPTY_LANES:] if lane not in floors}


def looked(firsts: Iterable[First], kinds: Iterable[str], moment: datetime) -> Looked:
    """Return when the first job of these kinds can run, separately for suspects and all other jobs."""
    wanted = frozenset(kinds)
    due: dict[bool, datetime] = {}
    for lane, (run_at, _) in firsts:
        if lane.kind in wanted:
            due[lane.is_suspect] = min(run_at, due.get(lane.is_suspect, run_at))
    in_time = {is_suspect: max(timedelta(0), run_at - moment) for is_suspect, run_at in due.items()}
    return Looked(in_time.get(False), in_time.get(True))


def _just_before(position: Position) -> Position:
    return Position(position.run_at - timedelta.resolution, position.id)
