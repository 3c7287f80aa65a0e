"""The findings of the idempotency check, in words."""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.testing.idempotency.trace import Step


@dataclass(frozen=True, slots=True)
class Problem:
    """`step` is the step after which a crash did harm. It is None for a crash after the last step, before the outcome
    is written, and has number 0 for one before the first. `crashed` is False for a problem without any crash."""

    step: Step | None
    differences: tuple[str, ...]
    crashed: bool = True

    @property
    def moment(self) -> str:
        if not self.crashed:
            return "without any crash"
        if self.step is None:
            return "after the handler returned, before its outcome was written"
        if self.step.number == 0:
            return "before the first step (if that is unlikely: does setup= reset everything?)"
        return f"after step {self.step.number}, {self.step}"


@dataclass(frozen=True, slots=True, repr=False)
class IdempotencyReport:
    """`steps` are those of a clean run. `ignored` names what differs between two clean runs and is not compared.

    `unobserved` names tables that the handler wrote to but no observer read, so the check cannot vouch for them.
    `notes` are not problems by themselves, but may be reasons to trust the result less.
    """

    kind: str
    steps: tuple[Step, ...]
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...]
    crashes: int
    notes: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems and not self.unobserved

    def raise_for_problems(self) -> None:
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        """The same text, because that is what pytest shows for `assert report.ok, report`."""
        return str(self)

    @property
    def _headline(self) -> str:
        if self.problems:
            hurting = sum(problem.crashed for problem in self.problems)
            also = "" if hurting == len(self.problems) else ", and something is wrong without any"
            return f"{self.kind} is not idempotent: {hurting} of {self.crashes} crashes leave a trace{also}"
        if self.unobserved:
            return f"{self.kind} may or may not be idempotent: nothing observed {', '.join(self.unobserved)}"
        if not self.steps:
            return f"{self.kind} took no step that the check can see, so there was no place to crash"
        return f"{self.kind} is idempotent: {self.crashes} crashes, each followed by a second run, left no trace"

    def _lines(self) -> Iterator[str]:
        yield self._headline
        for problem in self.problems:
            yield f"a crash {problem.moment}, and a second run:" if problem.crashed else f"{problem.moment}:"
            yield from (f"    {difference}" for difference in problem.differences)
        if self.unobserved:
            named = ", ".join(f'"{name}"' for name in self.unobserved)
            yield f"give observe=Tables(url, {named}) or a function that reads it; or ignore=[{named}]"
        yield from self.notes
        yield "steps of a clean run:"
        yield from (f"    {step.number}. {step}" for step in self.steps)
        if self.ignored:
            yield f"not compared, because two clean runs differ there: {', '.join(self.ignored)}"
