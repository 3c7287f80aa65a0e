"""What faults excuse: a second attempt, or a handler that was stopped.

Neighbors: judge.py asks here, and reports everything that is not excused as a violation.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast_lab.faults.record import EVERYBODY, Note, What

_LATE_NOTE_SECONDS = 0.5
"""A signal is noted after it was sent, so its effect may be noted first."""
_EARLIEST_STOP = 0.4
"""Share of a lease. A handler is stopped at five sixths, and the last renewal was at most two fifths before the cut."""
_SHORTEST_LOSS = 0.6
"""Share of a lease. The last renewal was at most a third before the cut, so a shorter cut costs no lease."""
_WRITTEN_SECONDS = 3.0
"""How long it may take to write a success after its handler ended, if nothing is in the way."""
_ORDER_SECONDS = 0.2
"""A commit with an earlier time may come later in the log, by at most this much."""


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
        """Whether this attempt may have lost its lease by `until`, however it ended.

        `done`: when its handler ended well. From then on, its worker only had to report the success.
        """
        last_kill = until if done is None else min(until, done + _WRITTEN_SECONDS)
        if any(start.at <= at <= last_kill for at in self._kills[start.pid]):
            return True
        least = self.lease * _SHORTEST_LOSS
        return until - start.at >= self.lease * 0.95 and any(
            since <= until and end >= start.at and end - since >= least for since, end in self._cuts(start.pid)
        )

    def stopped(self, start: Note, end: float) -> bool:
        """Whether the handler had a reason to stop at `end`: a shutdown, or a lease that was lost or about to be."""
        told = self._terminated.get(start.pid)
        if told is not None and told <= end + _LATE_NOTE_SECONDS:
            return True
        return any(
            min(end, back + _LATE_NOTE_SECONDS) - since >= self.lease * _EARLIEST_STOP
            and back >= max(start.at, end - self.lease)
            for since, back in self._cuts(start.pid)
        )

    def paused(self, start: Note, until: float) -> bool:
        """Whether its process was paused in that time and so could stop nothing."""
        return any(since <= until and back >= start.at for since, back in self._cut_off[start.pid])

    def forgot(self, at: float, within: float = 0.0) -> bool:
        """Whether the store may have lost what was committed at that time, or up to `within` seconds later."""
        return any(since - _ORDER_SECONDS <= at + within and at <= until for since, until in self._forgotten)

    def forgot_claim_of(self, start: Note) -> bool:
        """Whether a failover may have forgotten its claim. Its worker may still start it, until it tries to renew."""
        return any(since - _ORDER_SECONDS <= start.at <= until + self.lease for since, until in self._forgotten)

    def forgot_end(self, end: Note | None) -> bool:
        """Whether a failover may have forgotten this end, which is noted shortly before or after it is written."""
        return end is not None and self.forgot(end.at, _WRITTEN_SECONDS)

    def between(self, since: float, until: float) -> Iterator[Note]:
        return (note for note in self.faults if since - self.lease <= note.at <= until + self.lease)

    def _cuts(self, pid: int) -> Iterator[tuple[float, float]]:
        for each in (pid, EVERYBODY):
            yield from self._cut_off[each]
