"""Every variable of the service. Times are in milliseconds, as the variables' names say."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

OUTBOX, REMINDERS, BILLING = "outbox", "invoiceReminders", "classesBilling"
RUNNERS = (OUTBOX, REMINDERS, BILLING)
LOCKS = {name: f"worker:scheduler:{name}" for name in (REMINDERS, BILLING)}
"""The texts of the advisory locks under which the schedulers run, on one replica at a time."""


class Misconfigured(Exception):
    """A variable is wrong; the message is one line that names it."""


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in RUNNERS:
            raise ValueError(f"{name!r} is no runner; there are {', '.join(RUNNERS)}")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is given twice")
    return names


def _is_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("write http://host:port or https://host")
    return value.rstrip("/")


RunnerNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names), AfterValidator(_known)]
Milliseconds = Annotated[int, Field(ge=0)]
SomeMilliseconds = Annotated[int, Field(ge=1)]
Url = Annotated[str, AfterValidator(_is_url)]


class Settings(BaseSettings):
    """The field `outbox_batch_size` is the variable `OUTBOX_BATCH_SIZE`, and so on. Empty counts as unset."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    # Which runners a tick has, and how much each may do.
    worker_tick_runners: RunnerNames = RUNNERS
    worker_tick_overall_max_ms: SomeMilliseconds = 480_000
    worker_tick_runner_max_ms: SomeMilliseconds = 60_000
    worker_tick_runner_max_items: PositiveInt = 200
    worker_tick_shard_index: Annotated[int, Field(ge=0)] | None = None
    worker_tick_shard_count: PositiveInt | None = None

    # The background.
    worker_busy_loop_delay_ms: Milliseconds = 250
    worker_idle_backoff_min_ms: SomeMilliseconds = 1_000
    worker_idle_backoff_max_ms: SomeMilliseconds = 30_000
    worker_idle_backoff_jitter_ms: Milliseconds = 500
    worker_tick_loop_error_backoff_ms: SomeMilliseconds = 30_000
    worker_tick_loop_max_jitter_ms: Milliseconds = 2_000
    worker_shutdown_timeout_ms: Milliseconds = 30_000

    # The outbox.
    outbox_batch_size: PositiveInt = 50
    outbox_concurrency: PositiveInt = 10
    pdf_render_concurrency: PositiveInt = 2
    outbox_lease_duration_ms: SomeMilliseconds = 60_000
    outbox_lease_heartbeat_ms: SomeMilliseconds = 15_000
    outbox_max_attempts: PositiveInt = 3
    outbox_retry_base_ms: SomeMilliseconds = 5_000
    outbox_retry_max_ms: SomeMilliseconds = 120_000
    outbox_retry_jitter_ms: Milliseconds = 500

    # What the schedulers call.
    worker_api_base_url: Url | None = None
    worker_api_service_token: str | None = Field(None, repr=False)

    # Where things are. These are this service's own.
    database_url: str = Field("embedded:", repr=False)
    """postgresql://…, or `embedded:[folder]` for a PostgreSQL that needs nothing installed."""
    files_url: str = Field("file:data/invoicing", repr=False)
    """`file:` and a folder, or s3://bucket/prefix with the usual AWS_… variables."""
    smtp_url: str = Field("smtp://127.0.0.1:1025", repr=False)
    """smtp://[user:password@]host:port, or smtps://…"""
    mail_from: str = "Corely Billing <billing@corely.example>"
    templates_folder: Path = Path(__file__).parent / "templates"
    download_link_secret: str | None = Field(None, repr=False)
    download_link_ttl_ms: SomeMilliseconds = 300_000
    api_host: str = "127.0.0.1"
    api_port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    api_public_url: Url | None = None
    """What download links begin with, where a proxy stands in front; unset: as the request came."""
    worker_metrics_port: Annotated[int, Field(ge=1, le=65_535)] | None = None

    @classmethod
    def load(cls, **given: object) -> Self:
        """From the environment, with `given` on top. Misconfigured says which variable is wrong."""
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
            raise ValueError(f"WORKER_TICK_SHARD_INDEX: {index} is not below WORKER_TICK_SHARD_COUNT, {count}")
        for lower, upper, factor in (
            ("worker_idle_backoff_min_ms", "worker_idle_backoff_max_ms", 1),
            ("worker_tick_runner_max_ms", "worker_tick_overall_max_ms", 1),
            ("outbox_retry_base_ms", "outbox_retry_max_ms", 1),
            ("outbox_lease_heartbeat_ms", "outbox_lease_duration_ms", 2),
        ):
            least, most = getattr(self, lower), getattr(self, upper)
            if least * factor > most:
                bound = upper.upper() if factor == 1 else f"half of {upper.upper()}"
                raise ValueError(f"{lower.upper()}: {least} is more than {bound}, {most // factor}")
        return self


def milliseconds(number: int) -> timedelta:
    return timedelta(milliseconds=number)
