"""Payload versions: how a job carries its version, and how a newer handler reads an older payload.

A job without the header has version 1. Neighbors: handlers.py knows each handler's version; worker/executor.py gives
back jobs with a newer one.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from random import Random
from typing import Any

from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.json_text import Json, decode, encode

VERSION_HEADER = "holdfast.version"
VERSIONS = range(1, 1_000_001)
FIRST_VERSION = 1

Upgrade = Callable[[Any], Any]
"""Converts a payload's JSON value from one version to the next. Must be pure: it may run again on every attempt."""

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 10.0


def check_version(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in VERSIONS:
        raise InvalidInput(f"version: {shown(value)} is not a number from {VERSIONS[0]} to {VERSIONS[-1]:,}")
    return value


def check_upgrades(upgrades: object, version: int) -> Mapping[int, Upgrade]:
    """Check that the upgrades lead from version to version up to the handler's, without a gap."""
    if not isinstance(upgrades, Mapping) or not all(callable(upgrade) for upgrade in upgrades.values()):
        raise InvalidInput("upgrades: give a function for each version, as in {1: from_1_to_2}")
    missing = [each for each in range(min(upgrades, default=version), version) if each not in upgrades]
    if missing or any(check_version(each) >= version for each in upgrades):
        raise InvalidInput(
            f"upgrades: start from {', '.join(map(str, sorted(upgrades)))}, but the handler has version {version}; "
            f"give one from each version to the next, up to {version}"
        )
    return dict(upgrades)


def version_of(headers: Json | None) -> int:
    """The payload version in a job's headers. Raises ValueError if a producer wrote something else there."""
    # Most jobs have no headers, and decoding is expensive.
    if headers is None or VERSION_HEADER not in headers:
        return FIRST_VERSION
    read = decode(headers)
    version = read.get(VERSION_HEADER, FIRST_VERSION) if isinstance(read, dict) else FIRST_VERSION
    if not isinstance(version, int) or isinstance(version, bool) or version not in VERSIONS:
        raise ValueError(f"header {VERSION_HEADER}: {shown(version)} is not a version")
    return version


def with_version(headers: Mapping[str, object], version: int) -> Mapping[str, object]:
    return headers if version == FIRST_VERSION else {**headers, VERSION_HEADER: version}


def headers_of_version(version: int) -> Json | None:
    return None if version == FIRST_VERSION else encode({VERSION_HEADER: version})


def upgraded(payload: Json, version: int, upgrades: Mapping[int, Upgrade]) -> Json:
    """The payload, upgraded step by step as far as there are upgrades."""
    if version not in upgrades:
        return payload
    value = decode(payload)
    while version in upgrades:
        value = upgrades[version](value)
        version += 1
    return encode(value)


def wait_for_newer_worker(random: Random) -> timedelta:
    """A random delay: long enough to let this worker do other jobs, short enough for a newer worker to get it soon."""
    return timedelta(seconds=random.uniform(_SHORTEST_WAIT, _LONGEST_WAIT))
