"""What a tick runs: the queue, the job schedules, an inline runner, maintenance."""

from dataclasses import dataclass, field
from typing import Protocol

from holdfast.domain.budget import Budget


@dataclass(slots=True)
class RunnerReport:
    """What one runner did in one tick.

    `skipped` says why it left something undone. `error` says what went wrong in the runner itself; a job that failed
    is counted in `failed` and is no error of the queue's. `counts` is the runner's own, free-form.
    """

    runner: str
    processed: int = 0
    failed: int = 0
    skipped: str | None = None
    error: str | None = None
    seconds: float = 0.0
    counts: dict[str, object] = field(default_factory=dict)
    is_outage: bool = False
    """It could not do its work and wants to try again after a while."""
    is_left_out: bool = False
    """It had no turn, because its tick was over before."""
    is_cut: bool = False
    """The outage is a lost connection, and a new one may well work."""
    failure: BaseException | None = None
    """An error that nobody foresaw, for the log."""

    @property
    def is_fine(self) -> bool:
        return self.error is None

    @property
    def is_idle(self) -> bool:
        """It did nothing, and nothing went wrong."""
        return self.is_fine and not (self.processed or self.failed or self.counts)

    def add(self, later: "RunnerReport") -> None:
        """Take in what it did besides: numbers add up, of anything else the later one counts."""
        self.processed += later.processed
        self.failed += later.failed
        self.skipped = later.skipped or self.skipped
        self.error = later.error or self.error
        for name, value in later.counts.items():
            old = self.counts.get(name)
            self.counts[name] = old + value if isinstance(old, int) and isinstance(value, int) else value


class Runner(Protocol):
    """An error that `run` raises is the store's or a bug: the tick reports it and goes on with the next runner."""

    @property
    def name(self) -> str: ...

    def due_in(self) -> float | None:
        """Seconds until it has something to do, 0 for now; None if only a wake-up can tell.

        Answers from memory: a runner that is not due costs no query.
        """

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        """One bounded pass. `to_end`: wait for what it started, within the budget; otherwise that carries on beside
        the coming ticks, and sets `Signals.changed` when there is something new to do or to report."""

    def wake(self) -> None:
        """There may be something to do: be due now."""

    def stop(self) -> None:
        """Start nothing more; a pass that is under way ends soon."""

    async def close(self, seconds: float) -> RunnerReport | None:
        """After `stop`: wait that long for what still runs, stop the rest; report what ended since."""
