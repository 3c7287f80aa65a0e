"""How commands show things: tables for people, JSON for programs."""

import json
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

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


def rough(length: timedelta) -> str:
    """A length of time in its largest unit, or the two largest where one alone says too little."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            part = int(rest // smaller_size)
            return f"{whole:.0f}{unit}{part}{smaller}" if whole < 10 and part else f"{whole:.0f}{unit}"
    return f"{seconds:.0f}s"
