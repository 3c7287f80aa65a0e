"""The names that users import in their own tests.

Each name is loaded when it is first used, because pytest imports this package's plugin whenever it starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.rabbitmq.relays import Relayed
    from holdfast.testing.drain import (
        DrainReport,
        EndlessDrain,
        FailedAttempt,
        HandlerFailed,
        HandlerNotStarted,
        StuckDrain,
    )
    from holdfast.testing.idempotency.check import check_idempotency
    from holdfast.testing.idempotency.report import IdempotencyReport, Problem
    from holdfast.testing.idempotency.tables import Tables
    from holdfast.testing.idempotency.trace import Request, Step
    from holdfast.testing.opening import in_memory, on_postgres
    from holdfast.testing.tested_app import AppUnderTest

_HOME = {
    "AppUnderTest": "holdfast.testing.tested_app",
    "DrainReport": "holdfast.testing.drain",
    "EndlessDrain": "holdfast.testing.drain",
    "FailedAttempt": "holdfast.testing.drain",
    "HandlerFailed": "holdfast.testing.drain",
    "IdempotencyReport": "holdfast.testing.idempotency.report",
    "HandlerNotStarted": "holdfast.testing.drain",
    "Problem": "holdfast.testing.idempotency.report",
    "Relayed": "holdfast.rabbitmq.relays",
    "Request": "holdfast.testing.idempotency.trace",
    "Step": "holdfast.testing.idempotency.trace",
    "StuckDrain": "holdfast.testing.drain",
    "Tables": "holdfast.testing.idempotency.tables",
    "check_idempotency": "holdfast.testing.idempotency.check",
    "in_memory": "holdfast.testing.opening",
    "on_postgres": "holdfast.testing.opening",
}

__all__ = [
    "AppUnderTest",
    "DrainReport",
    "EndlessDrain",
    "FailedAttempt",
    "HandlerFailed",
    "HandlerNotStarted",
    "IdempotencyReport",
    "Problem",
    "Relayed",
    "Request",
    "Step",
    "StuckDrain",
    "Tables",
    "check_idempotency",
    "in_memory",
    "on_postgres",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Serves completion and help(), which do not see a name before it is loaded."""
    return sorted({*globals(), *__all__})
