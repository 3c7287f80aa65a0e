"""Backoff policies. A policy is a pure function from the number of failed attempts to a delay.

`n` counts failed attempts from 1. The caller passes in the random generator, so that every policy can be tested.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Protocol

from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput


class Backoff(Protocol):
    def delay(self, n: int, random: Random) -> timedelta:
        """How long to wait after the n-th failed attempt."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """min(max, base * 2^(n-1)), plus a random part of at most `jitter`."""

    base: timedelta
    max: timedelta
    jitter: timedelta = timedelta(0)

    def delay(self, n: int, random: Random) -> timedelta:
        return _doubled(self.base, n - 1, self.max) + random.random() * self.jitter


@dataclass(frozen=True, slots=True)
class FullJitter:
    """A random delay from zero to min(max, base * 2^n). Spreads simultaneous failures as widely as possible."""

    base: timedelta
    max: timedelta

    def delay(self, n: int, random: Random) -> timedelta:
        return random.random() * _doubled(self.base, n, self.max)


@dataclass(frozen=True, slots=True)
class DecorrelatedJitter:
    """Each delay is random, between `base` and three times the previous one, and at most `max`.

    Earlier delays are not stored. The chain is drawn again, which gives the n-th delay the same distribution.
    """

    base: timedelta
    max: timedelta

    def delay(self, n: int, random: Random) -> timedelta:
        delay = self.base
        for _ in range(min(n, 64)):
            delay = min(self.max, self.base + random.random() * (3 * delay - self.base))
        return delay


@dataclass(frozen=True, slots=True)
class Steps:
    """Fixed delays in turn; the last one repeats."""

    steps: tuple[timedelta, ...]

    def delay(self, n: int, random: Random) -> timedelta:  # noqa: ARG002
        return self.steps[min(n, len(self.steps)) - 1]


def _doubled(base: timedelta, times: int, ceiling: timedelta) -> timedelta:
    # 2^60 of anything is beyond every ceiling, and larger powers overflow a timedelta.
    return ceiling if times > 60 or base.total_seconds() * 2**times > ceiling.total_seconds() else base * 2**times


def _positive(value: Duration, name: str) -> timedelta:
    duration = to_timedelta(value, name)
    if not duration:
        raise InvalidInput(f"{name}: must be more than zero, or every retry would be immediate")
    return duration


def _at_least(base: Duration, ceiling: Duration) -> timedelta:
    lowest, highest = to_timedelta(base, "base"), to_timedelta(ceiling, "max")
    if highest < lowest:
        raise InvalidInput(f"max: {to_text(highest)} is below base, {to_text(lowest)}")
    return highest


def exponential(base: Duration = "1s", max: Duration = "5m", jitter: Duration = "0s") -> Exponential:
    return Exponential(_positive(base, "base"), _at_least(base, max), to_timedelta(jitter, "jitter"))


def power_of_two(cap: Duration = "1024s") -> Exponential:
    """min(cap, 2^n) seconds: 2, 4, 8, 16 …"""
    return exponential("2s", cap)


def doubling_minutes(cap: Duration = "60m") -> Exponential:
    """min(cap, 2^(n-1)) minutes: 1, 2, 4, 8, 16, 32, 60, 60 …"""
    return exponential("1m", cap)


def full_jitter(base: Duration = "500ms", max: Duration = "30s") -> FullJitter:
    return FullJitter(_positive(base, "base"), _at_least(base, max))


def decorrelated_jitter(base: Duration = "500ms", max: Duration = "30s") -> DecorrelatedJitter:
    return DecorrelatedJitter(_positive(base, "base"), _at_least(base, max))


def steps(*delays: Duration) -> Steps:
    if not delays:
        raise InvalidInput('steps: give at least one delay, as in steps("1m", "5m", "15m")')
    return Steps(tuple(to_timedelta(delay, "steps") for delay in delays))


DEFAULT_BACKOFF: Backoff = full_jitter()

_POLICIES: dict[str, Callable[..., Backoff]] = {
    "exponential": exponential,
    "power-of-two": power_of_two,
    "doubling-minutes": doubling_minutes,
    "full-jitter": full_jitter,
    "decorrelated-jitter": decorrelated_jitter,
    "steps": steps,
}


def parse_backoff(text: str) -> Backoff:
    """A policy as text: "full-jitter", "exponential base=5s max=2m jitter=500ms", "steps 1m 5m 15m"."""
    name, *arguments = re.split(r"[\s,]+", text.strip())
    policy = _POLICIES.get(name)
    if policy is None:
        raise InvalidInput(f"backoff: unknown policy {name!r}; known are {', '.join(_POLICIES)}")
    positional = [argument for argument in arguments if "=" not in argument]
    named = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    try:
        if len(positional) + len(named) < len(arguments):
            raise TypeError("duplicate name")
        return policy(*positional, **named)
    except TypeError:
        raise InvalidInput(
            f'backoff: {text!r} does not fit {name}; write it like "exponential base=5s max=2m jitter=500ms" or '
            f'"steps 1m 5m 15m"'
        ) from None


def to_backoff(value: "Backoff | str | None") -> Backoff:
    match value:
        case None:
            return DEFAULT_BACKOFF
        case str():
            return parse_backoff(value)
        case _ if callable(getattr(value, "delay", None)):
            return value
        case _:
            raise InvalidInput(f"backoff: {value!r} is not a policy; use one of {', '.join(_POLICIES)}")
