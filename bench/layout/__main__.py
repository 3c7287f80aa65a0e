"""`python -m bench.layout --url postgresql://…`: progress on stderr, tables (or JSON) on stdout.

The URL names the server and a database to connect to; the measurements happen in a database of their own, which is
created first and dropped at the end.
"""

import argparse
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import uvloop

from bench.layout import report, scenarios
from bench.layout.candidates import ALL, MAIN, A, Candidate
from bench.layout.load import make_sample
from bench.layout.scenarios import say

PARTS = ("verbs", "load", "variants", "call", "lanes", "full", "unhandled", "pinned")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.layout", description=__doc__)
    parser.add_argument("--url", default=os.environ.get("HOLDFAST_BENCH_URL"), help="or HOLDFAST_BENCH_URL")
    parser.add_argument("--database", default="layout_bench", help="created and dropped (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds under load (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=60_000, help="jobs per round (default: %(default)s)")
    parser.add_argument("--pinned-jobs", type=int, default=40_000, help="jobs per pinned round (default: %(default)s)")
    parser.add_argument("--pinned-rounds", type=int, default=6, help="rounds under a pin (default: %(default)s)")
    parser.add_argument(
        "--pinned-seconds", type=float, default=60, help="no new pinned round after (default: %(default)s)"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part; may be repeated")
    parser.add_argument("--candidates", default=",".join(ALL), help="names, comma separated (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one small round of everything, to see that it works")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    if not chosen.url:
        parser.error("--url is required")
    if chosen.quick:
        chosen.rounds, chosen.jobs, chosen.pinned_jobs, chosen.pinned_rounds = 1, 20_000, 10_000, 2
    return chosen


def command_without_url(words: list[str]) -> str:
    """What else was asked for; the URL may hold a password."""
    kept, skipped = [], False
    for word in words:
        if not (skipped or word.startswith("--url")):
            kept.append(word)
        skipped = word == "--url"
    return " ".join(kept)


async def measure(chosen: argparse.Namespace, url: str) -> dict[str, Any]:
    parts = chosen.only or PARTS
    candidates = [ALL[name] for name in chosen.candidates.split(",")]
    figures: dict[str, Any] = {}
    connection = await asyncpg.connect(url)
    version = await connection.fetchval("SHOW server_version")
    figures["server"] = {"version": version, "cores": os.cpu_count(), "command": command_without_url(sys.argv[1:])}
    scale = 10 if chosen.quick else 1
    await make_sample(connection, 100_000 // scale, 20_000 // scale, 200_000 // scale)
    await connection.close()
    if "verbs" in parts:
        figures["verbs"] = {}
        for candidate in candidates:
            say(f"verbs of {candidate.name}")
            figures["verbs"][candidate.name] = await scenarios.verb_costs(url, candidate)
    rounds: dict[str, list[scenarios.Figures]] = {}
    loaded = [one for one in candidates if ("load" if one in MAIN else "variants") in parts]
    for number in range(chosen.rounds):
        for candidate in loaded:
            result = await scenarios.loaded_round(url, candidate, chosen.jobs)
            rounds.setdefault(candidate.name, []).append(result)
            say(
                f"round {number + 1} {candidate.name}: "
                + " ".join(f"{key}={value:.0f}" for key, value in result.items())
            )
    figures["load"] = rounds
    if "call" in parts:
        figures["call"] = []
        for number in range(chosen.rounds):
            figures["call"].append(await scenarios.call_overhead(url, A))
            say(f"call {number + 1}: {figures['call'][-1]}")
    if "lanes" in parts:
        figures["lanes"] = {one.name: await scenarios.lane_costs(url, one) for one in candidates if one in MAIN[:1]}
    if "full" in parts:
        figures["full"] = {name: await scenarios.full_lane_costs(url, ALL[name]) for name in ("A", "A5", "A7", "A8")}
    if "unhandled" in parts:
        figures["unhandled"] = {name: await scenarios.unhandled_costs(url, ALL[name]) for name in ("A", "A5", "F")}
    if "pinned" in parts:
        figures["pinned"] = await measure_pinned(chosen, url)
    return figures


def pinned_cases(by: str) -> list[tuple[Candidate, bool]]:
    with_floors = [ALL["F"], ALL["A2"], ALL["B"]] if by == "reader" else [ALL["F"]]
    return [(one, True) for one in with_floors] + [(one, False) for one in MAIN]


async def measure_pinned(chosen: argparse.Namespace, url: str) -> list[dict[str, Any]]:
    rows = []
    for by in ("reader", "writer"):
        for candidate, floors in pinned_cases(by):
            if candidate.name not in chosen.candidates.split(","):
                continue
            result = await scenarios.pinned_rounds(
                url, candidate, by, chosen.pinned_jobs, chosen.pinned_rounds, floors=floors, limit=chosen.pinned_seconds
            )
            rows.append({"candidate": candidate.name, "floors": floors, "pinned_by": by, **result})
            say(f"pinned: {rows[-1]}")
    return rows


async def main() -> None:
    chosen = arguments()
    address = urlsplit(chosen.url)
    url = urlunsplit(address._replace(path=f"/{chosen.database}"))
    administrator = await asyncpg.connect(chosen.url)
    await administrator.execute(f'DROP DATABASE IF EXISTS "{chosen.database}" WITH (FORCE)')
    await administrator.execute(f'CREATE DATABASE "{chosen.database}"')
    try:
        figures = await measure(chosen, url)
    finally:
        await administrator.execute(f'DROP DATABASE IF EXISTS "{chosen.database}" WITH (FORCE)')
        await administrator.close()
    print(json.dumps(figures, indent=1) if chosen.json else report.tables(figures))


if __name__ == "__main__":
    uvloop.run(main())
