"""All settings in one class, read from environment variables with the prefix HOLDFAST_ or given in code.

Each field checks its own value; `_contradictions` checks values against each other. `holdfast settings --markdown`
generates docs/settings.md from this class.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypedDict, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from holdfast.domain import crash_points
from holdfast.domain.address import each_host, without_driver, without_password
from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.job import check_name
from holdfast.domain.limits import (
    CLAIM_BYTES,
    MOST_SHARDS,
    at_least,
    at_least_lasting,
    check_concurrency,
    check_lease,
    check_poll,
    check_renewal,
    check_schema,
    check_store,
    in_range,
)

Value = TypeVar("Value")

PREFIX = "HOLDFAST_"
# Read elsewhere, before the settings exist.
OTHER_VARIABLES = {
    f"{PREFIX}APP": "Location of the app, for every command: shop.jobs:app or path/to/file.py:app",
    f"{PREFIX}HOME": "Folder where `embedded:` keeps its PostgreSQL; unset: `holdfast` in the user's data folder",
}
GROUPS = {
    "store": "Store",
    "concurrency": "Worker",
    "runners": "Tick",
    "busy_delay": "Background",
    "listen": "Wake-ups",
    "retention": "Retention",
    "health_port": "Health",
    "log_format": "Logs",
}
"""The title of each group of settings, by the name of the group's first setting."""

_FOR_TOOLS = (f"{PREFIX}TEST_", f"{PREFIX}BENCH_")
# Variables that Kubernetes sets in every container for a Service named holdfast or holdfast-something.
_OF_KUBERNETES = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")
_AS_HERE: Mapping[str, str] = {}
_LOG_FORMATS = ("auto", "console", "text", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOGGED_ATTEMPTS = ("all", "failed", "none")
# The limit of AMQP for names; DNS names are shorter.
_LONGEST_NAME_BYTES = 255
_SHORTEST_WAIT, _SHORTEST_RETENTION = timedelta(milliseconds=1), timedelta(hours=1)
_RUNNER_MAX = timedelta(minutes=1)
_IDLE_BACKOFF_MIN, _ERROR_BACKOFF_MIN = timedelta(milliseconds=20), timedelta(milliseconds=100)


def _checked(check: Callable[[Value], object]) -> AfterValidator:
    """Adapt a check of limits.py to pydantic. The message loses its name, because `_read` adds the setting's."""

    def validate(value: Value) -> Value:
        try:
            check(value)
        except InvalidInput as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        return value

    return AfterValidator(validate)


def _has_scheme(*schemes: str) -> AfterValidator:
    """The error never quotes the address, which may contain a password anywhere."""

    def validate(address: str) -> str:
        try:
            # Only PostgreSQL addresses can list several hosts, but each one parses like any other address.
            known = {urlsplit(each).scheme for each in each_host(without_driver(address))} <= {*schemes}
        except ValueError:
            known = False
        if not known:
            raise ValueError(
                f"is not an address; write {schemes[0]}://user:password@host:port/… and percent-encode special "
                f"characters in the password"
            )
        return address

    return AfterValidator(validate)


def _is_filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give it at least one character, or leave it out for the default")
    if not text.isprintable():
        raise ValueError(f"{text!r} contains a control character or another unprintable character")
    if len(text.encode()) > _LONGEST_NAME_BYTES:
        raise ValueError(f"{len(text.encode()):,} bytes are over the limit of {_LONGEST_NAME_BYTES}")
    return text


Length = Annotated[timedelta, BeforeValidator(lambda value: _duration(value))]
Wait = Annotated[
    Length, _checked(lambda value: at_least_lasting("", value, _SHORTEST_WAIT, "a wait cannot be zero or negative"))
]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda value: _names(value))]
Filled = Annotated[str, AfterValidator(_is_filled)]


def _one_of(*words: str) -> BeforeValidator:
    def validate(value: object) -> object:
        word = value.lower() if isinstance(value, str) else value
        if word not in words:
            raise ValueError(f"{shown(value)} is not known; use {', '.join(words[:-1])} or {words[-1]}")
        return word

    return BeforeValidator(validate)


def _kept(why: str) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        return at_least_lasting("", value, _SHORTEST_RETENTION, why)

    return _checked(check)


def _at_least(least: int) -> AfterValidator:
    def check(value: int) -> int:
        return at_least("", value, least)

    return _checked(check)


class GivenSettings(TypedDict, total=False):
    """Settings that code may pass as keywords, besides the store and its schema. None means the environment's value."""

    concurrency: int | None
    queues: Sequence[str] | None
    lease: Duration | None
    renew: Duration | None
    most_ahead: int | None
    claim_max: int | None
    claim_bytes: int | None
    processes: int | None
    process_jobs: int | None
    process_megabytes: int | None
    shutdown: Duration | None
    replica: str | None
    runners: Sequence[str] | None
    tick_max: Duration | None
    tick_items: int | None
    runner_max: Duration | None
    runner_items: int | None
    shard_index: int | None
    shard_count: int | None
    busy_delay: Duration | None
    poll: Duration | None
    idle_backoff_max: Duration | None
    idle_backoff_min: Duration | None
    idle_backoff_jitter: Duration | None
    error_backoff_max: Duration | None
    error_backoff_min: Duration | None
    error_backoff_jitter: Duration | None
    listen: bool | None
    listen_url: str | None
    rabbitmq_url: str | None
    rabbitmq_exchange: str | None
    rabbitmq_routing_key: str | None
    retention: Duration | None
    dead_letter_retention: Duration | None
    run_retention: Duration | None
    health_port: int | None
    health_host: str | None
    health_broker: bool | None
    log_format: str | None
    log_level: str | None
    log_attempts: str | None
    log_tracebacks: bool | None
    log_blocked: Duration | None


class Settings(BaseSettings):
    """All settings. Durations are written like "90s" or "5m"."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    store: Annotated[str, _checked(check_store)] = Field(
        "embedded:", description="Where jobs live: embedded:[folder], postgresql://…, memory:"
    )
    db_schema: Annotated[str, _checked(check_schema)] = Field(
        "holdfast", validation_alias="HOLDFAST_SCHEMA", description="PostgreSQL schema"
    )
    concurrency: Annotated[int, _checked(check_concurrency)] = Field(
        32, description="Handlers that one worker process runs at once"
    )
    queues: Annotated[Names, _checked(lambda names: [check_name("queue", name) for name in names])] = Field(
        (), description="Queues to serve, separated by commas; empty: the queues of the app's handlers"
    )
    lease: Annotated[Length, _checked(check_lease)] = Field(
        timedelta(seconds=30), description="How long a lease lasts unless it is renewed"
    )
    renew: Wait | None = Field(
        None, description="How often leases are renewed, at most half the lease; unset: a third of the lease"
    )
    most_ahead: Annotated[int, _at_least(0)] = Field(
        2000, description="Maximum number of jobs to claim beyond the free slots when jobs are fast"
    )
    claim_max: Annotated[int, _at_least(1)] | None = Field(
        None, description="Maximum number of jobs per claim; unset: as many as slots and look-ahead allow"
    )
    claim_bytes: Annotated[int, _at_least(1)] = Field(
        CLAIM_BYTES,
        description="Bytes of payloads and headers per claim; the job that reaches the limit is the last one",
    )
    processes: Annotated[int, _at_least(1)] | None = Field(
        None, description='Maximum number of processes for handlers with isolation="process"; unset: one per core'
    )
    process_jobs: Annotated[int, _at_least(1)] | None = Field(
        None, description="Attempts after which such a process is replaced; unset: no limit"
    )
    process_megabytes: Annotated[int, _at_least(1)] | None = Field(
        None,
        description="Resident memory above which such a process is replaced after an attempt; unset: no limit",
    )
    shutdown: Length = Field(timedelta(seconds=30), description="How long a stopping process waits for running work")
    replica: Annotated[str, _checked(lambda name: name and check_name("replica", name))] = Field(
        "", description="Name of this process in runs and logs; empty: host name and process ID"
    )

    runners: Names = Field((), description="Runners of a tick, in order, separated by commas; empty: all runners")
    tick_max: Wait = Field(timedelta(minutes=8), description="Maximum duration of a tick of `holdfast tick`")
    tick_items: Annotated[int, _at_least(1)] | None = Field(
        None, description="Maximum number of items per tick, all runners together; unset: no limit"
    )
    runner_max: Wait = Field(
        # Gives runners after a queue with a long backlog their turn, and the queue's last jobs time to finish.
        default_factory=lambda given: min(_RUNNER_MAX, given["tick_max"] / 2),
        description="Maximum duration of one runner in a tick of `holdfast tick`; jobs it has started may go on",
    )
    runner_items: Annotated[int, _at_least(1)] | None = Field(
        None, description="Maximum number of items per runner and tick; unset: no limit"
    )
    shard_index: Annotated[int, _at_least(0)] | None = Field(
        None, description="Shard of the jobs that this process takes, counted from 0"
    )
    shard_count: Annotated[int, _checked(lambda count: in_range("", count, 1, MOST_SHARDS))] | None = Field(
        None, description=f"Number of shards that the jobs are split into, at most {MOST_SHARDS}; unset: no shards"
    )

    busy_delay: Length = Field(
        timedelta(0),
        description="Wait after a tick that did work and left none; 0s: the same wait as after an idle tick",
    )
    poll: Annotated[Length, _checked(check_poll)] = Field(
        timedelta(seconds=1),
        description="Maximum wait of an idle process between polls",
    )
    idle_backoff_max: Wait | None = Field(
        None,
        description="Maximum wait of an idle process that PostgreSQL notifies of new jobs, at most 50 s; unset: three "
        "polls, or up to ten if many processes share the polling",
    )
    idle_backoff_min: Wait = Field(
        # The default must not contradict a poll interval that was set.
        default_factory=lambda given: min(_IDLE_BACKOFF_MIN, given["poll"]),
        description="Wait after the first tick that found nothing; doubles up to the maximum",
    )
    idle_backoff_jitter: Length = Field(timedelta(0), description="Random time added to the busy and idle waits")
    error_backoff_max: Wait = Field(timedelta(seconds=5), description="Maximum wait after a runner has failed")
    error_backoff_min: Wait = Field(
        default_factory=lambda given: min(_ERROR_BACKOFF_MIN, given["error_backoff_max"]),
        description="Wait after the first failure of a runner; doubles with each further one",
    )
    error_backoff_jitter: Length = Field(
        timedelta(milliseconds=200), description="Random time added to the wait after a failure"
    )

    listen: bool = Field(True, description="Whether to listen for PostgreSQL's NOTIFY; polling continues either way")
    listen_url: Annotated[str, _has_scheme("postgresql", "postgres")] | None = Field(
        None,
        description="Address of PostgreSQL itself, bypassing PgBouncer, for what needs a session; unset: the store's",
    )
    rabbitmq_url: Annotated[str, _has_scheme("amqp", "amqps")] | None = Field(
        None, description="Address of the RabbitMQ that wakes workers, amqp://…; unset: none"
    )
    rabbitmq_exchange: Filled = Field("holdfast", description="Exchange for wake-ups")
    rabbitmq_routing_key: Filled = Field("jobs.trigger", description="Routing key for wake-ups")

    retention: Annotated[Length, _kept("keys and late replies depend on kept jobs")] = Field(
        timedelta(days=7),
        description="How long succeeded and canceled jobs are kept, at least 1h; up to an eighth plus two days longer",
    )
    dead_letter_retention: Annotated[Length, _kept("people need time to look at dead letters")] | None = Field(
        None, description="How long dead letters are kept, at least 1h; unset: until you delete them"
    )
    run_retention: Annotated[Length, _kept("people need time to look at runs")] = Field(
        timedelta(days=30), description="How long runs are kept, at least 1h"
    )

    health_port: Annotated[int, _checked(lambda port: in_range("", port, 1, 65_535))] | None = Field(
        None, description="HTTP port for /live and /ready; unset: no health port"
    )
    health_host: Filled = Field("127.0.0.1", description="Address that the health port listens on")
    health_broker: bool = Field(False, description="Whether a worker that cannot reach RabbitMQ counts as not ready")

    log_format: Annotated[str, _one_of(*_LOG_FORMATS)] = Field(
        "auto", description="console, text or json; auto: console on a terminal, text elsewhere"
    )
    log_level: Annotated[str, _one_of(*_LOG_LEVELS)] | None = Field(
        None, description="debug, info, warning or error; unset: info for a worker, warning for a tick"
    )
    log_attempts: Annotated[str, _one_of(*_LOGGED_ATTEMPTS)] | None = Field(
        None, description="Attempts to log: all, failed or none; unset: all on a console, failed elsewhere"
    )
    log_tracebacks: bool | None = Field(
        None,
        description="Log the message and traceback of failed attempts, which may quote a job; unset: only on a console",
    )
    log_blocked: Wait = Field(
        timedelta(seconds=1), description="How long a handler may block the event loop before its stack is logged"
    )

    _given: Mapping[str, str] = PrivateAttr(default_factory=dict)
    """Settings given in code or by a command, with the names they had there."""

    @classmethod
    def load(cls, *, called: Mapping[str, str] = _AS_HERE, **given: Any) -> "Settings":  # noqa: ANN401
        """Load the environment's settings, overridden by `given`. InvalidInput names a wrong setting in one line.

        `called` maps settings to the caller's names for them, where these differ.
        """
        _check_variables(os.environ)
        values = {name: value for name, value in given.items() if value is not None}
        return cls._build(values, {name: called.get(name, name) for name in values})

    @classmethod
    def check_environment(cls) -> None:
        """Check each variable by itself. Variables may contradict each other, because code can still override one."""
        _check_variables(os.environ)
        cls._read({}, {})

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, without_password(value) if isinstance(value, str) else value

    def source(self, name: str) -> str:
        """Where the value of a setting comes from."""
        if name in self._given:
            return "code"
        return "environment" if name in self.model_fields_set else "default"

    def changed(self, *, called: Mapping[str, str] = _AS_HERE, **changes: Any) -> "Settings":  # noqa: ANN401
        """Return a copy with the changes of a command's options, and check all settings again."""
        values = {name: value for name, value in changes.items() if value is not None}
        known = {name: getattr(self, name) for name in self.model_fields_set}
        return self._build(known | values, {**self._given, **{name: called.get(name, name) for name in values}})

    @classmethod
    def _build(cls, values: Mapping[str, Any], given: Mapping[str, str]) -> "Settings":
        settings = cls._read(values, given)
        for contradiction in _contradictions(settings, lambda name: _called(name, given)):
            raise InvalidInput(contradiction)
        settings._given = given
        return settings

    @classmethod
    def _read(cls, values: Mapping[str, Any], given: Mapping[str, str]) -> "Settings":
        try:
            return cls(**values)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = str(problem["loc"][0])
            name = next((name for name in cls.model_fields if place in (name, variable(name))), place)
            explanation = _explained(problem["type"], problem["msg"], problem["input"])
            raise InvalidInput(f"{_called(name, given)}: {explanation}") from error


def _called(name: str, given: Mapping[str, str]) -> str:
    """The name to use in an error: the caller's name for a given setting, else the variable's."""
    return given[name] if name in given else variable(name)


def check_given(names: Iterable[str]) -> None:
    """Refuse a keyword that is not a setting."""
    known = ("store", "schema", *GivenSettings.__annotations__)
    for name in names:
        if name not in GivenSettings.__annotations__:
            close = difflib.get_close_matches(name.lower().removeprefix(PREFIX.lower()), known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(known)}"
            raise InvalidInput(f"{name!r} is not a setting; {advice}")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    alias = Settings.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else f"{PREFIX}{name.upper()}"


def _contradictions(given: Settings, called: Callable[[str], str]) -> Iterator[str]:
    """Yield one line for each pair of values that contradict each other."""

    def shown(name: str) -> str:
        value = getattr(given, name)
        text = to_text(value) if isinstance(value, timedelta) else str(value)
        return f"{called(name)} ({text}{'' if name in given.model_fields_set else ', the default'})"

    if given.renew is not None:
        try:
            check_renewal(given.lease, given.renew, lease_name=called("lease"), renew_name=called("renew"))
        except InvalidInput as error:
            yield str(error)
    for lower, upper in (
        ("idle_backoff_min", "poll"),
        ("poll", "idle_backoff_max"),
        ("error_backoff_min", "error_backoff_max"),
        ("runner_max", "tick_max"),
    ):
        least, most = getattr(given, lower), getattr(given, upper)
        if least is not None and most is not None and least > most:
            yield f"{shown(lower)} is more than {shown(upper)}; lower one or raise the other"
    yield from _shard_contradictions(given, called)
    if given.health_broker and given.rabbitmq_url is None:
        yield (
            f"{called('health_broker')} needs a broker, but none is set; set {called('rabbitmq_url')}, or turn "
            f"{called('health_broker')} off"
        )


def _shard_contradictions(given: Settings, called: Callable[[str], str]) -> Iterator[str]:
    index, count = given.shard_index, given.shard_count
    index_name, count_name = called("shard_index"), called("shard_count")
    if index is not None and count is None:
        yield f"{index_name} is {index}, but {count_name} is not set; set both or neither"
    elif index is None and count is not None:
        yield f"{count_name} is {count}, but {index_name} is not set; set it from 0 to {count - 1}, or set neither"
    elif index is not None and count is not None and index >= count:
        yield f"{index_name} is {index}, but {count_name} is {count}; the index goes from 0 to {count - 1}"


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuse a misspelled variable, which would otherwise silently leave its setting at the default."""
    known = {variable(name) for name in Settings.model_fields} | set(OTHER_VARIABLES) | {crash_points.VARIABLE}
    for given, value in sorted(environment.items()):
        name = given.upper()
        if not name.startswith(PREFIX) or name in known or name.startswith(_FOR_TOOLS):
            continue
        if _OF_KUBERNETES.fullmatch(name) or _KUBERNETES_VALUE.match(value):
            continue
        bare = {each.removeprefix(PREFIX): each for each in known}
        close = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
        advice = f"did you mean {bare[close[0]]}?" if close else "`holdfast settings` lists all settings"
        raise InvalidInput(f"{given} is not a setting; {advice}")


def _explained(kind: str, message: str, value: object) -> str:
    match kind:
        case "int_parsing" if isinstance(value, str) and _KUBERNETES_VALUE.match(value):
            return (
                f"{value!r} is what Kubernetes sets for a Service of this name; set enableServiceLinks: false in the "
                f"pod, or rename the Service"
            )
        case "int_parsing":
            return f"{value!r} is not a whole number"
        case "bool_parsing":
            return f"{value!r} is not true or false"
        case _:
            return message.removeprefix("Value error, ")


def _duration(value: object) -> timedelta:
    try:
        return to_timedelta(value)
    except InvalidInput as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


def _names(value: object) -> object:
    if not isinstance(value, str):
        return value
    # Keep an empty name between commas, so it is refused later. Dropping it could leave an empty list, which means all.
    return tuple(name.strip() for name in value.split(",")) if value.strip() else ()
