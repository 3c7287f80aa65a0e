"""Builds a process from an app's parts: its runners, in order, and what wakes them."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from holdfast.domain.dead_job import DEATHS
from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers
from holdfast.domain.runner import Runner
from holdfast.domain.shared_process import SharedProcess
from holdfast.domain.signals import Signals
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
from holdfast.scheduling.every_tick import ask_for_runs, at_every_poll
from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.inline_attempt import InlineParts
from holdfast.scheduling.job_schedules import JobSchedules
from holdfast.scheduling.schedules import Declarations
from holdfast.settings import Settings
from holdfast.store.events import NewSubscription
from holdfast.store.opening import OpenStore
from holdfast.wake import Wake
from holdfast.wake.postgres import Listener, listener_url, team_of
from holdfast.worker.hooks import Hooks, tidied
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class AppParts:
    """The parts of an open app."""

    store: OpenStore
    settings: Settings
    handlers: Handlers
    failures: Failures
    declarations: Declarations
    subscriptions: Sequence[NewSubscription] = ()
    rows: Sequence[RowQueue] = ()
    hooks: Hooks = field(default_factory=Hooks)


def build_process(app: AppParts, worker_settings: WorkerSettings, names: Sequence[str]) -> Process:
    """Build a process. `names` selects the runners and their order; if empty, all of them run."""
    store, given, signals, shared = app.store, app.settings, Signals(), SharedProcess()
    settings = _process_settings(given, worker_settings)
    replica = given.replica or f"{socket.gethostname()}-{os.getpid()}"

    def wake(_queue: str | None) -> None:
        """Wake the queue runner. The queue does not matter."""
        signals.wake(QUEUE)

    worker = Worker(
        store.store,
        store.renewer,
        app.handlers,
        app.failures,
        worker_settings,
        lambda: store.finish_in,
        signals,
        app.hooks,
        shared,
    )
    is_served = len(app.handlers) > 0 and (not names or QUEUE in names)
    listener = _listener(app, worker, worker_settings, wake) if is_served else None
    queue = QueueRunner(
        worker,
        settings.pacing,
        QueueRuns(store.runs, QUEUE, replica),
        sleeper=listener,
        before_start=partial(_declare, app),
    )
    pacing = partial(_pacing, given)
    _check_deaths_of_rows(app)
    rows = row_runners(
        *(app.rows, store, app.handlers, app.failures, worker_settings, pacing, replica, signals, app.hooks),
        shared,
    )
    queues = [queue, *(row.runner for row in rows)]
    runners = _chosen(_runners(app, worker_settings, queues, replica, signals, shared), names)
    return Process(
        worker,
        runners,
        settings,
        signals,
        row_workers=[row.worker for row in rows],
        checks=[
            *(row.check for row in rows if row.runner in runners),
            partial(_ask_for_every_tick, app, worker_settings, [runner.name for runner in runners]),
        ],
        listener=listener,
        subscriber=None if given.rabbitmq_url is None else Subscriber(broker(given), wake),
        lifespan=app.hooks.lifespan if any(isinstance(each, QueueRunner | InlineRunner) for each in runners) else None,
    )


async def _ask_for_every_tick(app: AppParts, settings: WorkerSettings, runners: Sequence[str]) -> None:
    chosen = [each for each in app.declarations if each.is_every_tick and each.name in runners]
    if chosen:
        await ask_for_runs(app.store.schedules, at_every_poll(chosen, settings.poll))


def _check_deaths_of_rows(app: AppParts) -> None:
    """Reject `on_dead` for rows: the statement that ends a row is on the application's table and publishes nothing."""
    patterns = {subscription.pattern for subscription in app.subscriptions}
    for queue in app.rows:
        kind = queue.rows.kind
        if kind is not None and f"{DEATHS}{kind}" in patterns:
            raise InvalidInput(
                f"on_dead: {kind!r} is the kind of the rows {queue.rows.name!r}, and dead rows make no jobs"
            )


async def _declare(app: AppParts) -> None:
    await app.store.events.declare(app.subscriptions)
    await app.store.kinds.declare(app.handlers.versions)


def broker(settings: Settings) -> Broker:
    return Broker(settings.rabbitmq_url or "", settings.rabbitmq_exchange, settings.rabbitmq_routing_key)


def _runners(
    app: AppParts,
    worker: WorkerSettings,
    queues: Sequence[QueueRunner],
    replica: str,
    signals: Signals,
    shared: SharedProcess,
) -> list[Runner]:
    """The runners, job schedules first, so that a tick also runs the jobs that it makes."""
    store, declared = app.store, at_every_poll(app.declarations, worker.poll)
    # A long poll interval is meant to keep an idle worker quiet, so it applies to schedules too.
    board = ScheduleBoard(store.schedules, declared, max(LOOK_EVERY, worker.poll))
    rest = partial(_pacing(app.settings, worker).error, random=Random())  # noqa: S311 - spreads runs, guards nothing
    inline = [
        InlineRunner(
            InlineParts(
                name=each.name,
                function=tidied(app.hooks.framework, each.inline.function),
                lock=each.inline.lock_of(app.settings.db_schema, each.name),
                schedules=store.schedules,
                runs=store.runs,
                replica=replica,
                failures=app.failures,
                lifespan=app.hooks.lifespan,
            ),
            board,
            signals,
            rest,
            shared,
        )
        for each in declared
        if each.inline is not None
    ]
    kept = Retention(app.settings.retention, app.settings.dead_letter_retention, app.settings.run_retention)
    served = [queue for queue in queues if queue.name != QUEUE or len(app.handlers)]
    schedules = JobSchedules(board, store.schedules, replica)
    return [schedules, *served, *inline, Maintenance(store.maintenance, kept, signals)]


def _chosen(runners: Sequence[Runner], names: Sequence[str]) -> list[Runner]:
    known = {runner.name: runner for runner in runners}
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(f"runners: {unknown[0]!r} is not known; this app has {', '.join(known)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"runners: {twice[0]!r} is given twice")
    return [known[name] for name in names] if names else list(runners)


def _listener(app: AppParts, worker: Worker, settings: WorkerSettings, wake: Wake) -> Listener | None:
    if not app.settings.listen or not app.store.url.startswith("postgres"):
        return None
    url = listener_url(app.store.url, app.settings.listen_url)
    if url is None:
        return None
    team = team_of((handler.kind for handler in app.handlers), settings.shard)
    return Listener(url, app.settings.db_schema, worker.queues, wake, holder=worker.holder, team=team)


def _process_settings(given: Settings, worker: WorkerSettings) -> ProcessSettings:
    return ProcessSettings(
        limits=TickLimits(given.tick_items, given.runner_max, given.runner_items),
        pacing=_pacing(given, worker),
        tick_max=given.tick_max,
        shutdown=worker.shutdown,
    )


def _pacing(given: Settings, worker: WorkerSettings) -> Pacing:
    return Pacing(
        busy_delay=given.busy_delay,
        # A poll interval below the default backoff is deliberate, so it takes precedence.
        idle_min=min(given.idle_backoff_min, worker.poll),
        idle_max=worker.poll,
        told_max=worker.longest_wait,
        crowd_max=worker.longest_wait_in_a_crowd,
        idle_jitter=given.idle_backoff_jitter,
        error_min=given.error_backoff_min,
        error_max=given.error_backoff_max,
        error_jitter=given.error_backoff_jitter,
    )
