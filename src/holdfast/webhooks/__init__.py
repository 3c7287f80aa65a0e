"""Signed webhooks: sign a body, check and guard the receiver's address, and send within a total deadline.

A handler calls these functions; the application keeps its endpoints, secrets and deliveries in its own tables.
Needs httpx, the extra `webhooks`.
"""

from holdfast.webhooks.errors import (
    HttpException,
    InvalidSignature,
    WebhookAddressRefused,
    WebhookError,
    WebhookGone,
    WebhookNon2xx,
    WebhookTimeout,
)
from holdfast.webhooks.policy import Policy
from holdfast.webhooks.resolving import Resolve, resolve
from holdfast.webhooks.response import Response
from holdfast.webhooks.secrets import Secrets, new_secret
from holdfast.webhooks.sending import send
from holdfast.webhooks.signing import sign, verify
from holdfast.webhooks.standard import sign_standard, verify_standard
from holdfast.webhooks.url import check_url

__all__ = [
    "HttpException",
    "InvalidSignature",
    "Policy",
    "Resolve",
    "Response",
    "Secrets",
    "WebhookAddressRefused",
    "WebhookError",
    "WebhookGone",
    "WebhookNon2xx",
    "WebhookTimeout",
    "check_url",
    "new_secret",
    "resolve",
    "send",
    "sign",
    "sign_standard",
    "verify",
    "verify_standard",
]
