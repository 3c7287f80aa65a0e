"""A laboratory that only records what a case reports, so that a test can check it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID


@dataclass
class Listening:
    url: str
    size: dict[str, float]
    schema: str = "holdfast"
    random: Random = field(default_factory=lambda: Random(20261115))
    violations: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    progress: Callable[[str], None] = field(default=lambda text: None)

    def violation(self, kind: str, text: str, job: UUID | None = None) -> None:
        self.violations.append(f"{kind}: {text}")

    def note(self, name: str, value: float, unit: str = "") -> None:
        self.figures[name] = value
