"""Handlers that were told to stop but returned a result anyway: the result is kept, with a warning and a note."""

from dataclasses import replace

from holdfast.domain.job import JobError
from holdfast.domain.lifecycle import Move, Transition
from holdfast.domain.outcome import Outcome, Retried, Succeeded
from holdfast.logs.records import get_logger
from holdfast.worker.executor import NOT_COMMITTED
from holdfast.worker.held import HeldJob, Interruption

log = get_logger("holdfast.worker")

_UNNOTICED_SECONDS = 0.2
"""How far a handler may exceed its timeout simply because it ended between two checks of the deadline."""
_STOPPED = (Interruption.TIMEOUT, Interruption.SHUTDOWN, Interruption.CANCELED, Interruption.UNRENEWED)
"""LEASE_LOST is not included: whatever such a handler returns is refused."""


def noted(held: HeldJob, outcome: Outcome | None, transition: Transition | None) -> Transition | None:
    """Add a note to the transition if the handler should have stopped. One that blocked the event loop was not even
    told to."""
    has_returned = isinstance(outcome, Succeeded) or (isinstance(outcome, Retried) and outcome.error is NOT_COMMITTED)
    timeout = held.handler.timeout.total_seconds()
    is_late = held.interruption is None and held.took > timeout + _UNNOTICED_SECONDS
    if transition is None or not has_returned or not (is_late or held.interruption in _STOPPED):
        return transition
    why = held.interruption or Interruption.TIMEOUT
    seconds = round(held.took, 1)
    log.warning("handler should have stopped but did not, its result is kept", **held.named, why=why, seconds=seconds)
    if transition.move is not Move.SUCCEED:
        # The handler's own transaction finished the job, if anything did.
        return transition
    said = f"the handler should have stopped ({why}) but returned after {seconds:g} s; its result is kept"
    return replace(transition, error=JobError(code="NOT_STOPPED", type="NotStopped", message=said))
