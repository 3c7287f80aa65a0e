"""Holdfast: durable jobs for Python services on PostgreSQL.

The names are loaded when they are first used, so that `holdfast --help` does not wait for a database driver. What is
needed rarely is in modules: `holdfast.errors`, `holdfast.backoff`, `holdfast.events`, `holdfast.schedules`,
`holdfast.logs`, `holdfast.types`, `holdfast.testing`, `holdfast.webhooks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import Holdfast as Holdfast
    from holdfast.domain.dead_job import DeadJob as DeadJob
    from holdfast.domain.enqueued import Enqueued as Enqueued
    from holdfast.domain.enqueued import SyncEnqueued as SyncEnqueued
    from holdfast.domain.errors import Cancel as Cancel
    from holdfast.domain.errors import HoldfastError as HoldfastError
    from holdfast.domain.errors import InvalidInput as InvalidInput
    from holdfast.domain.errors import JobFailed as JobFailed
    from holdfast.domain.errors import Permanent as Permanent
    from holdfast.domain.errors import Retryable as Retryable
    from holdfast.domain.errors import Snooze as Snooze
    from holdfast.domain.errors import StaleLease as StaleLease
    from holdfast.domain.errors import StoreUnavailable as StoreUnavailable
    from holdfast.domain.errors import UnknownJob as UnknownJob
    from holdfast.domain.event import PublishedEvent as PublishedEvent
    from holdfast.domain.handlers import RunningJob as RunningJob
    from holdfast.domain.job import Job as Job
    from holdfast.domain.job import JobState as JobState
    from holdfast.domain.job import NewJob as NewJob
    from holdfast.domain.kinds import Kind as Kind
    from holdfast.domain.statement import Statement as Statement
    from holdfast.hosting.run import run_tick as run_tick
    from holdfast.hosting.run import run_worker as run_worker
    from holdfast.producer.new_events import Published as Published
    from holdfast.store.rows.mapping import Rows as Rows
    from holdfast.store.rows.mapping import RowStates as RowStates
else:
    # Type checkers take what is imported above; a test compares the two.
    _HOME = {
        "Cancel": "holdfast.domain.errors",
        "DeadJob": "holdfast.domain.dead_job",
        "Enqueued": "holdfast.domain.enqueued",
        "Holdfast": "holdfast.app",
        "HoldfastError": "holdfast.domain.errors",
        "InvalidInput": "holdfast.domain.errors",
        "Job": "holdfast.domain.job",
        "JobFailed": "holdfast.domain.errors",
        "JobState": "holdfast.domain.job",
        "Kind": "holdfast.domain.kinds",
        "NewJob": "holdfast.domain.job",
        "Permanent": "holdfast.domain.errors",
        "Published": "holdfast.producer.new_events",
        "PublishedEvent": "holdfast.domain.event",
        "Retryable": "holdfast.domain.errors",
        "RowStates": "holdfast.store.rows.mapping",
        "Rows": "holdfast.store.rows.mapping",
        "RunningJob": "holdfast.domain.handlers",
        "Snooze": "holdfast.domain.errors",
        "StaleLease": "holdfast.domain.errors",
        "Statement": "holdfast.domain.statement",
        "StoreUnavailable": "holdfast.domain.errors",
        "SyncEnqueued": "holdfast.domain.enqueued",
        "UnknownJob": "holdfast.domain.errors",
        "run_tick": "holdfast.hosting.run",
        "run_worker": "holdfast.hosting.run",
    }
    __all__ = sorted(_HOME)

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    def __dir__() -> list[str]:
        """For completion and help(), which do not see a name before it is loaded."""
        return sorted({*globals(), *__all__})
