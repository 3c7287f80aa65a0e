"""The secrets of one receiver, also while they are being replaced."""

import base64
import secrets
from dataclasses import dataclass

from holdfast.domain.errors import InvalidInput

PREFIX = "whsec_"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """During a rotation, `next` is the new secret. After it, `Secrets(next)` replaces the pair."""

    current: str
    next: str | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(each, str) and each for each in self.each()):
            raise InvalidInput("a webhook secret is a text that is not empty")

    def __repr__(self) -> str:
        return "Secrets(…)" if self.next is None else "Secrets(…, next=…)"

    def each(self) -> tuple[str, ...]:
        return (self.current,) if self.next is None else (self.current, self.next)


def new_secret() -> str:
    """Return a random secret that both ways of signing accept."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
