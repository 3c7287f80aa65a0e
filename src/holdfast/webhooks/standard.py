"""Signatures of Standard Webhooks 1.0 (standardwebhooks.com), which cover the id, the time and the body.

signing.py is the other way to sign.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.domain.duration import Duration, to_aware, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.webhooks.errors import InvalidSignature
from holdfast.webhooks.headers import checked, required
from holdfast.webhooks.secrets import PREFIX, Secrets

_SECONDS = re.compile(r"[0-9]{1,12}")
_TOLERANCE = timedelta(minutes=5)


def sign_standard(body: bytes, secrets: Secrets, *, id: UUID | str, at: datetime | None = None) -> dict[str, str]:
    """Return the headers of a signed webhook. During a rotation, both secrets sign.

    Every attempt uses the same `id`, by which receivers recognize a repetition, and its own time.
    """
    if "." in str(id):
        raise InvalidInput("the id of a webhook must not contain a dot, because dots separate what is signed")
    seconds = str(int((datetime.now(UTC) if at is None else to_aware(at, "at")).timestamp()))
    signatures = (_signature(body, secret, str(id), seconds) for secret in secrets.each())
    return checked({"webhook-id": str(id), "webhook-timestamp": seconds, "webhook-signature": " ".join(signatures)})


def verify_standard(
    body: bytes,
    headers: Mapping[str, str],
    secrets: Secrets,
    *,
    tolerance: Duration = _TOLERANCE,
    now: datetime | None = None,
) -> None:
    """Raise InvalidSignature unless one of the secrets signed exactly these bytes, with this id, a short time ago."""
    id, seconds = required(headers, "webhook-id"), required(headers, "webhook-timestamp")
    if not _SECONDS.fullmatch(seconds):
        raise InvalidSignature("webhook-timestamp is not a time in seconds since 1970")
    signatures = [each.encode() for each in required(headers, "webhook-signature").split(" ")]
    expected = [_signature(body, secret, id, seconds).encode() for secret in secrets.each()]
    # A list, not a generator: the time must not depend on which pair matches.
    if not any([hmac.compare_digest(each, signature) for each in expected for signature in signatures]):  # noqa: C419
        raise InvalidSignature("webhook-signature does not match: another secret, or something was changed")
    limit = to_timedelta(tolerance, "tolerance")
    age = (datetime.now(UTC) if now is None else to_aware(now, "now")).timestamp() - int(seconds)
    if abs(age) > limit.total_seconds():
        when = "ago" if age > 0 else "in the future"
        raise InvalidSignature(f"the webhook was signed more than {to_text(limit)} {when}")


def _signature(body: bytes, secret: str, id: str, seconds: str) -> str:
    signed = b".".join((id.encode(), seconds.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True) if secret.startswith(PREFIX) else b""
    except binascii.Error:
        key = b""
    if not key:
        # Not chained, because the cause could quote the secret.
        raise InvalidInput(f"a secret of Standard Webhooks is {PREFIX} and base64; new_secret() makes one")
    return key
