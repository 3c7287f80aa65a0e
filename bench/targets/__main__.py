"""`python -m bench.targets`: prints progress on stderr and tables on stdout, and writes everything with --json FILE.

Uses an embedded PostgreSQL that is removed afterwards or, with --url, its own databases on another server.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from bench.targets import crowds, drains, enqueuing, footprint, pick_up, snapshots
from bench.targets.against.command import FITTING, add_options, compare
from bench.targets.figures import Line
from bench.targets.measuring import QUICK, Bench, Sizes, say
from bench.targets.report import PAGE, BrokenReport, write
from bench.targets.server import Server
from bench.targets.snapshots import LEAST_MINUTES, MOST_MINUTES
from bench.targets.table import as_text
from holdfast.domain.errors import HoldfastError

LINES: dict[str, Callable[[Bench], Awaitable[Line]]] = {
    "own-statements": drains.own_statements,
    "two-workers": drains.two_workers,
    "default-settings": drains.default_settings,
    "bulk": enqueuing.bulk,
    "single": enqueuing.single,
    "pick-up": pick_up.pick_up,
    "history": crowds.history,
    "behind": crowds.behind,
    "snapshots": snapshots.snapshots,
    "wal": enqueuing.wal,
    "threads": drains.threads,
    "memory": footprint.memory,
    "sleeping": drains.sleeping,
    "idle": footprint.idle,
}
Figures = dict[str, Any]
PAIRS = 7


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.targets", description=__doc__)
    parser.add_argument("--url", help="PostgreSQL whose user may create databases (default: an embedded one)")
    parser.add_argument(
        "--only",
        action="append",
        choices=LINES,
        metavar="NAME",
        help=f"measure only this line; repeatable: {', '.join(LINES)}",
    )
    parser.add_argument("--skip", action="append", default=[], choices=LINES, metavar="NAME", help="skip this line")
    parser.add_argument("--pairs", type=_number, help=f"number of interleaved pairs (default: {PAIRS}; {FITTING})")
    parser.add_argument("--minutes", type=_minutes, help="how long to hold a snapshot open (default: 5)")
    parser.add_argument("--quick", action="store_true", help="take one small pair of everything, as a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--report", action="store_true", help=f"write the tables into {PAGE.name}; needs --json")
    add_options(parser)
    chosen = parser.parse_args()
    if chosen.report and chosen.json is None:
        parser.error("--report needs --json FILE")
    if chosen.against is None and (chosen.measures or chosen.python):
        parser.error("--measures and --python need --against COMMIT")
    if chosen.against is not None and (chosen.only or chosen.skip or chosen.minutes or chosen.report):
        parser.error("--against has no --only, --skip, --minutes and --report; it has --measures")
    return chosen


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text} is not a number from {LEAST_MINUTES:g} to {MOST_MINUTES:g}")
    return minutes


async def measure(chosen: argparse.Namespace) -> tuple[str, int]:
    """Return the tables, and the exit code: 1 if something broke."""
    sizes = QUICK if chosen.quick else Sizes()
    if chosen.minutes is not None:
        sizes = replace(sizes, snapshot_minutes=chosen.minutes)
    lines: dict[str, Line] = {}
    problems: dict[str, str] = {}
    say("preparing PostgreSQL")
    async with Server.opened(chosen.url) as server:
        bench = Bench(server, sizes, 1 if chosen.quick else chosen.pairs or PAIRS)
        environment = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "command": _command(chosen),
            "commit": _commit(),
            "Python": platform.python_version(),
            "cores": os.cpu_count(),
            **await server.description(),
            "pairs": bench.pairs,
            "load before": f"{os.getloadavg()[0]:.1f}",
        }
        for name in (name for name in chosen.only or LINES if name not in chosen.skip):
            say(name)
            try:
                bench.busy.clear()
                line = await LINES[name](bench)
                lines[name] = replace(line, details={**line.details, "busy_before_runs": list(bench.busy)})
            except Exception as error:  # noqa: BLE001 - reported below; the other lines are still useful
                problems[name] = " ".join(f"{type(error).__name__}: {error}".split())
                say(f"{name} broke: {problems[name]}")
            # Write after each line, to keep the figures so far if something stops an hour's run.
            if chosen.json is not None:
                chosen.json.write_text(json.dumps(_for_programs(environment, lines, problems), indent=1) + "\n")
    title = ", ".join(f"{name} {value}" for name, value in environment.items())
    return as_text(title, lines, problems), int(bool(problems))


def _for_programs(environment: Figures, lines: Mapping[str, Line], problems: Mapping[str, str]) -> Figures:
    return {
        "environment": environment,
        "lines": {
            name: {"figures": [figure.as_dict() for figure in line.figures], **line.details}
            for name, line in lines.items()
        },
        "broken": problems,
    }


def _command(chosen: argparse.Namespace) -> str:
    """The command without the addresses and files of this machine."""
    words = ["python -m bench.targets"]
    words += [f"--only {name}" for name in chosen.only or ()] + [f"--skip {name}" for name in chosen.skip]
    words.append("--quick" if chosen.quick else f"--pairs {chosen.pairs or PAIRS}")
    words += [] if chosen.minutes is None else [f"--minutes {chosen.minutes:g}"]
    words += [] if chosen.url is None else ["--url URL"]
    return " ".join(words)


def _commit() -> str:
    """The commit of the working tree, or nothing where there is no repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


async def _until_told_to_stop(work: Coroutine[Any, Any, tuple[str, int]]) -> tuple[str, int]:
    """Cancel the work on SIGTERM, so that no server and no worker is left behind."""
    task = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main() -> int:
    chosen = arguments()
    try:
        if chosen.json is not None:
            # Fail now if the file cannot be written, not after an hour.
            chosen.json.touch()
        work = measure(chosen) if chosen.against is None else compare(chosen)
        shown, exit_code = uvloop.run(_until_told_to_stop(work))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except (HoldfastError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(shown)
    if chosen.report:
        try:
            write([chosen.json])
        except BrokenReport as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
