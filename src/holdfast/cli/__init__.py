"""The `holdfast` command, with one file per noun.

Commands import the engine inside their functions, not at the top of the file, which keeps `holdfast --help` fast. Other
distributions add commands through entry points (`plugins.py`).
"""

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import jobs, rows, runs, schedules, subscriptions
from holdfast.cli.declare import declare
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.enqueue import enqueue
from holdfast.cli.errors import as_called, explained
from holdfast.cli.migrate import migrate
from holdfast.cli.plugins import add_plugins
from holdfast.cli.settings import settings
from holdfast.cli.worker import tick, worker

_DEBUG = "--debug"

commands = typer.Typer(
    help="Durable jobs for Python services on PostgreSQL.",
    epilog="Start with `holdfast demo`. Set HOLDFAST_STORE instead of passing --store to each command.",
    add_completion=False,
    # Plain help: drawing boxes with rich takes longer than everything else.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "worker": worker,
    "tick": tick,
    "enqueue": enqueue,
    "migrate": migrate,
    "declare": declare,
    "doctor": doctor,
    "settings": settings,
}
_NOUNS = {
    "jobs": jobs.commands,
    "schedules": schedules.commands,
    "runs": runs.commands,
    "subscriptions": subscriptions.commands,
    "rows": rows.commands,
}
for _name, _function in _COMMANDS.items():
    commands.command(_name)(_function)
for _name, _noun in _NOUNS.items():
    commands.add_typer(_noun, name=_name)


@commands.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback if a command fails.")] = False,  # noqa: ARG001
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"holdfast {version_of('holdfast')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None, name: str = "holdfast") -> None:
    """Run the command line. Report an error as one line on stderr, or as a traceback with --debug.

    `arguments` default to those of the process. `name` is how the user calls it.
    """
    # A stream that was closed by the caller is None here. Discard what is written to it.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Replace a character that the terminal cannot show instead of failing.
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = _DEBUG in arguments
    if debug:
        # People add it at the end, but click accepts it only before the command's name.
        arguments = [_DEBUG, *(argument for argument in arguments if argument != _DEBUG)]
    own = {**_COMMANDS, **_NOUNS}
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        if wanted not in own:
            add_plugins(commands, own, wanted)
        command = typer.main.get_command(commands)
        sys.exit(command.main(list(arguments), prog_name=name, standalone_mode=False))
    except Exception as error:
        if debug:
            raise
        explanation = explained(error)
        typer.echo(f"holdfast: {as_called(explanation.line, name)}", err=True)
        sys.exit(explanation.exit_code)
    finally:
        # Otherwise the interpreter collects garbage over everything imported at exit: a tenth of a short command.
        gc.freeze()
