"""Runners for the application's own tables: each mapping has its own worker and a runner named after it."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers
from holdfast.domain.shared_process import SharedProcess
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.store.opening import OpenStore
from holdfast.store.rows.mapping import Rows
from holdfast.worker.hooks import Hooks
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker

log = get_logger("holdfast.process")


@dataclass(frozen=True, slots=True)
class RowQueue:
    """A mapping and its settings; None means the process's setting."""

    rows: Rows
    concurrency: int | None = None
    lease: timedelta | None = None
    poll: timedelta | None = None

    def settings(self, of_process: WorkerSettings) -> WorkerSettings:
        """If a lost lease counts as an attempt, no row is claimed ahead: a crash would cost rows that never started."""
        return replace(
            of_process,
            queues=(self.rows.queue,),
            concurrency=of_process.concurrency if self.concurrency is None else self.concurrency,
            lease=of_process.lease if self.lease is None else self.lease,
            poll=of_process.poll if self.poll is None else self.poll,
            # There are no rings for rows.
            idle_backoff_max=None,
            most_ahead=0 if self.rows.losses is None else of_process.most_ahead,
        )


class RowQueues:
    """The mappings of an app, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, RowQueue] = {}

    def add(self, queue: RowQueue) -> None:
        rows = queue.rows
        if rows.name in self._by_name:
            raise InvalidInput(f"rows {rows.name!r} is already registered; give each mapping its own name")
        for other in self:
            if other.rows.may_share_table(rows):
                _check_neighbors(rows, other.rows)
        self._by_name[rows.name] = queue

    def __iter__(self) -> Iterator[RowQueue]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _check_neighbors(rows: Rows, other: Rows) -> None:
    """Mappings of one table must be able to tell which of them a lock belongs to."""
    same = "the same table" if other.place == rows.place else "a table of the same name (two? give each its schema)"
    if other.lock_columns != rows.lock_columns:
        raise InvalidInput(
            f"rows {rows.name!r}: {other.name!r} is on {same} with other lock columns, so both could hold one row; "
            f"give both the same locked_by, locked_until, claim and fence"
        )
    if not rows.is_told_apart_from(other):
        raise InvalidInput(
            f"rows {rows.name!r}: {other.name!r} is on {same} with the same live values, so each would rescue rows of "
            f"the other; give each its own values in one state column, or combine both in one mapping with kind_column"
        )


@dataclass(frozen=True, slots=True)
class RowRunner:
    runner: QueueRunner
    worker: Worker
    check: Callable[[], Awaitable[None]]
    """Raises if the mapping does not fit its table."""


def row_runners(
    queues: Sequence[RowQueue],
    store: OpenStore,
    handlers: Handlers,
    failures: Failures,
    settings: WorkerSettings,
    pacing: Callable[[WorkerSettings], Pacing],
    replica: str,
    signals: Signals,
    hooks: Hooks,
    process: SharedProcess,
) -> list[RowRunner]:
    if store.rows is None:
        if queues:
            log.warning("rows need PostgreSQL and are skipped", rows=",".join(each.rows.name for each in queues))
        return []
    made = []
    for queue in queues:
        own = queue.settings(settings)
        rows = store.rows(queue.rows)
        known = _handlers_of(queue.rows, handlers)
        worker = Worker(rows, rows.renewer, known, failures, own, rows.finish_in, signals, hooks, process)
        runs = QueueRuns(store.runs, queue.rows.runner, replica)
        made.append(RowRunner(QueueRunner(worker, pacing(own), runs, queue.rows.runner), worker, rows.check))
    return made


def _handlers_of(rows: Rows, handlers: Handlers) -> Handlers:
    """The handlers for kinds that the table can contain."""
    own = Handlers()
    for handler in handlers:
        if rows.kind in (None, handler.kind):
            own.add(handler)
    if not len(own):
        kind = "any kind" if rows.kind is None else f"the kind {rows.kind!r}"
        raise InvalidInput(
            f"rows {rows.name!r}: the app has no handler for {kind}; register one with @app.handler(kind)"
        )
    return own
