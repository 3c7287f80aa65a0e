"""What the noted faults explain: that an attempt was followed by another one, or that its handler was stopped.

Neighbours: judge.py asks, and calls everything else a violation.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast.faults.record import EVERYBODY, Note, What

_SHORTEST_LOSS = 0.6
"""Of a lease. The last renewal was at most a third of it before the cut, so a shorter one costs no lease."""


class Excuses:
    def __init__(self, notes: Iterable[Note], lease: float) -> None:
        self.lease = lease
        self._kills: dict[int, list[float]] = defaultdict(list)
        self._cut_off: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.faults: list[Note] = []
        begun: dict[int, float] = {}
        for note in notes:
            match note.what:
                case What.KILL:
                    self._kills[note.pid].append(note.at)
                case What.CUT_OFF:
                    begun.setdefault(note.pid, note.at)
                case What.BACK if note.pid in begun:
                    self._cut_off[note.pid].append((begun.pop(note.pid), note.at))
                case What.TERMINATE:
                    pass
                case _:
                    continue
            self.faults.append(note)
        for pid, since in begun.items():
            self._cut_off[pid].append((since, float("inf")))

    def lost_lease(self, start: Note, until: float) -> bool:
        """Whether this attempt may have lost its lease by then, however it ended."""
        if any(start.at <= at <= until for at in self._kills[start.pid]):
            return True
        least = self.lease * _SHORTEST_LOSS
        return until - start.at >= self.lease * 0.95 and any(
            since <= until and end >= start.at and end - since >= least for since, end in self._cuts(start.pid)
        )

    def between(self, since: float, until: float) -> Iterator[Note]:
        return (note for note in self.faults if since - self.lease <= note.at <= until + self.lease)

    def _cuts(self, pid: int) -> Iterator[tuple[float, float]]:
        for each in (pid, EVERYBODY):
            yield from self._cut_off[each]
