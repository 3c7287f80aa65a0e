"""What the handlers share. Opened once per process, and `job.state` in every handler."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from apps.passports.codes import invalid
from apps.passports.database import opened_pool
from apps.passports.settings import Misconfigured, Settings
from apps.passports.signing import SigningKey
from holdfast import Holdfast, RunningJob
from holdfast.webhooks import Policy

if TYPE_CHECKING:
    from apps.passports.database import Pool

Payload = TypeVar("Payload")


class Tools:
    pool: "Pool"
    """Connections to the store's database, while the tools are open."""
    app: "Holdfast[Tools]"
    """Enqueues the next jobs, in the transactions of the handlers."""

    def __init__(self, settings: Settings) -> None:
        self.most_bytes = settings.bpc_payload_max_bytes
        self.key = signing_key(settings)
        self.policy = webhook_policy(settings)

    @asynccontextmanager
    async def opened(self, app: "Holdfast[Tools]") -> "AsyncIterator[Tools]":
        self.app = app
        async with opened_pool(app.url) as self.pool:
            yield self


def signing_key(settings: Settings) -> SigningKey | None:
    private = settings.bpc_signing_key
    return None if private is None else SigningKey.from_bytes(settings.bpc_signing_key_id, private)


def trusted_keys(settings: Settings) -> dict[str, bytes]:
    """The public keys that the verifier accepts, by ID."""
    key = signing_key(settings)
    own = {} if key is None else {key.id: key.public}
    for id, public in own.items():
        if settings.bpc_trusted_keys.get(id, public) != public:
            raise Misconfigured(f"BPC_TRUSTED_KEYS: {id} is the ID of BPC_SIGNING_KEY, but the key is another one")
    return {**settings.bpc_trusted_keys, **own}


def webhook_policy(settings: Settings) -> Policy:
    return Policy(allow_http=settings.bpc_development, allow_private=settings.bpc_development)


def tenant_of(job: "RunningJob[Payload, Tools]") -> UUID:
    try:
        return UUID(job.tenant)
    except ValueError:
        raise invalid(f"the job has no tenant: {job.tenant!r} is not a UUID") from None
