"""Error codes of jobs, and the exceptions that carry them.

A permanent error ends its job as FAILED. A retryable one is retried, and ends the job as DEAD_LETTER after the last
attempt. The codes of webhooks come from `holdfast.webhooks`; this module only lists them.
"""

from holdfast import Permanent

DB_UNAVAILABLE = "DB_UNAVAILABLE"
QUEUE_UNAVAILABLE = "QUEUE_UNAVAILABLE"
HTTP_EXCEPTION = "HttpException"
WEBHOOK_TIMEOUT = "WebhookTimeout"
WEBHOOK_NON_2XX = "WebhookNon2xx"

SNAPSHOT_NOT_READY = "SNAPSHOT_NOT_READY"
RULE_PKG_NOT_PUBLISHED = "RULE_PKG_NOT_PUBLISHED"
VALIDATION_ERROR = "VALIDATION_ERROR"
RULE_TYPE_ERROR = "RULE_TYPE_ERROR"
PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
SIGNING_KEY_MISSING = "SIGNING_KEY_MISSING"
QR_ENCODE_FAILED = "QREncodeFailed"
WEBHOOK_GONE = "WebhookGone"


class DatabaseUnavailable(Exception):
    """The application's own connection failed. Retryable, `DB_UNAVAILABLE`."""


class NotFound(Exception):
    """The tenant has no such thing. Another tenant's things are not found either."""


class Conflict(Exception):
    """The request does not fit the state of things. The message is one line."""


def invalid(message: str) -> Permanent:
    """The error for input that no retry can fix."""
    return Permanent(VALIDATION_ERROR, message)
