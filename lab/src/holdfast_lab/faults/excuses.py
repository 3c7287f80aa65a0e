"""What the noted faults explain: that an attempt was followed by another one, or that its handler was stopped.

Neighbours: judge.py asks, and calls everything else a violation.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast_lab.faults.record import EVERYBODY, Note, What

_LATE_NOTE_SECONDS = 0.5
"""A signal is noted after it was sent, and its effect may be noted before."""
_EARLIEST_STOP = 0.4
"""Of a lease. A handler is stopped at five sixths of it, and the last renewal was at most two fifths before the cut."""
_SHORTEST_LOSS = 0.6
"""Of a lease. The last renewal was at most a third of it before the cut, so a shorter one costs no lease."""
_WRITTEN_SECONDS = 3.0
"""How long after its handler has ended well a job may not be written as done, if nothing is in the way."""
_ORDER_SECONDS = 0.2
"""Of two commits, the one with the earlier time may come later in the log, by this much at most."""


class Excuses:
    def __init__(self, notes: Iterable[Note], lease: float) -> None:
        self.lease = lease
        self._kills: dict[int, list[float]] = defaultdict(list)
        self._terminated: dict[int, float] = {}
        self._cut_off: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._forgotten: list[tuple[float, float]] = []
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
                case What.FORGOTTEN:
                    self._forgotten.append((float(note.more["since"]), note.at))
                case What.TERMINATE:
                    self._terminated.setdefault(note.pid, note.at)
                case _:
                    continue
            self.faults.append(note)
        for pid, since in begun.items():
            self._cut_off[pid].append((since, float("inf")))

    def lost_lease(self, start: Note, until: float, done: float | None = None) -> bool:
        """Whether this attempt may have lost its lease by then, however it ended. `done`: when it has ended well, from
        which on its worker has only to say so."""
        last_kill = until if done is None else min(until, done + _WRITTEN_SECONDS)
        if any(start.at <= at <= last_kill for at in self._kills[start.pid]):
            return True
        least = self.lease * _SHORTEST_LOSS
        return until - start.at >= self.lease * 0.95 and any(
            since <= until and end >= start.at and end - since >= least for since, end in self._cuts(start.pid)
        )

    def stopped(self, start: Note, end: float) -> bool:
        """Whether there was a reason to stop the handler then: a shutdown, or a lease that was lost or about to be."""
        told = self._terminated.get(start.pid)
        if told is not None and told <= end + _LATE_NOTE_SECONDS:
            return True
        return any(
            min(end, back + _LATE_NOTE_SECONDS) - since >= self.lease * _EARLIEST_STOP
            and back >= max(start.at, end - self.lease)
            for since, back in self._cuts(start.pid)
        )

    def paused(self, start: Note, until: float) -> bool:
        """Whether the process itself stood still meanwhile, and could stop nothing."""
        return any(since <= until and back >= start.at for since, back in self._cut_off[start.pid])

    def forgot(self, at: float, within: float = 0.0) -> bool:
        """Whether the store may have lost what was committed then, or up to so many seconds later."""
        return any(since - _ORDER_SECONDS <= at + within and at <= until for since, until in self._forgotten)

    def forgot_claim_of(self, start: Note) -> bool:
        """A job that was claimed ahead may start when that is forgotten, until its worker wants to renew it."""
        return any(since - _ORDER_SECONDS <= start.at <= until + self.lease for since, until in self._forgotten)

    def forgot_end(self, end: Note | None) -> bool:
        """Of an attempt, noted before it was written or after."""
        return end is not None and self.forgot(end.at, _WRITTEN_SECONDS)

    def between(self, since: float, until: float) -> Iterator[Note]:
        return (note for note in self.faults if since - self.lease <= note.at <= until + self.lease)

    def _cuts(self, pid: int) -> Iterator[tuple[float, float]]:
        for each in (pid, EVERYBODY):
            yield from self._cut_off[each]
