"""Holdfast: durable jobs for Python services on PostgreSQL.

The names are loaded when they are first used, so that `holdfast --help` does not wait for a database driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.errors import (
        Cancel,
        DuplicateJob,
        HoldfastError,
        InvalidInput,
        KeyLocked,
        Permanent,
        Retryable,
        SchemaMismatch,
        Snooze,
        StaleLease,
        StoreUnavailable,
        UnknownJob,
    )
    from holdfast.event import PublishedEvent
    from holdfast.handlers import RunningJob
    from holdfast.hosting.run import run_tick, run_worker
    from holdfast.job import IfExists, Job, JobState, NewJob
    from holdfast.log import JobLogFilter
    from holdfast.producer.publish import Published
    from holdfast.retry import (
        decorrelated_jitter,
        doubling_minutes,
        exponential,
        full_jitter,
        power_of_two,
        steps,
    )
    from holdfast.runtime.process import Process
    from holdfast.runtime.runner import RunnerReport
    from holdfast.runtime.tick import TickReport
    from holdfast.schedules import InlineSlot, Schedules
    from holdfast.statement import Statement
    from holdfast.store.contract import Backlog, Enqueued, JobFilter
    from holdfast.store.events import EventJob, Subscription
    from holdfast.store.rows.mapping import Rows, RowStates
    from holdfast.store.schedules import Run, Schedule
    from holdfast.subscriptions import Subscriptions
    from holdfast.worker.settings import WorkerSettings

_HOME = {
    "Backlog": "holdfast.store.contract",
    "Cancel": "holdfast.errors",
    "DuplicateJob": "holdfast.errors",
    "Enqueued": "holdfast.store.contract",
    "EventJob": "holdfast.store.events",
    "Holdfast": "holdfast.app",
    "HoldfastError": "holdfast.errors",
    "IfExists": "holdfast.job",
    "InlineSlot": "holdfast.schedules",
    "InvalidInput": "holdfast.errors",
    "Job": "holdfast.job",
    "JobFilter": "holdfast.store.contract",
    "JobLogFilter": "holdfast.log",
    "JobState": "holdfast.job",
    "KeyLocked": "holdfast.errors",
    "NewJob": "holdfast.job",
    "Permanent": "holdfast.errors",
    "Process": "holdfast.runtime.process",
    "Published": "holdfast.producer.publish",
    "PublishedEvent": "holdfast.event",
    "Retryable": "holdfast.errors",
    "RowStates": "holdfast.store.rows.mapping",
    "Rows": "holdfast.store.rows.mapping",
    "Run": "holdfast.store.schedules",
    "RunnerReport": "holdfast.runtime.runner",
    "RunningJob": "holdfast.handlers",
    "Schedule": "holdfast.store.schedules",
    "Schedules": "holdfast.schedules",
    "SchemaMismatch": "holdfast.errors",
    "Snooze": "holdfast.errors",
    "StaleLease": "holdfast.errors",
    "Statement": "holdfast.statement",
    "StoreUnavailable": "holdfast.errors",
    "Subscription": "holdfast.store.events",
    "Subscriptions": "holdfast.subscriptions",
    "TickReport": "holdfast.runtime.tick",
    "UnknownJob": "holdfast.errors",
    "WorkerSettings": "holdfast.worker.settings",
    "decorrelated_jitter": "holdfast.retry",
    "doubling_minutes": "holdfast.retry",
    "exponential": "holdfast.retry",
    "full_jitter": "holdfast.retry",
    "power_of_two": "holdfast.retry",
    "run_tick": "holdfast.hosting.run",
    "run_worker": "holdfast.hosting.run",
    "steps": "holdfast.retry",
}

__all__ = [
    "Backlog",
    "Cancel",
    "DuplicateJob",
    "Enqueued",
    "EventJob",
    "Holdfast",
    "HoldfastError",
    "IfExists",
    "InlineSlot",
    "InvalidInput",
    "Job",
    "JobFilter",
    "JobLogFilter",
    "JobState",
    "KeyLocked",
    "NewJob",
    "Permanent",
    "Process",
    "Published",
    "PublishedEvent",
    "Retryable",
    "RowStates",
    "Rows",
    "Run",
    "RunnerReport",
    "RunningJob",
    "Schedule",
    "Schedules",
    "SchemaMismatch",
    "Snooze",
    "StaleLease",
    "Statement",
    "StoreUnavailable",
    "Subscription",
    "Subscriptions",
    "TickReport",
    "UnknownJob",
    "WorkerSettings",
    "decorrelated_jitter",
    "doubling_minutes",
    "exponential",
    "full_jitter",
    "power_of_two",
    "run_tick",
    "run_worker",
    "steps",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """For completion and help(), which do not see a name before it is loaded."""
    return sorted({*globals(), *__all__})
