"""Commands that other distributions add to `holdfast`: functions in the entry-point group `holdfast.commands`."""

from collections.abc import Collection

import typer

from holdfast.cli.errors import one_line
from holdfast.cli.output import warn
from holdfast.domain.errors import HoldfastError, InvalidInput

_GROUP = "holdfast.commands"
# Commands of the laboratory, which the documentation mentions and no package index has.
_LABORATORY = ("bench", "faults")


def add_plugins(commands: typer.Typer, own: Collection[str], wanted: str | None) -> None:
    """Add the wanted command. If none has that name, add all of them, for the list of commands.

    Raise an error if the wanted command cannot be loaded. For any other command, only warn.
    """
    # This import takes a tenth of a short command's time, so Holdfast's own commands skip it.
    from importlib.metadata import entry_points

    found = [each for each in entry_points(group=_GROUP) if each.name not in own]
    for each in [each for each in found if each.name == wanted] or found:
        try:
            function = each.load()
        except Exception as error:
            distribution = each.dist.name if each.dist else "another distribution"
            reason = one_line(f"{type(error).__name__}: {error}")
            line = f"the command {each.name} of {distribution} cannot be loaded: {reason}"
            if each.name == wanted:
                raise HoldfastError(line) from error
            warn(line)
        else:
            commands.command(each.name)(function)
    if wanted in _LABORATORY and wanted not in (each.name for each in found):
        raise InvalidInput(
            f"{wanted} is a command of holdfast-lab, which is not installed; from a clone of Holdfast, run: "
            "pip install /path/to/holdfast/lab"
        )
