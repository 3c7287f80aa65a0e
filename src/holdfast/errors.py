"""All errors that Holdfast raises, plus the signals a handler raises to end its attempt. Base class: HoldfastError."""

from holdfast.domain.errors import (
    AccessRefused,
    Cancel,
    DuplicateJob,
    HandlerSignal,
    HoldfastError,
    InternalError,
    InvalidInput,
    JobFailed,
    KeyLocked,
    Permanent,
    Retryable,
    SchemaMismatch,
    Snooze,
    StaleLease,
    StoreUnavailable,
    UnknownJob,
)

__all__ = [
    "AccessRefused",
    "Cancel",
    "DuplicateJob",
    "HandlerSignal",
    "HoldfastError",
    "InternalError",
    "InvalidInput",
    "JobFailed",
    "KeyLocked",
    "Permanent",
    "Retryable",
    "SchemaMismatch",
    "Snooze",
    "StaleLease",
    "StoreUnavailable",
    "UnknownJob",
]
