"""`python -m apps.invoicing [background|tick|api|demo]`."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn

from apps.invoicing.endings import FORESEEN, tell
from apps.invoicing.settings import Misconfigured, Settings
from holdfast import TickReport

_MODES = {
    "background": "the worker, until SIGTERM or Ctrl-C (the default)",
    "tick": "one pass over the worker's runners, with a report: for cron and the like",
    "api": "the HTTP service",
    "demo": "everything at once, for half a minute, on a PostgreSQL of its own",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misconfigured(message)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 for what went wrong while it ran, 2 for what it cannot start with."""
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
        epilog="Everything else is set by variables: see README.md beside this program.",
    )
    parser.add_argument("mode", nargs="?", default="background", choices=_MODES)
    parser.add_argument("--json", action="store_true", help="the report of a tick as JSON")
    given = parser.parse_args(arguments)
    if given.json and given.mode != "tick":
        raise Misconfigured("--json is for the mode tick")
    return given.mode, given.json


def _runs(mode: str, *, as_json: bool) -> int:
    """What a mode needs is imported when it is known: nobody who asks for help waits for a web framework."""
    if mode == "demo":
        from apps.invoicing.demo import run_demo

        return run_demo()
    settings = Settings.load()
    if mode == "api":
        from apps.invoicing.api import serve

        return serve(settings)
    from apps.invoicing import worker

    if mode == "tick":
        _log_to_stderr(logging.WARNING)
        report = worker.run_once(settings)
        (_print_json if as_json else _print_table)(report)
        return 0 if report.is_fine and report.is_complete else 1
    _log_to_stderr(logging.INFO)
    return worker.run_background(settings)


def _log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A line for each request of a scheduler tells nobody anything.
    logging.getLogger("httpx").setLevel(logging.WARNING)


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
        # Errors are to be read: whatever is too long for its line goes on in the next.
        table.add_column(heading, justify="left" if heading in ("runner", "notes") else "right", overflow="fold")
    for turn in turns(report):
        style = "red" if turn.error else ""
        table.add_row(
            turn.runner, str(turn.processed), str(turn.failed), f"{turn.seconds:.2f}", turn.notes, style=style
        )
    Console(markup=False, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
