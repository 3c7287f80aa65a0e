"""The interface of what a tick runs: the queue, the job schedules, inline runners and maintenance."""

from dataclasses import dataclass, field
from typing import Protocol

from holdfast.domain.budget import Budget


@dataclass(slots=True)
class RunnerReport:
    """What one runner did in one tick.

    `skipped` says why something was left undone. `error` says what went wrong in the runner itself; a failed job is
    counted in `failed` and is not an error of the queue. `counts` is free-form and specific to the runner.
    """

    runner: str
    processed: int = 0
    failed: int = 0
    skipped: str | None = None
    error: str | None = None
    seconds: float = 0.0
    counts: dict[str, object] = field(default_factory=dict)
    is_outage: bool = False
    """The runner could not do its work and should try again after a pause."""
    is_left_out: bool = False
    """The tick ended before the runner had a turn."""
    is_cut: bool = False
    """The outage is a lost connection; a new one will probably work."""
    failure: BaseException | None = None
    """An unexpected error, for the log."""

    @property
    def is_fine(self) -> bool:
        return self.error is None

    @property
    def is_idle(self) -> bool:
        """Whether the runner did nothing and nothing went wrong."""
        return self.is_fine and not (self.processed or self.failed or self.counts)

    def add(self, later: "RunnerReport") -> None:
        """Merge a later report of the same runner: numbers add up; for everything else the later value wins."""
        self.processed += later.processed
        self.failed += later.failed
        self.skipped = later.skipped or self.skipped
        self.error = later.error or self.error
        for name, value in later.counts.items():
            old = self.counts.get(name)
            self.counts[name] = old + value if isinstance(old, int) and isinstance(value, int) else value


class Runner(Protocol):
    """An error raised by `run` is a store error or a bug: the tick reports it and continues with the next runner."""

    @property
    def name(self) -> str: ...

    def due_in(self) -> float | None:
        """Seconds until the runner has something to do, 0 for now; None if it waits for a wake-up.

        Answered from memory, so that a runner that is not due costs no query.
        """

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        """Make one bounded pass. With `to_end`, wait within the budget for the work that it started. Otherwise that
        work continues alongside later ticks and sets `Signals.changed` when there is something to do or to report."""

    def wake(self) -> None:
        """Become due now, because there may be something to do."""

    def stop(self) -> None:
        """Start nothing more. A pass in progress ends soon."""

    async def close(self, seconds: float) -> RunnerReport | None:
        """After `stop`: wait this long for running work, stop the rest, and report what ended in the meantime."""
