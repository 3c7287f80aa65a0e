"""The types of `app.schedules` and `app.runs`, and the `Occurrence` passed to a runner's function."""

from holdfast.scheduling.schedules import Occurrence, Schedules
from holdfast.store.schedules import Run, Schedule

__all__ = ["Occurrence", "Run", "Schedule", "Schedules"]
