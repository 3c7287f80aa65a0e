"""A finding of an examination: a level, a line, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Nothing is broken yet, or it may be intended."""
    PROBLEM = "problem"
    """Jobs are late, at risk or wrong."""
    UNKNOWN = "unknown"
    """The check could not run."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    line: str
    next_step: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return {"check": self.check, "level": self.level, "line": self.line, "next_step": self.next_step}


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds beyond which a check reports something."""

    allows_unsafe: bool = False
    """Whether losing committed jobs in a crash of the server is acceptable by choice."""
    slow_answer: timedelta = timedelta(milliseconds=100)
    clock_difference: timedelta = timedelta(seconds=1)
    connections_share: float = 0.85
    rescue: timedelta = timedelta(seconds=15)
    """Workers rescue at least every ten seconds."""
    due: timedelta = timedelta(minutes=1)
    pin: timedelta = timedelta(minutes=5)
    long_pin: timedelta = timedelta(hours=1)
    pin_transactions: int = 500_000
    partition_days: int = 3
    retention: timedelta = timedelta(days=7)
    default_rows: int = 1000
    """Retention moves jobs that must stay to the default partitions, so a few are normal."""
    late: timedelta = timedelta(minutes=1)
    run: timedelta = timedelta(hours=1)
    sleeper: timedelta = timedelta(minutes=2)
    """Sleepers renew every five seconds, and others forget them a minute after their rows expire."""
    dead_rows: int = 100_000
    dead_rows_per_live: int = 5
    notify_share: float = 0.1
    counted: int = 10_000
    """Counts stop at this number."""
    shown: int = 3
    sample: int = 1000


def counted(number: int, limits: Limits) -> str:
    return f"{number:,}" if number < limits.counted else f"{limits.counted:,} or more"


def plural(number: int, word: str) -> str:
    several = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{number:,} {word if number == 1 else several}"


def some(names: Sequence[str], limits: Limits) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - limits.shown} more" if len(names) > limits.shown else ""
    return f"{', '.join(names[: limits.shown])}{more}"
