"""`python -m bench.faults_of_peers`: applies the judge of `holdfast faults` to PgQueuer, Procrastinate and awa-pg.

`run` runs the cases on one peer after another, with the same faults for each, and stores the judge's findings; `report`
writes the table. `python -m bench.peers setup` installs the peers.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bench.faults_of_peers import table
from bench.faults_of_peers.cases import CASES
from bench.faults_of_peers.running import run as run_case
from bench.faults_of_peers.systems import HERE, systems
from bench.peers.environments import Environments, SetupError
from bench.peers.facts import machine
from holdfast.domain.errors import HoldfastError

_T = TypeVar("_T")
_RESULTS = HERE / "results" / "results.json"
_TABLE = HERE / "results" / "table.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults_of_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--environments", type=Path, help="where the peers are installed (default: the user's cache)")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the cases that are not in the results yet")
    run.add_argument("--cases", default=",".join(case.name for case in CASES), help="default: %(default)s")
    run.add_argument("--only", default=",".join(systems()), help="default: %(default)s")
    run.add_argument("--seed", type=int, default=5)
    run.add_argument("--again", action="store_true", help="also repeat cases that are in the results")
    report = commands.add_parser("report", help="write the table")
    report.add_argument("--out", type=Path, default=_TABLE, help="default: %(default)s")
    return parser.parse_args()


def run(options: argparse.Namespace, environments: Environments) -> None:
    results = _read(options.results)
    for case in _chosen(options.cases, {case.name: case for case in CASES}):
        for system in _chosen(options.only, dict(systems())):
            if why := environments.missing(system.peer):
                raise SetupError(f"{system.peer.name}: {why}")
            key = f"{case.name} {system.slug} {options.seed}"
            if key in results["runs"] and not options.again:
                continue
            say(f"{key}: {case.title}")
            found = asyncio.run(_until_stopped(run_case(case, system, options.seed, environments, say)))
            # Another run may have written to the file in the meantime.
            results = _read(options.results)
            results["runs"][key] = found
            results["machine"] = machine()
            results["installed"] |= {system.slug: environments.versions(system.peer) or system.peer.version}
            options.results.parent.mkdir(exist_ok=True)
            options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            say(f"{key}: {found['violations'] or 'no violation'}, {found['figures']}, {found['seconds']} s")


async def _until_stopped(running: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Treat SIGTERM like Ctrl-C, so that no workers and no server are left behind."""
    task = asyncio.ensure_future(running)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _read(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"runs": {}, "installed": {}, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else empty
    return found


def _chosen(names: str, known: dict[str, _T]) -> list[_T]:
    words = [word.strip() for word in names.split(",") if word.strip()]
    if unknown := set(words) - set(known):
        raise SetupError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return [known[word] for word in words]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    options = arguments()
    environments = Environments(options.environments.resolve()) if options.environments else Environments.default()
    try:
        if options.command == "run":
            run(options, environments)
        else:
            options.out.write_text(table.markdown(_read(options.results)))
    except (SetupError, HoldfastError, OSError) as error:
        sys.exit(f"error: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped; run again with the same results to continue")


if __name__ == "__main__":
    main()
