"""What a tick did, in the words of this service: its runners' names, and SENT, FAILED or tried again."""

from dataclasses import dataclass

from apps.invoicing.settings import LOCKS, OUTBOX
from holdfast import TickReport

_CREATED = "created"
QUEUE = "queue"
"""What Holdfast calls the outbox."""

_OUTCOMES = {
    "succeed": "sent",
    "fail": "failed",
    "exhaust": "failed",
    "retry": "retried",
    "snooze": "postponed",
    "cancel": "canceled",
}
OUTCOMES = tuple(dict.fromkeys(_OUTCOMES.values()))
"""How an attempt can end. What a worker gave back or lost to another one has not ended, and is not processed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One runner's turn. An item is a job of the outbox, or what a scheduler had the API make."""

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
    """A scheduler makes all that is due whenever it runs. Holdfast also counts the occurrences of its timetable that
    have passed, between two ticks for example: they say nothing here, and read as if bills had been lost."""
    return runner not in LOCKS or count == _CREATED


def _once(error: str) -> str:
    """`NOT_CONFIGURED: NotConfigured: …` says the same thing twice: the code, and the class that it was made of."""
    code, _, rest = error.partition(": ")
    kind, _, message = rest.partition(": ")
    return f"{code}: {message}" if kind.lower() == code.replace("_", "").lower() else error
