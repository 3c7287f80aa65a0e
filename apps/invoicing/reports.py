"""Describes a tick in this service's terms: its runners' names, and outcomes such as sent, failed or retried."""

from dataclasses import dataclass

from apps.invoicing.settings import LOCKS, OUTBOX
from holdfast.types import TickReport

_CREATED = "created"
QUEUE = "queue"
"""Holdfast's name for the outbox."""

_OUTCOMES = {
    "succeed": "sent",
    "fail": "failed",
    "exhaust": "failed",
    "retry": "retried",
    "snooze": "postponed",
    "cancel": "canceled",
}
OUTCOMES = tuple(dict.fromkeys(_OUTCOMES.values()))
"""How an attempt can end. A job that a worker released or lost to another one has not ended or been processed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One runner's turn. An item is a job of the outbox, or something that the API made for a scheduler."""

    runner: str
    processed: int
    failed: int
    seconds: float
    counts: dict[str, int]
    skipped: str | None
    error: str | None

    @property
    def notes(self) -> str:
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items())
        return "; ".join(filter(None, (self.error, self.skipped, counts)))


def turns(report: TickReport) -> list[Turn]:
    told = []
    for part in report.runners:
        counts: dict[str, int] = {}
        for name, number in part.counts.items():
            if isinstance(number, int) and _is_of_this_service(part.runner, name):
                shown = _OUTCOMES.get(name, name) if part.runner == QUEUE else name
                counts[shown] = counts.get(shown, 0) + number
        told.append(
            Turn(
                runner=OUTBOX if part.runner == QUEUE else part.runner,
                processed=counts.get(_CREATED, 0) if part.runner in LOCKS else part.processed,
                failed=part.failed,
                seconds=part.seconds,
                counts=counts,
                skipped=part.skipped,
                error=None if part.error is None else _once(part.error),
            )
        )
    return told


def _is_of_this_service(runner: str, count: str) -> bool:
    """Hide counts of missed occurrences, which Holdfast also reports for schedulers. A scheduler makes everything due
    whenever it runs, so occurrences missed between ticks mean nothing, but would look like lost bills."""
    return runner not in LOCKS or count == _CREATED


def _once(error: str) -> str:
    """Shorten `NOT_CONFIGURED: NotConfigured: …`, in which the code repeats the class that it was made from."""
    code, _, rest = error.partition(": ")
    kind, _, message = rest.partition(": ")
    return f"{code}: {message}" if kind.lower() == code.replace("_", "").lower() else error
