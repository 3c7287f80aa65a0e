"""Every setting in one class, read from the environment with the prefix HOLDFAST_ or given in code.

What one value may be stands with its field; what values may not be together stands in `_contradictions`. The page
docs/settings.md is made from this class by `holdfast settings --markdown`.
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
from holdfast.domain.address import each_host
from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput
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
# Read elsewhere, before there are any settings.
OTHER_VARIABLES = {
    f"{PREFIX}HOME": "Folder below which `embedded:` keeps its PostgreSQL; unset: `holdfast` in the user's data folder"
}
GROUPS = {
    "store": "Store",
    "concurrency": "Worker",
    "runners": "Tick",
    "busy_delay": "Background",
    "listen": "Wake-ups",
    "retention": "Retention",
    "health_port": "Health",
}
"""The title of each group of settings, under the name of its first one."""

_FOR_TOOLS = (f"{PREFIX}TEST_", f"{PREFIX}BENCH_")
# What Kubernetes sets in every container for a Service called holdfast, or holdfast-something.
_OF_KUBERNETES = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")
_AS_HERE: Mapping[str, str] = {}
# As long as a name may be in AMQP, and longer than one in DNS.
_LONGEST_NAME_BYTES = 255
_SHORTEST_WAIT = timedelta(milliseconds=1)
_SHORTEST_RETENTION = timedelta(hours=1)
_RUNNER_MAX = timedelta(minutes=1)
_IDLE_BACKOFF_MIN = timedelta(milliseconds=20)
_ERROR_BACKOFF_MIN = timedelta(milliseconds=100)


def _checked(check: Callable[[Value], object]) -> AfterValidator:
    """A check of limits.py in the form that pydantic wants: it names the setting itself."""

    def validate(value: Value) -> Value:
        try:
            check(value)
        except InvalidInput as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        return value

    return AfterValidator(validate)


def _has_scheme(*schemes: str) -> AfterValidator:
    """The address is never quoted: it may have a password anywhere."""

    def validate(address: str) -> str:
        try:
            # Several hosts are PostgreSQL's way alone, but each of them is read like any other.
            known = {urlsplit(each).scheme for each in each_host(address)} <= {*schemes}
        except ValueError:
            known = False
        if not known:
            raise ValueError(
                f"is not an address; write {schemes[0]}://user:password@host:port/… and percent-encode special "
                f"characters of the password"
            )
        return address

    return AfterValidator(validate)


def _is_filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give it at least one character, or leave it out for the default")
    if not text.isprintable():
        raise ValueError(f"{text!r} contains a control character or another that cannot be shown")
    if len(text.encode()) > _LONGEST_NAME_BYTES:
        raise ValueError(f"{len(text.encode()):,} bytes are over the limit of {_LONGEST_NAME_BYTES}")
    return text


Length = Annotated[timedelta, BeforeValidator(lambda value: _duration(value))]
Wait = Annotated[
    Length, _checked(lambda value: at_least_lasting("", value, _SHORTEST_WAIT, "nothing can be done in no time"))
]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(lambda value: _names(value))]
Filled = Annotated[str, AfterValidator(_is_filled)]


def _kept(why: str) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        return at_least_lasting("", value, _SHORTEST_RETENTION, why)

    return _checked(check)


def _at_least(least: int) -> AfterValidator:
    def check(value: int) -> int:
        return at_least("", value, least)

    return _checked(check)


class GivenSettings(TypedDict, total=False):
    """The settings that code may give by name, beside the store and its schema; None leaves one to the environment."""

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


class Settings(BaseSettings):
    """What can be set from outside. Durations are written like "90s" or "5m"."""

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
        (), description="Queues to work on, separated by commas; empty: those of the handlers"
    )
    lease: Annotated[Length, _checked(check_lease)] = Field(
        timedelta(seconds=30), description="How long a claim lasts without a renewal"
    )
    renew: Wait | None = Field(
        None, description="How often a lease is renewed, at most half of it; unset: a third of the lease"
    )
    most_ahead: Annotated[int, _at_least(0)] = Field(
        2000, description="Most jobs to claim beyond the free slots when jobs are fast"
    )
    claim_max: Annotated[int, _at_least(1)] | None = Field(
        None, description="Most jobs that one claim takes; unset: as many as there are slots and look-ahead for"
    )
    claim_bytes: Annotated[int, _at_least(1)] = Field(
        CLAIM_BYTES, description="Payloads of one claim, in bytes: the job that reaches it is the last one"
    )
    processes: Annotated[int, _at_least(1)] | None = Field(
        None, description='Most processes for handlers with isolation="process"; unset: as many as there are cores'
    )
    process_jobs: Annotated[int, _at_least(1)] | None = Field(
        None, description="Attempts that such a process serves before a new one takes its place; unset: any number"
    )
    process_megabytes: Annotated[int, _at_least(1)] | None = Field(
        None,
        description="Resident memory after an attempt above which a new process takes its place; unset: any amount",
    )
    shutdown: Length = Field(timedelta(seconds=30), description="How long a stopping process waits for what it runs")
    replica: Annotated[str, _checked(lambda name: name and check_name("replica", name))] = Field(
        "", description="This process's name in runs and logs; empty: host name and process id"
    )

    runners: Names = Field((), description="What a tick runs, in order, separated by commas; empty: everything")
    tick_max: Wait = Field(timedelta(minutes=8), description="Longest time for one tick of `holdfast tick`")
    tick_items: Annotated[int, _at_least(1)] | None = Field(
        None, description="Most items that all runners together take in a tick; unset: no limit"
    )
    runner_max: Wait = Field(
        # So that runners after a queue with a long backlog have their turn too, and its last jobs time to finish.
        default_factory=lambda given: min(_RUNNER_MAX, given["tick_max"] / 2),
        description="Longest time for one runner in a tick of `holdfast tick`; jobs that it started may go on",
    )
    runner_items: Annotated[int, _at_least(1)] | None = Field(
        None, description="Most items that one runner takes in a tick; unset: no limit"
    )
    shard_index: Annotated[int, _at_least(0)] | None = Field(
        None, description="Which shard of the jobs this process takes, from 0"
    )
    shard_count: Annotated[int, _checked(lambda count: in_range("", count, 1, MOST_SHARDS))] | None = Field(
        None, description=f"How many shards the jobs are split into, at most {MOST_SHARDS}; unset: no shards"
    )

    busy_delay: Length = Field(
        timedelta(0),
        description="Wait after a tick that did something and found no more; 0s: as after one that found nothing",
    )
    poll: Annotated[Length, _checked(check_poll)] = Field(
        timedelta(seconds=1),
        description="Longest wait of an idle process between polls",
    )
    idle_backoff_max: Wait | None = Field(
        None,
        description="Longest wait of an idle process while PostgreSQL rings for it; unset: three polls, ten among many",
    )
    idle_backoff_min: Wait = Field(
        # A default must not contradict what was set.
        default_factory=lambda given: min(_IDLE_BACKOFF_MIN, given["poll"]),
        description="Wait after the first tick that found nothing; doubles up to the poll",
    )
    idle_backoff_jitter: Length = Field(timedelta(0), description="Random time added to the waits of busy and idle")
    error_backoff_max: Wait = Field(timedelta(seconds=5), description="Longest wait after a runner failed")
    error_backoff_min: Wait = Field(
        default_factory=lambda given: min(_ERROR_BACKOFF_MIN, given["error_backoff_max"]),
        description="Wait after a runner failed for the first time; doubles from there",
    )
    error_backoff_jitter: Length = Field(
        timedelta(milliseconds=200), description="Random time added to the wait after a failure"
    )

    listen: bool = Field(True, description="Be woken by PostgreSQL's NOTIFY; polling goes on either way")
    listen_url: Annotated[str, _has_scheme("postgresql", "postgres")] | None = Field(
        None,
        description="PostgreSQL's own address, past PgBouncer, for all that needs a session; unset: that of the store",
    )
    rabbitmq_url: Annotated[str, _has_scheme("amqp", "amqps")] | None = Field(
        None, description="RabbitMQ that wakes workers, amqp://…; unset: none"
    )
    rabbitmq_exchange: Filled = Field("holdfast", description="Exchange of the wake-ups")
    rabbitmq_routing_key: Filled = Field("jobs.trigger", description="Routing key of the wake-ups")

    retention: Annotated[Length, _kept("keys and late replies rely on what is kept")] = Field(
        timedelta(days=7),
        description="How long succeeded and canceled jobs are kept, at least 1h; maybe an eighth and two days longer",
    )
    dead_letter_retention: Annotated[Length, _kept("nobody could look at a dead letter in time")] | None = Field(
        None, description="How long dead letters are kept, at least 1h; unset: until somebody removes them"
    )
    run_retention: Annotated[Length, _kept("nobody could look at a run in time")] = Field(
        timedelta(days=30), description="How long runs are kept, at least 1h"
    )

    health_port: Annotated[int, _checked(lambda port: in_range("", port, 1, 65_535))] | None = Field(
        None, description="HTTP port for /live and /ready; unset: none"
    )
    health_host: Filled = Field("127.0.0.1", description="Address that the health port listens on")
    health_broker: bool = Field(False, description="Whether a worker without its RabbitMQ counts as not ready")

    _given: Mapping[str, str] = PrivateAttr(default_factory=dict)
    """Those that are not the environment's, and what they were called where they were given."""

    @classmethod
    def load(cls, *, called: Mapping[str, str] = _AS_HERE, **given: Any) -> "Settings":  # noqa: ANN401
        """The environment's settings with `given` on top; InvalidInput names the wrong one in a line.

        `called`: what the caller calls those that it gives, where that is not the setting's own name.
        """
        _check_variables(os.environ)
        values = {name: value for name, value in given.items() if value is not None}
        return cls._build(values, {name: called.get(name, name) for name in values})

    @classmethod
    def check_environment(cls) -> None:
        """Each variable by itself: one that contradicts another may fit what the code gives in its place."""
        _check_variables(os.environ)
        cls._read({}, {})

    def changed(self, *, called: Mapping[str, str] = _AS_HERE, **changes: Any) -> "Settings":  # noqa: ANN401
        """These settings with some of them changed, and all of them checked again: for a command's options."""
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
    """What was given has the name there in an error, and everything else that of its variable."""
    return given[name] if name in given else variable(name)


def check_given(names: Iterable[str]) -> None:
    """Refuse a keyword that is no setting."""
    known = ("store", "schema", *GivenSettings.__annotations__)
    for name in names:
        if name not in GivenSettings.__annotations__:
            close = difflib.get_close_matches(name.lower().removeprefix(PREFIX.lower()), known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InvalidInput(f"{name!r} is not a setting; {advice}")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    alias = Settings.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else f"{PREFIX}{name.upper()}"


def _contradictions(given: Settings, called: Callable[[str], str]) -> Iterator[str]:
    """One line for each pair of values that cannot be meant together."""

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
            yield f"{shown(lower)} is more than {shown(upper)}; lower the one or raise the other"
    yield from _shard_contradictions(given, called)
    if given.health_broker and given.rabbitmq_url is None:
        yield (
            f"{called('health_broker')} asks for a broker, and there is none; set {called('rabbitmq_url')}, or turn "
            f"{called('health_broker')} off"
        )


def _shard_contradictions(given: Settings, called: Callable[[str], str]) -> Iterator[str]:
    index, count = given.shard_index, given.shard_count
    index_name, count_name = called("shard_index"), called("shard_count")
    if index is not None and count is None:
        yield f"{index_name} is {index}, but of how many shards? Set {count_name} as well, or neither"
    elif index is None and count is not None:
        yield f"{count_name} is {count}, but which of them is this? Set {index_name} from 0 to {count - 1}, or neither"
    elif index is not None and count is not None and index >= count:
        yield f"{index_name} is {index}, but {count_name} is {count}; the index goes from 0 to {count - 1}"


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuse a misspelt variable, which would otherwise leave its setting at the default without a word."""
    known = {variable(name) for name in Settings.model_fields} | set(OTHER_VARIABLES) | {crash_points.VARIABLE}
    for given, value in sorted(environment.items()):
        name = given.upper()
        if not name.startswith(PREFIX) or name in known or name.startswith(_FOR_TOOLS):
            continue
        if _OF_KUBERNETES.fullmatch(name) or _KUBERNETES_VALUE.match(value):
            continue
        bare = {each.removeprefix(PREFIX): each for each in known}
        close = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1)
        advice = f"did you mean {bare[close[0]]}?" if close else "`holdfast settings` lists those that are"
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
    # An empty name between two commas is kept, and then refused: dropped in silence, it could mean all of them.
    return tuple(name.strip() for name in value.split(",")) if value.strip() else ()
