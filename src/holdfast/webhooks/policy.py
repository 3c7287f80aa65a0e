"""Which addresses webhooks may go to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """By default, HTTPS to public addresses. Relax it only for development and tests."""

    allow_http: bool = False
    allow_private: bool = False
    """Also allow loopback and the private ranges of IPv4 and IPv6. Link-local addresses, where clouds serve the
    credentials of a machine, stay refused."""


PUBLIC_HTTPS = Policy()
