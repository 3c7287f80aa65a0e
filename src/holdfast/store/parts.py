"""Parts of the store contract that a store may lack, because what it keeps jobs in has no place for them.

Memory and PostgreSQL have all of them. An application's own table has those for which its mapping names a column; the
behaviour suite leaves out what a store lacks, by these names.
"""

from enum import StrEnum


class Part(StrEnum):
    KEYS = "keys"
    """Idempotency keys. A table has its own unique constraints."""
    QUEUES = "queues"
    """More than one queue."""
    ERROR_HISTORY = "error history"
    """Every error and not only the last one."""
    PROGRESS = "progress"
    """What a running handler reports about how far it is."""
    ANY_KIND = "any kind"
    """More than one kind."""
    RUN_ORDER = "order by run_at"
    """Priority first, then run_at, then id. A mapping may state an order of its own."""
    PRIORITIES = "priorities"
    TENANTS = "tenants"
    CORRELATION_IDS = "correlation ids"
    HEADERS = "headers"
    ATTEMPT_LIMITS = "attempt limits"
    """A limit of attempts that one job brings along; those of the handler and the mapping always count."""
    LOSSES = "losses"
    """Lost leases counted apart from failures. Without them a lost lease uses up an attempt."""
    SUSPECTS = "suspects"
    """Jobs that lost leases in company run alone, and only what is lost then counts against them. Without them a job
    that lost too many leases ends dead, whatever they were lost by."""
    CANCEL_REQUESTS = "cancel requests"
    """A running job is asked to cancel. Without them it ends canceled at once, and its worker loses the lease."""
    RESULTS = "results"
    WHOLE_ERRORS = "whole errors"
    """The last error with its type, traceback, attempt and time, and not only code and message."""
    STARTS = "starts"
    """When the last attempt of a final job began."""
    ENDS = "ends"
    """When a final job ended."""
    DEAD = "dead"
    """`dead` told apart from `failed`."""
    CANCELED = "canceled"
    """`canceled` told apart from `failed`."""


EVERY_PART = frozenset(Part)
