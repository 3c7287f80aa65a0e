"""Holdfast: durable jobs for Python services on PostgreSQL.

The names are loaded when they are first used, so that `holdfast --help` does not wait for a database driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.domain.errors import (
        AccessRefused,
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
    from holdfast.domain.event import PublishedEvent
    from holdfast.domain.handlers import RunningJob
    from holdfast.domain.job import IfExists, Job, JobState, NewJob
    from holdfast.domain.retry import (
        decorrelated_jitter,
        doubling_minutes,
        exponential,
        full_jitter,
        power_of_two,
        steps,
    )
    from holdfast.domain.runner import RunnerReport
    from holdfast.domain.statement import Statement
    from holdfast.events.subscriptions import Subscriptions
    from holdfast.hosting.run import run_tick, run_worker
    from holdfast.log import JobLogFilter
    from holdfast.producer.publish import Published
    from holdfast.runtime.process import Process
    from holdfast.runtime.tick import TickReport
    from holdfast.scheduling.schedules import Occurrence, Schedules
    from holdfast.store.contract import Backlog, Enqueued, JobFilter
    from holdfast.store.events import EventJob, Subscription
    from holdfast.store.rows.mapping import Rows, RowStates
    from holdfast.store.schedules import Run, Schedule
    from holdfast.worker.settings import WorkerSettings

_HOME = {
    "AccessRefused": "holdfast.domain.errors",
    "Backlog": "holdfast.store.contract",
    "Cancel": "holdfast.domain.errors",
    "DuplicateJob": "holdfast.domain.errors",
    "Enqueued": "holdfast.store.contract",
    "EventJob": "holdfast.store.events",
    "Holdfast": "holdfast.app",
    "HoldfastError": "holdfast.domain.errors",
    "IfExists": "holdfast.domain.job",
    "Occurrence": "holdfast.scheduling.schedules",
    "InvalidInput": "holdfast.domain.errors",
    "Job": "holdfast.domain.job",
    "JobFilter": "holdfast.store.contract",
    "JobLogFilter": "holdfast.log",
    "JobState": "holdfast.domain.job",
    "KeyLocked": "holdfast.domain.errors",
    "NewJob": "holdfast.domain.job",
    "Permanent": "holdfast.domain.errors",
    "Process": "holdfast.runtime.process",
    "Published": "holdfast.producer.publish",
    "PublishedEvent": "holdfast.domain.event",
    "Retryable": "holdfast.domain.errors",
    "RowStates": "holdfast.store.rows.mapping",
    "Rows": "holdfast.store.rows.mapping",
    "Run": "holdfast.store.schedules",
    "RunnerReport": "holdfast.domain.runner",
    "RunningJob": "holdfast.domain.handlers",
    "Schedule": "holdfast.store.schedules",
    "Schedules": "holdfast.scheduling.schedules",
    "SchemaMismatch": "holdfast.domain.errors",
    "Snooze": "holdfast.domain.errors",
    "StaleLease": "holdfast.domain.errors",
    "Statement": "holdfast.domain.statement",
    "StoreUnavailable": "holdfast.domain.errors",
    "Subscription": "holdfast.store.events",
    "Subscriptions": "holdfast.events.subscriptions",
    "TickReport": "holdfast.runtime.tick",
    "UnknownJob": "holdfast.domain.errors",
    "WorkerSettings": "holdfast.worker.settings",
    "decorrelated_jitter": "holdfast.domain.retry",
    "doubling_minutes": "holdfast.domain.retry",
    "exponential": "holdfast.domain.retry",
    "full_jitter": "holdfast.domain.retry",
    "power_of_two": "holdfast.domain.retry",
    "run_tick": "holdfast.hosting.run",
    "run_worker": "holdfast.hosting.run",
    "steps": "holdfast.domain.retry",
}

__all__ = [
    "AccessRefused",
    "Backlog",
    "Cancel",
    "DuplicateJob",
    "Enqueued",
    "EventJob",
    "Holdfast",
    "HoldfastError",
    "IfExists",
    "InvalidInput",
    "Job",
    "JobFilter",
    "JobLogFilter",
    "JobState",
    "KeyLocked",
    "NewJob",
    "Occurrence",
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
