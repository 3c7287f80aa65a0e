"""Output of commands: tables for people, JSON for programs."""

import json
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from holdfast.domain.duration import rough as rough
from holdfast.domain.printable import printable as printable

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
    """Standard output. A pipe or file has no width, so it gets a wide one."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDE)


def print_table(full: "Table", short: "Callable[[int], Table]", flexible: int = 0) -> None:
    """Print the full table, or the short one, made for the terminal's width, if the full one does not fit.

    The full table also fits if its last column can be cut at the terminal's edge and keep `flexible` characters.
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
    """The last column alone."""
    from rich.console import Group

    return Group(*table.columns[-1].cells)


def new_table(*headings: str) -> "Table":
    """Make a table with one line per row at any width. A cell that does not fit ends with an ellipsis."""
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
        place = UTC  # A zone that this machine's database does not have yet.
    return f"{moment.astimezone(place).isoformat(sep=' ', timespec='seconds')} ({relative(moment, now)})"
