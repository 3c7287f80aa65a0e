"""Logs a record for each attempt, once the store has accepted its outcome.

An exception's message and traceback may quote the payload, so they are left out unless the log goes to a console or the
program asks for them.
"""

import logging
import math

from holdfast.domain.job import JobError
from holdfast.domain.lifecycle import Move, Transition
from holdfast.logs.formats import ATTEMPTS
from holdfast.logs.records import get_logger
from holdfast.logs.setup import is_console
from holdfast.worker.held import HeldJob
from holdfast.worker.settings import WorkerSettings

log = get_logger(ATTEMPTS)

_OUTCOMES = {
    Move.SUCCEED: ("attempt succeeded", "succeeded", logging.INFO),
    Move.SNOOZE: ("attempt was snoozed", "snoozed", logging.INFO),
    Move.CANCEL: ("attempt was canceled", "canceled", logging.INFO),
    Move.RETRY: ("attempt did not succeed", "retry", logging.WARNING),
    Move.INTERRUPT: ("attempt was interrupted", "interrupted", logging.WARNING),
    Move.EXHAUST: ("job is now a dead letter", "dead", logging.ERROR),
    Move.FAIL: ("job is now a dead letter", "failed", logging.ERROR),
}
_SIGNALS = ("Permanent", "Retryable", "Cancel")
"""What a handler raises on purpose. One line is enough, without a traceback."""


class AttemptLog:
    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.has_all = self._has_failed = self._has_tracebacks = False

    def start(self) -> None:
        """Read the log configuration. By now, the program has set up its logging."""
        attempts = self._settings.log_attempts or ("all" if is_console() else "failed")
        self._has_failed = attempts != "none"
        self.has_all = attempts == "all" and log.is_enabled_for(logging.INFO)
        tracebacks = self._settings.log_tracebacks
        self._has_tracebacks = is_console() if tracebacks is None else tracebacks

    def succeeded(self, held: HeldJob) -> None:
        self._write(held, Move.SUCCEED)

    def finished(self, held: HeldJob) -> None:
        """The handler finished the job in its own transaction."""
        move = held.finish_requested or Move.SUCCEED
        if self.has_all or (self._has_failed and move is Move.FAIL):
            self._write(held, move)

    def ended(self, held: HeldJob, transition: Transition) -> None:
        is_failure = transition.error is not None and transition.move is not Move.SUCCEED
        if transition.move in _OUTCOMES and (self.has_all or (self._has_failed and is_failure)):
            self._write(held, transition.move, transition)

    def _write(self, held: HeldJob, move: Move, transition: Transition | None = None) -> None:
        event, outcome, level = _OUTCOMES[move]
        job = held.job
        values: dict[str, object] = {**held.named, "queue": job.queue, "attempt": job.attempt}
        # Lost leases do not use up any of a job's attempts.
        values["of"] = (job.max_attempts or held.handler.attempts) + job.losses
        if job.losses:
            values["losses"] = job.losses
        values["outcome"] = outcome
        if math.isfinite(held.took):
            values["seconds"] = round(held.took, 4)
        values["correlation_id"] = job.correlation_id
        error, text = None, ""
        if transition is not None:
            error = transition.error
            if transition.at is not None:
                values["again_at"] = transition.at.isoformat(timespec="seconds")
            elif move in (Move.RETRY, Move.SNOOZE):
                values["again_in"] = round(transition.delay.total_seconds(), 3)
        if error is not None:
            values |= {"code": error.code, "error": error.type}
            if error.place:
                values["at"] = error.place
            text = _text(error) if self._has_tracebacks else ""
        log.failure(level, event, text, **values)


def _text(error: JobError) -> str:
    if error.traceback and error.type not in _SIGNALS:
        return error.traceback
    return f"{error.code}: {error.message}" + (f"\n  at {error.place}" if error.place else "")
