"""Builds a process from an app's parts: its runners in their order, and what wakes them."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers
from holdfast.domain.runner import Runner
from holdfast.maintenance.chores import Retention
from holdfast.maintenance.runner import Maintenance
from holdfast.rabbitmq.subscriber import Broker, Subscriber
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.process import Process, ProcessSettings
from holdfast.runtime.queue_runner import QUEUE, QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.runtime.row_queues import RowQueue, row_runners
from holdfast.runtime.tick import TickLimits
from holdfast.scheduling.board import LOOK_EVERY, ScheduleBoard
from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.inline_attempt import InlineParts
from holdfast.scheduling.job_schedules import JobSchedules
from holdfast.scheduling.schedules import Declarations
from holdfast.settings import Settings
from holdfast.store.events import NewSubscription
from holdfast.store.opening import OpenStore
from holdfast.wake.postgres import Listener, listener_url
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class AppParts:
    """What an app has when it is open."""

    store: OpenStore
    settings: Settings
    handlers: Handlers
    failures: Failures
    declarations: Declarations
    subscriptions: Sequence[NewSubscription] = ()
    rows: Sequence[RowQueue] = ()


def build_process(app: AppParts, worker_settings: WorkerSettings, names: Sequence[str]) -> Process:
    store = app.store
    worker = Worker(store.store, store.renewer, app.handlers, app.failures, worker_settings, lambda: store.finish_in)
    settings = _process_settings(app.settings, worker_settings, tuple(names))
    replica = app.settings.replica or f"{socket.gethostname()}-{os.getpid()}"
    queue = QueueRunner(worker, settings.pacing, QueueRuns(store.runs, QUEUE, replica))
    queue.before_start = partial(store.events.declare, app.subscriptions)
    pacing = partial(_pacing, app.settings)
    rows = row_runners(app.rows, store, app.handlers, app.failures, worker_settings, pacing, replica)
    # Whoever wants an idle worker to ask seldom does not mean the queue alone.
    board = ScheduleBoard(store.schedules, list(app.declarations), max(LOOK_EVERY, worker_settings.poll))
    runners = _runners(app, board, queue, [row.runner for row in rows], replica)
    process = Process(worker, runners, settings, [row.worker for row in rows])
    process.checks = [row.check for row in rows if row.runner.name in process.runner_names]
    _add_listener(app, process, queue, worker)
    if app.settings.rabbitmq_url is not None:
        process.subscriber = Subscriber(broker(app.settings), process.wake)
    return process


def broker(settings: Settings) -> Broker:
    return Broker(settings.rabbitmq_url or "", settings.rabbitmq_exchange, settings.rabbitmq_routing_key)


def _runners(
    app: AppParts, board: ScheduleBoard, queue: QueueRunner, rows: Sequence[Runner], replica: str
) -> list[Runner]:
    """Job schedules first, so that one tick also runs the jobs that it made."""
    store, declared = app.store, list(app.declarations)
    inline = [
        InlineRunner(
            InlineParts(
                name=each.name,
                function=each.inline.function,
                lock=each.inline.lock_of(app.settings.db_schema, each.name),
                schedules=store.schedules,
                runs=store.runs,
                replica=replica,
                failures=app.failures,
            ),
            board,
        )
        for each in declared
        if each.inline is not None
    ]
    kept = Retention(app.settings.retention, app.settings.dead_letter_retention, app.settings.run_retention)
    queues: list[Runner] = [queue] if len(app.handlers) else []
    maintenance = Maintenance(store.maintenance, kept)
    return [JobSchedules(board, store.schedules, replica), *queues, *rows, *inline, maintenance]


def _add_listener(app: AppParts, process: Process, queue: QueueRunner, worker: Worker) -> None:
    if not app.settings.listen or not app.store.url.startswith("postgres") or QUEUE not in process.runner_names:
        return
    url = listener_url(app.store.url, app.settings.listen_url)
    if url is not None:
        listener = Listener(url, app.settings.db_schema, worker.queues, process.wake, holder=worker.holder)
        queue.on_idle, queue.on_saturated = listener.asleep, listener.awake
        process.listener = listener


def _process_settings(given: Settings, worker: WorkerSettings, names: tuple[str, ...]) -> ProcessSettings:
    return ProcessSettings(
        names=names,
        limits=TickLimits(given.tick_items, given.runner_max, given.runner_items),
        pacing=_pacing(given, worker),
        tick_max=given.tick_max,
        shutdown=worker.shutdown,
    )


def _pacing(given: Settings, worker: WorkerSettings) -> Pacing:
    return Pacing(
        busy_delay=given.busy_delay,
        # A poll below the default back-off is no contradiction: it is what somebody asked for.
        idle_min=min(given.idle_backoff_min, worker.poll),
        idle_max=worker.poll,
        told_max=worker.longest_wait,
        idle_jitter=given.idle_backoff_jitter,
        error_min=given.error_backoff_min,
        error_max=given.error_backoff_max,
        error_jitter=given.error_backoff_jitter,
    )
