"""`python -m bench.layout.again --url postgresql://…`: progress on stderr, tables on stdout.

Each layout gets a database of its own on that server, which must be on this machine: what is compared first is the
processor time of its processes. The databases are dropped at the end.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

import uvloop

from bench.layout.__main__ import command_without_url
from bench.layout.again import measure, report
from bench.layout.again.layouts import LAYOUTS
from bench.layout.again.load import Place, places

PARTS = ("costs", "verbs", "drain", "two", "unvacuumed", "pinned", "idle")
DATABASE = "layout_again"
KINDS = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.layout.again", description=__doc__)
    parser.add_argument("--url", default=os.environ.get("HOLDFAST_BENCH_URL"), help="or HOLDFAST_BENCH_URL")
    parser.add_argument("--layouts", default="H,batch,cursor", help=f"of {','.join(LAYOUTS)} (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part; may be repeated")
    parser.add_argument("--batch", type=int, default=500, help="jobs per statement (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=24, help="batches per layout for costs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs per round of a drain (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of a drain (default: %(default)s)")
    parser.add_argument("--bare", action="store_true", help="no deferred jobs, dead letters and history")
    chosen = parser.parse_args()
    if not chosen.url:
        parser.error("--url is required")
    unknown = set(chosen.layouts.split(",")) - set(LAYOUTS)
    if unknown:
        parser.error(f"--layouts: there is no {', '.join(sorted(unknown))}")
    if min(chosen.batch, chosen.batches, chosen.jobs, chosen.rounds) < 1:
        parser.error("--batch, --batches, --jobs and --rounds: give 1 at least")
    return chosen


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def measure_parts(chosen: argparse.Namespace, parts: Sequence[str], opened: list[Place]) -> None:
    batch, jobs, rounds = chosen.batch, chosen.jobs, chosen.rounds
    if "costs" in parts:
        say("processor time")
        await measure.processor_time(opened, batch, 4)
        used = await measure.processor_time(opened, batch, chosen.batches)
        written = {place.layout.name: await measure.log_and_buffers(place, batch, 6) for place in opened}
        print(report.costs(used, written))
    if "verbs" in parts:
        shipped = [place for place in opened if not place.layout.files]
        print(report.verbs({place.layout.name: await measure.rare_verbs(place, batch) for place in shipped}))
    for part, workers in (("drain", 1), ("two", 2)):
        if part in parts:
            say(f"drain with {workers}")
            print(report.rates(workers, await measure.drain_rates(opened, jobs, batch, rounds, workers)))
    if "unvacuumed" in parts:
        say("drain without a vacuum")
        print(report.unvacuumed(jobs, await measure.unvacuumed(opened, jobs, batch, rounds)))
    if "pinned" in parts:
        say("drain under a pinned snapshot")
        print(report.pinned(await measure.pinned_rates(opened, jobs, batch, rounds)))


async def main() -> None:
    chosen = arguments()
    parts = chosen.only or PARTS
    layouts = [LAYOUTS[name] for name in chosen.layouts.split(",")]
    print(f"`python -m bench.layout.again --url … {command_without_url(sys.argv[1:])}`\n")
    say("preparing")
    async with places(chosen.url, DATABASE, layouts, KINDS, history=not chosen.bare) as opened:
        await measure_parts(chosen, parts, opened)
    if "idle" in parts:
        for kinds in (1, 4, 20):
            say(f"idle with {kinds} kinds")
            async with places(chosen.url, DATABASE, layouts, kinds, history=not chosen.bare) as opened:
                print(report.idle(kinds, {place.layout.name: await measure.idle_costs(place) for place in opened}))


if __name__ == "__main__":
    uvloop.run(main())
