"""How commands show things: tables for people, JSON for programs."""

import json
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from holdfast.domain.duration import rough as rough

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDE = 200
_UNBOUND = 1_000_000

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


def print_table(full: "Table", short: "Callable[[int], Table]", flexible: int = 0) -> None:
    """The full table, or on a terminal that is too narrow for it the short one, made for that width.

    The last column of the full one is cut at the terminal's edge if that leaves it `flexible` characters.
    """
    out = console()
    unbound = out.options.update(max_width=_UNBOUND)
    needed = out.measure(full, options=unbound).maximum
    if not sys.stdout.isatty():
        out.width = max(out.width, needed)
    last = out.measure(_column(full), options=unbound).maximum
    left = out.width - (needed - last)
    if flexible and flexible <= left < last:
        full.columns[-1].max_width = left
    elif left < last:
        full = short(out.width)
    out.print(full)


def _column(table: "Table") -> "RenderableType":
    """The last one, by itself."""
    from rich.console import Group

    return Group(*table.columns[-1].cells)


def new_table(*headings: str) -> "Table":
    """One line a row, whatever the width: what is too long ends with an ellipsis."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="ellipsis", no_wrap=True)
    return table


def print_json(value: object) -> None:
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    json.dump(value, sys.stdout, indent=2, ensure_ascii=not is_unicode, default=str)
    sys.stdout.write("\n")


def warn(line: str) -> None:
    sys.stderr.write(f"holdfast: {line}\n")


def printable(text: str) -> str:
    """The text without control characters, with which a job's data could play tricks on a terminal."""
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
