"""Every setting in one class, read from the environment with the prefix HOLDFAST_."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from holdfast.duration import to_timedelta
from holdfast.errors import InvalidInput

Length = Annotated[timedelta, BeforeValidator(lambda value: _duration(value))]


class Settings(BaseSettings):
    """What can be set from outside. Durations are written like "90s" or "5m"."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    store: str = Field("embedded:", description="Where jobs live: embedded:[folder], postgresql://…, memory:")
    db_schema: str = Field("holdfast", validation_alias="HOLDFAST_SCHEMA", description="PostgreSQL schema")
    concurrency: int = Field(32, description="Handlers that one worker process runs at once")
    queues: Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda value: _names(value))] = Field(
        (), description="Queues to work on, separated by commas; empty: those of the handlers"
    )
    lease: Length = Field(timedelta(seconds=30), description="How long a claim lasts without a renewal")
    poll: Length = Field(timedelta(seconds=1), description="How often an idle worker looks for work")
    shutdown: Length = Field(timedelta(seconds=30), description="How long a stopping worker waits for its handlers")
    most_ahead: int = Field(1000, description="Most jobs to claim beyond the free slots when jobs are fast")

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
