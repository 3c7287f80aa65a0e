"""All variables of the application. README.md lists them with their effects."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class Misconfigured(Exception):
    """A variable is wrong; the message is one line that names it."""


def _is_database(value: str) -> str:
    """The error never quotes the value, which may contain a password."""
    if not value.startswith(("postgresql://", "postgres://", "embedded:")):
        raise ValueError("write postgresql://user@host:port/database, or embedded: for the bundled PostgreSQL")
    return value


def _is_broker(value: str) -> str:
    if urlsplit(value).scheme not in ("amqp", "amqps"):
        raise ValueError("write amqp://user:password@host:port/virtual-host")
    return value


def key_from_text(text: str) -> bytes:
    """Decode a key of Ed25519: 32 bytes in Base64."""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError("is not a key: write 32 bytes in Base64")
    return key


def _is_key_id(value: str) -> str:
    if not _KEY_ID.fullmatch(value):
        raise ValueError("write at most 64 letters, digits, dots, underscores or hyphens")
    return value


def _key(value: object) -> object:
    return key_from_text(value) if isinstance(value, str) else value


def _keys(value: object) -> object:
    """Parse `id:key,id:key`."""
    if not isinstance(value, str):
        return value
    pairs = [each.strip().partition(":") for each in value.split(",") if each.strip()]
    if len({key_id for key_id, *_ in pairs}) < len(pairs):
        raise ValueError("has two keys with the same ID")
    return {_is_key_id(key_id): key_from_text(key) for key_id, _, key in pairs}


Milliseconds = Annotated[int, Field(ge=10, le=3_600_000)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]
Attempts = Annotated[int, Field(ge=1, le=1_000)]
AtOnce = Annotated[int, Field(ge=1, le=1_000)]
Bytes = Annotated[int, Field(ge=1, le=256 * 1024 * 1024)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Name = Annotated[str, Field(min_length=1, max_length=255)]


class Settings(BaseSettings):
    """The field `bpc_queue_enabled` is the variable `BPC_QUEUE_ENABLED`, and so on. Empty variables count as unset."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    bpc_database_url: Annotated[str, AfterValidator(_is_database)] = Field("embedded:", repr=False)
    """postgresql://…, or `embedded:[folder]` for a PostgreSQL without any installation."""

    # Jobs.
    bpc_jobs_poll_interval_ms: Milliseconds = 1_000
    """How often a worker polls, also while it is idle."""
    bpc_jobs_lease_seconds: Seconds = 60
    bpc_jobs_lease_renew_seconds: Seconds = 30
    """At most half of the lease."""
    bpc_jobs_max_attempts: Attempts = 5
    """All attempts of a job, including the first."""
    bpc_jobs_concurrency: AtOnce = 10
    """Handlers that one worker runs at once."""

    # Wake-ups through RabbitMQ.
    bpc_queue_enabled: bool = False
    """Whether RabbitMQ wakes workers. Polling continues either way."""
    bpc_queue_url: Annotated[str, AfterValidator(_is_broker)] = Field("amqp://guest:guest@127.0.0.1:5672/", repr=False)
    bpc_queue_exchange: Name = "bpc"
    bpc_queue_routing_key: Name = "jobs.trigger"
    bpc_health_require_queue: bool = False
    """Whether a process that cannot reach RabbitMQ counts as not ready. Needs BPC_QUEUE_ENABLED."""

    # Passports.
    bpc_payload_max_bytes: Bytes = 1024 * 1024
    """The largest document and the largest canonical payload of a passport."""
    bpc_signing_key: Annotated[bytes, BeforeValidator(_key)] | None = Field(None, repr=False)
    """The private key of Ed25519, 32 bytes in Base64. Unset: SIGN_PASSPORT fails with SIGNING_KEY_MISSING."""
    bpc_signing_key_id: Annotated[str, AfterValidator(_is_key_id)] = "dev-key-1"
    bpc_trusted_keys: Annotated[Mapping[str, bytes], NoDecode, BeforeValidator(_keys)] = Field(default_factory=dict)
    """Public keys that the verifier accepts besides the signing key, for passports signed before: `id:key,id:key`."""

    # Webhooks.
    bpc_development: bool = False
    """Allow webhooks over HTTP and to internal addresses. Only for development and tests."""

    # The API.
    bpc_api_host: str = "127.0.0.1"
    bpc_api_port: Port = 8000

    @classmethod
    def load(cls, **given: object) -> Self:
        """Load from the environment, overridden by `given`. Raise Misconfigured, which names the wrong variable."""
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            name = str(problem["loc"][0]).upper() if problem["loc"] else ""
            text = problem["msg"].removeprefix("Value error, ")
            raise Misconfigured(f"{name}: {text}" if name else text) from None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        most = self.bpc_jobs_lease_seconds // 2
        if self.bpc_jobs_lease_renew_seconds > most:
            raise ValueError(
                f"BPC_JOBS_LEASE_RENEW_SECONDS ({self.bpc_jobs_lease_renew_seconds}) is more than half of "
                f"BPC_JOBS_LEASE_SECONDS ({self.bpc_jobs_lease_seconds}); set it to {most} or less"
            )
        if self.bpc_health_require_queue and not self.bpc_queue_enabled:
            raise ValueError("BPC_HEALTH_REQUIRE_QUEUE needs BPC_QUEUE_ENABLED=true")
        return self
