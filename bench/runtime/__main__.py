"""`python -m bench.runtime`: prints progress on stderr and a table (or JSON) on stdout.

Uses an embedded PostgreSQL that is removed afterwards or, with --url, its own schema on another server.
"""

import argparse
import asyncio
import json
import os
from typing import Any

from bench.markdown import table
from bench.runtime.app import app
from bench.runtime.crowd import idle_crowd
from bench.runtime.lateness import beside_a_drain, beside_a_slow_job
from bench.runtime.stopping import stopped_under_load
from bench.runtime.waking import link_half_open, listener_killed
from bench.runtime.workers import Scene, say
from holdfast_lab.bench.place import scratch_place

PARTS = ("lateness", "stopping", "waking", "crowd")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.runtime", description=__doc__)
    parser.add_argument("--url", help="PostgreSQL server to measure on (default: an embedded one)")
    parser.add_argument("--seconds", type=float, default=60, help="length of the slow job (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="how often to send SIGTERM (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part; may be repeated")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


async def measure(chosen: argparse.Namespace, scene: Scene) -> dict[str, Any]:
    parts = chosen.only or PARTS
    figures: dict[str, Any] = {}
    if "lateness" in parts:
        figures[f"beside a job of {chosen.seconds:g} s"] = await beside_a_slow_job(scene, chosen.seconds)
        figures["beside a drain at full speed"] = await beside_a_drain(scene, chosen.seconds / 2)
    if "stopping" in parts:
        figures["SIGTERM under load"] = await stopped_under_load(scene, chosen.rounds)
    if "waking" in parts:
        figures["listener killed"] = await listener_killed(scene)
        figures["listener's link half-open"] = await link_half_open(scene)
    if "crowd" in parts:
        figures["workers that idle"] = await idle_crowd(scene)
    return figures


def tables(server: dict[str, Any], figures: dict[str, Any]) -> str:
    rows, remarks = [], []
    for scenario, measured in figures.items():
        for name, value in measured.items():
            if isinstance(value, dict) and "p50" in value:
                times = (f"{value[share]:,.1f}" for share in ("p50", "p99", "max"))
                rows.append([scenario, name, f"{value['count']}", *times])
            else:
                remarks.append(f"- {scenario}: {name}: {value:,}")
    title = "PostgreSQL {postgresql}, {cores} cores, load average {load}".format(**server)
    return "\n\n".join([table(title, ["", "ms", "number", "p50", "p99", "max"], rows), "\n".join(remarks)])


async def main() -> None:
    chosen = arguments()
    say("preparing PostgreSQL")
    async with scratch_place(chosen.url) as place:
        app.settings = app.settings.model_copy(update={"store": place.url, "db_schema": place.schema})
        async with app:
            load_before = os.getloadavg()[0]
            figures = await measure(chosen, Scene(place))
        server = {
            "postgresql": await place.connection.fetchval("SHOW server_version"),
            "cores": os.cpu_count(),
            # The machine's other load affects every figure here.
            "load": f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        }
    print(json.dumps({"server": server, **figures}, indent=1) if chosen.json else tables(server, figures))


if __name__ == "__main__":
    asyncio.run(main())
