"""Signatures of the body alone: `X-Shop-Signature: sha256=<hex>`, with a prefix that the application chooses.

standard.py is the other way to sign, which also protects the time and the id.
"""

import hashlib
import hmac
from collections.abc import Mapping
from uuid import UUID

from holdfast.webhooks.errors import InvalidSignature
from holdfast.webhooks.headers import checked, received, required
from holdfast.webhooks.secrets import Secrets

_ALGORITHM = "sha256="


def sign(body: bytes, secrets: Secrets, *, prefix: str, event_type: str, delivery_id: UUID | str) -> dict[str, str]:
    """Return the headers of a signed webhook.

    During a rotation, receivers that know only the old secret must keep working. So the old one keeps signing
    `<prefix>-Signature`, and the new one signs `<prefix>-Signature-Next`.
    """
    headers = {
        f"{prefix}-Signature": _signature(body, secrets.current),
        f"{prefix}-Event-Type": event_type,
        f"{prefix}-Delivery-Id": str(delivery_id),
    }
    if secrets.next is not None:
        headers[f"{prefix}-Signature-Next"] = _signature(body, secrets.next)
    return checked(headers)


def verify(body: bytes, headers: Mapping[str, str], secrets: Secrets, *, prefix: str) -> None:
    """Raise InvalidSignature unless one of the secrets signed exactly these bytes."""
    given = [required(headers, f"{prefix}-Signature"), received(headers, f"{prefix}-Signature-Next")]
    signatures = [each.encode() for each in given if each is not None]
    expected = [_signature(body, secret).encode() for secret in secrets.each()]
    # A list, not a generator: the time must not depend on which pair matches.
    if not any([hmac.compare_digest(each, signature) for each in expected for signature in signatures]):  # noqa: C419
        raise InvalidSignature(f"{prefix}-Signature does not match: another secret, or the body was changed")


def _signature(body: bytes, secret: str) -> str:
    return _ALGORITHM + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
