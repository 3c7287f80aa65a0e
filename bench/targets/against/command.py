"""From the options to the table: both sides, their server, the rounds and the result."""

import argparse
import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.targets.against.checkouts import (
    PROGRAM,
    Interpreter,
    Side,
    Unusable,
    check_out,
    commit_of,
    copy_working_tree,
    environment_for,
)
from bench.targets.against.measures import QUICK, Sizes, Yard, all_measures
from bench.targets.against.rounds import Measure, Pace, take_rounds
from bench.targets.against.rows import NEW, OLD, Row, as_table
from bench.targets.against.verdicts import Verdict
from bench.targets.measuring import say
from bench.targets.server import Server

PAIRS, QUICK_PAIRS = 12, 2
MOST_SECONDS = 25 * 60.0
FITTING = f"against a commit {PAIRS}, or as many as fit into {MOST_SECONDS / 60:.0f} minutes"
SET_UP_SECONDS = 60.0
MISSED, UNCLEAR = 1, 3
_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system, not a file
_ROOM = 4_000_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "against another commit",
        f"exit code {MISSED}: a threshold was missed or a measure broke; {UNCLEAR}: neither, but a verdict is unclear",
    )
    group.add_argument("--against", metavar="COMMIT", help="only compare the working tree with this commit")
    group.add_argument("--measures", type=_names, metavar="A,B", help="take only these measures (default: all)")
    group.add_argument("--python", metavar="PATH", help="interpreter for both sides (default: this one)")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def compare(chosen: argparse.Namespace) -> tuple[str, int]:
    """Return the table and the exit code."""
    commit = commit_of(chosen.against)
    interpreter = Interpreter.at(chosen.python or sys.executable)
    sizes = QUICK if chosen.quick else Sizes()
    pairs = chosen.pairs or (QUICK_PAIRS if chosen.quick else PAIRS)
    with tempfile.TemporaryDirectory(prefix="holdfast-sides-") as folder:
        sides = await asyncio.to_thread(_both, commit, interpreter, Path(folder))
        say("preparing PostgreSQL")
        async with Server.opened(chosen.url, _roomy_folder()) as server:
            measures = selected(all_measures(Yard(server, sides, sizes), interpreter.version), chosen.measures)
            described = {
                "new": f"the working tree at {commit_of('HEAD')[:7]}",
                "old": commit[:7],
                "Python": interpreter.label,
                "cores": os.cpu_count(),
                **await server.description(),
            }

            def write() -> None:
                if chosen.json is not None:
                    chosen.json.write_text(json.dumps(_for_programs(described, measures), indent=1) + "\n")

            pace = Pace(MOST_SECONDS if chosen.pairs is None else None)
            _announce(measures, pairs, pace)
            await take_rounds(measures, pairs, pace, write)
            write()
    title = ", ".join(f"{name} {value}" for name, value in described.items())
    broken = "".join(f"\n- {each.name} broke: {each.problem}" for each in measures if each.problem is not None)
    text = f"{title}\n\n{as_table(_rows(measures), is_judged=not chosen.quick)}\n{broken}"
    return text.rstrip(), exit_code(measures, is_judged=not chosen.quick)


def _rows(measures: Sequence[Measure]) -> list[Row]:
    return [row for measure in measures for row in measure.rows]


def _for_programs(described: Mapping[str, object], measures: Sequence[Measure]) -> dict[str, object]:
    return {
        "environment": described,
        "rows": [{"measure": measure.name, **row.as_json()} for measure in measures for row in measure.rows],
        "broken": {measure.name: measure.problem for measure in measures if measure.problem is not None},
    }


def _both(commit: str, interpreter: Interpreter, folder: Path) -> dict[str, Side]:
    sources = {NEW: copy_working_tree(folder / NEW), OLD: check_out(commit, folder / OLD)}
    program = Path(shutil.copy(PROGRAM, folder))
    return {name: Side(name, place, environment_for(interpreter, place), program) for name, place in sources.items()}


def selected(measures: Sequence[Measure], names: Sequence[str] | None) -> list[Measure]:
    known = {measure.name: measure for measure in measures}
    if unknown := [name for name in names or () if name not in known]:
        raise Unusable(f"--measures: {unknown[0]!r} is not one of {', '.join(known)}")
    return [known[name] for name in names] if names else list(measures)


def _announce(measures: Sequence[Measure], pairs: int, pace: Pace) -> None:
    seconds = SET_UP_SECONDS + sum(measure.seconds * min(pairs, measure.most_pairs or pairs) for measure in measures)
    most = "" if pace.seconds is None else f", at most {pace.seconds / 60:.0f}"
    say(f"{pairs} pairs of {', '.join(measure.name for measure in measures)}")
    say(f"about {math.ceil(seconds / 60)} minutes on two quiet cores{most}")


def exit_code(measures: Sequence[Measure], *, is_judged: bool) -> int:
    verdicts = {row.verdict for row in _rows(measures)} if is_judged else set()
    if Verdict.MISSED in verdicts or any(measure.problem is not None for measure in measures):
        return MISSED
    return UNCLEAR if Verdict.UNCLEAR in verdicts else 0


def _roomy_folder() -> Path | None:
    """A folder in memory, so that no figure depends on a disk, or None for the default temporary folder."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        return None
    return _MEMORY
