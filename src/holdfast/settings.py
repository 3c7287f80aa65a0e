"""Every setting in one class, read from the environment with the prefix HOLDFAST_."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from holdfast.duration import to_timedelta
from holdfast.errors import InvalidInput

Length = Annotated[timedelta, BeforeValidator(lambda value: _duration(value))]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda value: _names(value))]


class Settings(BaseSettings):
    """What can be set from outside. Durations are written like "90s" or "5m"."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    store: str = Field("embedded:", description="Where jobs live: embedded:[folder], postgresql://…, memory:")
    db_schema: str = Field("holdfast", validation_alias="HOLDFAST_SCHEMA", description="PostgreSQL schema")
    concurrency: int = Field(32, description="Handlers that one worker process runs at once")
    queues: Names = Field((), description="Queues to work on, separated by commas; empty: those of the handlers")
    lease: Length = Field(timedelta(seconds=30), description="How long a claim lasts without a renewal")
    renew: Length | None = Field(
        None, description="How often a lease is renewed, at most half of it; unset: a third of the lease"
    )
    most_ahead: int = Field(1000, description="Most jobs to claim beyond the free slots when jobs are fast")
    shutdown: Length = Field(timedelta(seconds=30), description="How long a stopping process waits for what it runs")
    replica: str = Field("", description="This process's name in runs and logs; empty: host name and process id")

    runners: Names = Field((), description="What a tick runs, in order, separated by commas; empty: everything")
    tick_max: Length = Field(timedelta(minutes=8), description="Longest time for one tick of `holdfast tick`")
    runner_max: Length | None = Field(
        None, description="Longest time for one runner in a tick; unset: that of the tick"
    )
    runner_items: int | None = Field(None, description="Most items that one runner takes in a tick; unset: no limit")
    shard_index: int | None = Field(None, description="Which shard of the jobs this process takes, from 0")
    shard_count: int | None = Field(None, description="How many shards the jobs are split into; unset: no shards")

    busy_delay: Length = Field(timedelta(0), description="Wait after a tick that did something")
    idle_backoff_min: Length = Field(
        timedelta(milliseconds=20), description="Wait after the first tick that found nothing; doubles from there"
    )
    poll: Length = Field(timedelta(seconds=1), description="Longest wait of an idle process: how often it polls")
    idle_backoff_jitter: Length = Field(timedelta(0), description="Random time added to the waits of busy and idle")
    error_backoff_min: Length = Field(
        timedelta(milliseconds=100), description="Wait after a runner failed for the first time; doubles from there"
    )
    error_backoff_max: Length = Field(timedelta(seconds=5), description="Longest wait after a runner failed")
    error_backoff_jitter: Length = Field(
        timedelta(milliseconds=200), description="Random time added to the wait after a failure"
    )

    listen: bool = Field(True, description="Be woken by PostgreSQL's NOTIFY; polling goes on either way")
    listen_url: str | None = Field(
        None, description="PostgreSQL address for the listener, past PgBouncer; unset: that of the store"
    )
    rabbitmq_url: str | None = Field(None, description="RabbitMQ that wakes workers, amqp://…; unset: none")
    rabbitmq_exchange: str = Field("holdfast", description="Exchange of the wake-ups")
    rabbitmq_routing_key: str = Field("jobs.trigger", description="Routing key of the wake-ups")

    retention: Length = Field(timedelta(days=7), description="How long succeeded and canceled jobs are kept")
    dead_letter_retention: Length | None = Field(
        None, description="How long dead letters are kept; unset: until somebody removes them"
    )
    run_retention: Length = Field(timedelta(days=30), description="How long runs are kept")

    health_port: int | None = Field(None, description="HTTP port for /live and /ready; unset: none")
    health_host: str = Field("127.0.0.1", description="Address that the health port listens on")
    health_broker: bool = Field(False, description="Whether a worker without its RabbitMQ counts as not ready")

    @classmethod
    def load(cls, **given: Any) -> "Settings":  # noqa: ANN401
        """The environment's settings with `given` on top; InvalidInput names the wrong one in a line."""
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            problem = error.errors()[0]
            name = "HOLDFAST_" + "_".join(str(part) for part in problem["loc"]).upper().removeprefix("HOLDFAST_")
            raise InvalidInput(f"{name}: {problem['msg'].removeprefix('Value error, ')}") from error


def _duration(value: object) -> timedelta:
    try:
        return to_timedelta(value)
    except InvalidInput as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value
