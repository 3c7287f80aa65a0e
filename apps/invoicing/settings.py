"""All variables of the service. Times are in milliseconds, as the variables' names say."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

OUTBOX, REMINDERS, BILLING = "outbox", "invoiceReminders", "classesBilling"
RUNNERS = (OUTBOX, REMINDERS, BILLING)
LOCKS = {name: f"worker:scheduler:{name}" for name in (REMINDERS, BILLING)}
"""The names of the advisory locks under which the schedulers run, on one replica at a time."""

_SHORTEST_SECRET = 16


class Misconfigured(Exception):
    """A variable is wrong; the message is one line that names it."""


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in RUNNERS:
            raise ValueError(f"{name!r} is not a runner; the runners are {', '.join(RUNNERS)}")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice")
    return names


def _is_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError("write http://host:port or https://host")
    return value.rstrip("/")


def _is_database(value: str) -> str:
    """The error never quotes the value, which may contain a password."""
    if not value.startswith(("postgresql://", "postgres://", "embedded:")):
        raise ValueError("write postgresql://user@host:port/database, or embedded: for the bundled PostgreSQL")
    return value


def _is_header(value: str) -> str:
    """Refuse a value that cannot be sent in a header, because the HTTP client's error would quote it."""
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise ValueError("has characters other than printable ASCII, or leading or trailing spaces or line breaks")
    return value


def _is_long(value: str) -> str:
    if len(value) < _SHORTEST_SECRET:
        raise ValueError(f"is shorter than {_SHORTEST_SECRET} characters; set it to a long random text")
    return value


RunnerNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names), AfterValidator(_known)]
# Three years, which any clock involved can add to the current time.
_LONGEST_MS = 10**11
Milliseconds = Annotated[int, Field(ge=0, le=_LONGEST_MS)]
SomeMilliseconds = Annotated[int, Field(ge=1, le=_LONGEST_MS)]
Items = Annotated[int, Field(ge=1, le=10**9)]
# The same limits as Holdfast's.
AtOnce = Annotated[int, Field(ge=1, le=10_000)]
Attempts = Annotated[int, Field(ge=1, le=1_000)]
ShardIndex = Annotated[int, Field(ge=0, lt=10_000)]
ShardCount = Annotated[int, Field(ge=1, le=10_000)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Url = Annotated[str, AfterValidator(_is_url)]


class Settings(BaseSettings):
    """The field `outbox_batch_size` is the variable `OUTBOX_BATCH_SIZE`, and so on. Empty variables count as unset."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    # The runners of a tick, and how much each may do.
    worker_tick_runners: RunnerNames = RUNNERS
    worker_tick_overall_max_ms: SomeMilliseconds = 480_000
    worker_tick_runner_max_ms: SomeMilliseconds = 60_000
    worker_tick_runner_max_items: Items = 200
    worker_tick_shard_index: ShardIndex | None = None
    worker_tick_shard_count: ShardCount | None = None

    # The background.
    worker_busy_loop_delay_ms: Milliseconds = 250
    worker_idle_backoff_min_ms: SomeMilliseconds = 1_000
    worker_idle_backoff_max_ms: SomeMilliseconds = 30_000
    worker_idle_backoff_jitter_ms: Milliseconds = 500
    worker_tick_loop_error_backoff_ms: SomeMilliseconds = 30_000
    worker_tick_loop_max_jitter_ms: Milliseconds = 2_000
    worker_shutdown_timeout_ms: Milliseconds = 30_000

    # The outbox.
    outbox_batch_size: Items = 50
    outbox_concurrency: AtOnce = 10
    pdf_render_concurrency: AtOnce = 2
    outbox_lease_duration_ms: SomeMilliseconds = 60_000
    outbox_lease_heartbeat_ms: SomeMilliseconds = 15_000
    outbox_max_attempts: Attempts = 3
    outbox_retry_base_ms: SomeMilliseconds = 5_000
    outbox_retry_max_ms: SomeMilliseconds = 120_000
    outbox_retry_jitter_ms: Milliseconds = 500

    # What the schedulers call.
    worker_api_base_url: Url | None = None
    worker_api_service_token: Annotated[str, AfterValidator(_is_header), AfterValidator(_is_long)] | None = Field(
        None, repr=False
    )

    # Locations and secrets, which only this service has.
    database_url: Annotated[str, AfterValidator(_is_database)] = Field("embedded:", repr=False)
    """postgresql://…, or `embedded:[folder]` for a PostgreSQL server that needs no installation."""
    files_url: str = Field("file:data/invoicing", repr=False)
    """`file:` and a folder, or s3://bucket/prefix with the usual AWS_… variables."""
    smtp_url: str = Field("smtp://127.0.0.1:1025", repr=False)
    """smtp://[user:password@]host:port, or smtps://…"""
    smtp_password_without_tls: bool = False
    """Log in to a server without TLS. Only for a relay on a network that no one can eavesdrop on."""
    mail_from: str = "Corely Billing <billing@corely.example>"
    templates_folder: Path = Path(__file__).parent / "templates"
    download_link_secret: Annotated[str, AfterValidator(_is_long)] | None = Field(None, repr=False)
    download_link_ttl_ms: SomeMilliseconds = 300_000
    api_host: str = "127.0.0.1"
    api_port: Port = 8000
    api_public_url: Url | None = None
    """The base of download links if the API is behind a proxy; unset: the base of the request."""
    worker_metrics_host: str = "127.0.0.1"
    worker_metrics_port: Port | None = None

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
        index, count = self.worker_tick_shard_index, self.worker_tick_shard_count
        if (index is None) != (count is None):
            raise ValueError("WORKER_TICK_SHARD_INDEX and WORKER_TICK_SHARD_COUNT: set both or neither")
        if index is not None and count is not None and index >= count:
            index_told, count_told = self._told("worker_tick_shard_index"), self._told("worker_tick_shard_count")
            raise ValueError(f"{index_told} is not below {count_told}; set it to {count - 1} or less")
        for lower, upper, factor in (
            ("worker_idle_backoff_min_ms", "worker_idle_backoff_max_ms", 1),
            ("worker_tick_runner_max_ms", "worker_tick_overall_max_ms", 1),
            ("outbox_retry_base_ms", "outbox_retry_max_ms", 1),
            ("outbox_lease_heartbeat_ms", "outbox_lease_duration_ms", 2),
        ):
            most = getattr(self, upper) // factor
            if getattr(self, lower) > most:
                bound = self._told(upper) if factor == 1 else f"half of {self._told(upper)}"
                raise ValueError(f"{self._told(lower)} is more than {bound}; set it to {most} or less")
        return self

    def _told(self, field: str) -> str:
        """Show a value, and whether it is the default, because the user may have set only one of two values."""
        default = "" if field in self.model_fields_set else ", the default"
        return f"{field.upper()} ({getattr(self, field)}{default})"


def milliseconds(number: int) -> timedelta:
    return timedelta(milliseconds=number)
