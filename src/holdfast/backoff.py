"""Policies for the wait between a failed attempt and the next: `@app.handler(…, backoff=exponential("5s", "2m"))`."""

from holdfast.domain.retry import (
    Backoff,
    decorrelated_jitter,
    doubling_minutes,
    exponential,
    full_jitter,
    power_of_two,
    steps,
)

__all__ = [
    "Backoff",
    "decorrelated_jitter",
    "doubling_minutes",
    "exponential",
    "full_jitter",
    "power_of_two",
    "steps",
]
