"""Parts of the store contract that a store may lack because it has no place to keep them.

Memory and PostgreSQL have all parts. An application's own table has those for which its mapping names a column. The
behavior suite uses these names to skip what a store lacks.
"""

from enum import StrEnum


class Part(StrEnum):
    KEYS = "keys"
    """Idempotency keys. A table has unique constraints instead."""
    DELETION = "deletion"
    """A person can delete final jobs. The rows of a table belong to its application."""
    QUEUES = "queues"
    """More than one queue."""
    ERROR_HISTORY = "error history"
    """Every error, not only the last one."""
    PROGRESS = "progress"
    """Progress reports of a running handler."""
    ANY_KIND = "any kind"
    """More than one kind."""
    RUN_ORDER = "order by run_at"
    """Priority first, then run_at, then id. A mapping may define a different order."""
    PRIORITIES = "priorities"
    TENANTS = "tenants"
    CORRELATION_IDS = "correlation ids"
    HEADERS = "headers"
    ATTEMPT_LIMITS = "attempt limits"
    """An attempt limit per job. The limits of the handler and the mapping always apply."""
    LOSSES = "losses"
    """Lost leases counted separately from failures. Without them, a lost lease uses up an attempt."""
    SUSPECTS = "suspects"
    """A job that twice lost its lease while other jobs ran in the same process runs alone, and from then on only losses
    while alone count against it. Without suspects, a job that lost too many leases ends dead, whatever the cause."""
    CANCEL_REQUESTS = "cancel requests"
    """A running job is asked to cancel. Without requests, it ends canceled at once, and its worker loses the lease."""
    RESULTS = "results"
    WHOLE_ERRORS = "whole errors"
    """The last error with its type, traceback, attempt and time, not only code and message."""
    STARTS = "starts"
    """When the last attempt of a final job started."""
    ENDS = "ends"
    """When a final job ended."""
    DEAD = "dead"
    """`dead` is distinct from `failed`."""
    CANCELED = "canceled"
    """`canceled` is distinct from `failed`."""


EVERY_PART = frozenset(Part)
