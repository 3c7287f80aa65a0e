"""The command `holdfast`, one file per command.

Commands import the engine inside their functions and not at the top of their files, so that `holdfast --help` answers
at once.
"""

import gc
import io
import sys
from typing import Annotated

import typer

from holdfast.cli import jobs, rows, runs, schedules, subscriptions
from holdfast.cli.bench import bench
from holdfast.cli.declare import declare
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.enqueue import enqueue
from holdfast.cli.errors import explained
from holdfast.cli.faults import faults
from holdfast.cli.migrate import migrate
from holdfast.cli.settings import settings
from holdfast.cli.tick import tick
from holdfast.cli.worker import worker

_DEBUG = "--debug"

commands = typer.Typer(
    help="Durable jobs for Python services on PostgreSQL.",
    epilog="Start with `holdfast demo`. The store can also be named in the environment, as HOLDFAST_STORE.",
    add_completion=False,
    # Plain help: drawing boxes with rich takes longer than all the rest.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands.command()(demo)
commands.command()(worker)
commands.command()(tick)
commands.command()(enqueue)
commands.add_typer(jobs.commands, name="jobs")
commands.add_typer(schedules.commands, name="schedules")
commands.add_typer(runs.commands, name="runs")
commands.add_typer(subscriptions.commands, name="subscriptions")
commands.add_typer(rows.commands, name="rows")
commands.command()(migrate)
commands.command()(declare)
commands.command()(doctor)
commands.command()(settings)
commands.command()(bench)
commands.command()(faults)


@commands.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"holdfast {version_of('holdfast')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The entry point: any error is one line on stderr, and never a traceback unless --debug asks for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character is no reason to fail.
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:]
    debug = _DEBUG in arguments
    if debug:
        # Whoever adds it to a command adds it at the end, and click wants it before the command's name.
        arguments = [_DEBUG, *(argument for argument in arguments if argument != _DEBUG)]
    command = typer.main.get_command(commands)
    try:
        sys.exit(command.main(arguments, prog_name="holdfast", standalone_mode=False))
    except Exception as error:
        if debug:
            raise
        explanation = explained(error)
        typer.echo(f"holdfast: {explanation.line}", err=True)
        sys.exit(explanation.exit_code)
    finally:
        # Or the interpreter, at its end, would look through all that was imported: a tenth of a short command.
        gc.freeze()
