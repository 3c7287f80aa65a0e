"""The application's own tables among the runners: each mapping has a worker of its own and a runner named after it."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers
from holdfast.domain.signals import Signals
from holdfast.log import get_logger
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.store.opening import OpenStore
from holdfast.store.rows.mapping import Rows
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker

log = get_logger("holdfast.process")


@dataclass(frozen=True, slots=True)
class RowQueue:
    """A mapping and how it is worked on; None: as the process's settings say."""

    rows: Rows
    concurrency: int | None = None
    lease: timedelta | None = None
    poll: timedelta | None = None

    def settings(self, of_process: WorkerSettings) -> WorkerSettings:
        """Where a lost lease is an attempt, no row is claimed ahead: a crash would cost those that never started."""
        return replace(
            of_process,
            queues=(self.rows.queue,),
            concurrency=of_process.concurrency if self.concurrency is None else self.concurrency,
            lease=of_process.lease if self.lease is None else self.lease,
            poll=of_process.poll if self.poll is None else self.poll,
            # Nobody rings for rows.
            idle_backoff_max=None,
            most_ahead=0 if self.rows.losses is None else of_process.most_ahead,
        )


class RowQueues:
    """The mappings of an app, each under its name."""

    def __init__(self) -> None:
        self._by_name: dict[str, RowQueue] = {}

    def add(self, queue: RowQueue) -> None:
        rows = queue.rows
        if rows.name in self._by_name:
            raise InvalidInput(f"rows {rows.name!r} is registered already; give each mapping a name of its own")
        for other in self:
            if other.rows.may_share_table(rows):
                _check_neighbours(rows, other.rows)
        self._by_name[rows.name] = queue

    def __iter__(self) -> Iterator[RowQueue]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


def _check_neighbours(rows: Rows, other: Rows) -> None:
    """Mappings of one table must be able to tell whose lock one is."""
    same = "the same table" if other.place == rows.place else "a table of the same name (two? give both their schema)"
    if other.lock_columns != rows.lock_columns:
        raise InvalidInput(
            f"rows {rows.name!r}: {other.name!r} is on {same} with other lock columns, so both could hold one row; "
            f"give both the same locked_by, locked_until, claim and fence"
        )
    if not rows.is_told_apart_from(other):
        raise InvalidInput(
            f"rows {rows.name!r}: {other.name!r} is on {same} with the same live values, so each would rescue rows of "
            f"the other; give each values of its own in one state column, or make one mapping of both with kind_column"
        )


@dataclass(frozen=True, slots=True)
class RowRunner:
    runner: QueueRunner
    worker: Worker
    check: Callable[[], Awaitable[None]]
    """Raises unless the mapping and its table fit together."""


def row_runners(
    queues: Sequence[RowQueue],
    store: OpenStore,
    handlers: Handlers,
    failures: Failures,
    settings: WorkerSettings,
    pacing: Callable[[WorkerSettings], Pacing],
    replica: str,
    signals: Signals,
) -> list[RowRunner]:
    if store.rows is None:
        if queues:
            log.warning("rows need PostgreSQL and are left out", rows=",".join(each.rows.name for each in queues))
        return []
    made = []
    for queue in queues:
        own = queue.settings(settings)
        rows = store.rows(queue.rows)
        known = _handlers_of(queue.rows, handlers)
        worker = Worker(rows, rows.renewer, known, failures, own, rows.finish_in, signals)
        runs = QueueRuns(store.runs, queue.rows.runner, replica)
        made.append(RowRunner(QueueRunner(worker, pacing(own), runs, queue.rows.runner), worker, rows.check))
    return made


def _handlers_of(rows: Rows, handlers: Handlers) -> Handlers:
    """Those whose kinds the table can have."""
    own = Handlers()
    for handler in handlers:
        if rows.kind in (None, handler.kind):
            own.add(handler)
    if not len(own):
        kind = "any kind" if rows.kind is None else f"the kind {rows.kind!r}"
        raise InvalidInput(
            f"rows {rows.name!r}: the app has no handler of {kind}; register one with @app.handler(kind)"
        )
    return own
