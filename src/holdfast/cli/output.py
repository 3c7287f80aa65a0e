"""How commands show things: tables for people, JSON for programs."""

import json
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from holdfast.duration import rough as rough

if TYPE_CHECKING:
    from rich.console import Console

_WIDE = 200

STATE_STYLES = {
    "ready": "cyan",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "dead": "bold red",
    "canceled": "dim",
}


def console() -> "Console":
    """Standard output. A pipe or a file has no width, so nothing is cut off there."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDE)


def print_json(value: object) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    json.dump(value, sys.stdout, indent=2, ensure_ascii=not is_unicode, default=str)
    sys.stdout.write("\n")


def warn(line: str) -> None:
    sys.stderr.write(f"holdfast: {line}\n")


def printable(text: str) -> str:
    """What a job brought along, without the control characters with which it could play tricks on a terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def relative(moment: datetime, now: datetime) -> str:
    """`5m ago`, `in 2h`, `now`."""
    distance = moment - now
    if abs(distance) < timedelta(seconds=1):
        return "now"
    return f"in {rough(distance)}" if distance > timedelta(0) else f"{rough(-distance)} ago"


def in_zone(moment: datetime, zone: str, now: datetime) -> str:
    """`2030-01-31 08:00:00-03:00 (in 2h)`."""
    from zoneinfo import ZoneInfo

    try:
        place: tzinfo = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        place = UTC  # A zone that only newer machines know.
    return f"{moment.astimezone(place).isoformat(sep=' ', timespec='seconds')} ({relative(moment, now)})"
