"""`python -m apps.invoicing [background|tick|api|demo]`."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from apps.invoicing.endings import FORESEEN, tell
from apps.invoicing.settings import Misconfigured, Settings
from holdfast.types import TickReport

_MODES = {
    "background": "the worker, until SIGTERM or Ctrl-C (the default)",
    "tick": "one pass over the worker's runners, with a report: for cron jobs",
    "api": "the HTTP service",
    "demo": "everything together, for half a minute, on a temporary PostgreSQL",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misconfigured(message)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 1 for a failure while running, 2 for a configuration it cannot start with."""
    try:
        mode, as_json = _parsed(arguments)
        return _runs(mode, as_json=as_json)
    except FORESEEN as error:
        return tell(error)


def _parsed(arguments: Sequence[str]) -> tuple[str, bool]:
    parser = _Parser(
        prog="python -m apps.invoicing",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join(f"{name:12}{meaning}" for name, meaning in _MODES.items()),
        epilog="Environment variables set everything else: see README.md next to this program.",
    )
    parser.add_argument("mode", nargs="?", default="background", choices=_MODES)
    parser.add_argument("--json", action="store_true", help="print the report of a tick as JSON")
    given = parser.parse_args(arguments)
    if given.json and given.mode != "tick":
        raise Misconfigured("--json needs the mode tick")
    return given.mode, given.json


def _runs(mode: str, *, as_json: bool) -> int:
    """Run the mode. Its imports happen here, so `--help` does not wait for a web framework."""
    if mode == "demo":
        from apps.invoicing.demo import run_demo

        return run_demo()
    settings = Settings.load()
    if mode == "api":
        from apps.invoicing.api import serve

        return serve(settings)
    from apps.invoicing import worker

    if mode == "tick":
        report = worker.run_once(settings)
        (_print_json if as_json else _print_table)(report)
        return 0 if report.is_fine and report.is_complete else 1
    return worker.run_background(settings)


def _print_json(report: TickReport) -> None:
    from apps.invoicing.reports import turns

    told = {
        "ok": report.is_fine and report.is_complete,
        "seconds": round(report.seconds, 3),
        "runners": [asdict(each) for each in turns(report)],
    }
    sys.stdout.write(json.dumps(told) + "\n")


def _print_table(report: TickReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from apps.invoicing.reports import turns

    table = Table(box=None, pad_edge=False)
    for heading in ("runner", "processed", "failed", "seconds", "notes"):
        # Fold long cells instead of cutting them, because errors must stay readable.
        table.add_column(heading, justify="left" if heading in ("runner", "notes") else "right", overflow="fold")
    for turn in turns(report):
        style = "red" if turn.error else ""
        table.add_row(
            turn.runner, str(turn.processed), str(turn.failed), f"{turn.seconds:.2f}", turn.notes, style=style
        )
    Console(markup=False, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
