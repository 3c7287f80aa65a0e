"""`manage.py holdfast …`: the `holdfast` command line, with the project's app."""

import argparse
import os
import sys
from collections.abc import Sequence

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, SystemCheckError

from holdfast.cli import main
from holdfast.cli.errors import BAD_INPUT
from holdfast.domain.errors import InvalidInput

_OF_DJANGO = ("--settings", "--pythonpath")


class Command(BaseCommand):
    help = "Runs a command of holdfast with the app of this project: worker, tick, jobs, schedules, doctor and more."
    requires_system_checks = ["holdfast"]  # noqa: RUF012 - as Django has it

    def run_from_argv(self, argv: list[str]) -> None:
        """As a program: with holdfast's own help, output, signals and exit codes."""
        try:
            self.check(tags=["holdfast"])
        except SystemCheckError as error:
            self.stderr.write(str(error))
            sys.exit(BAD_INPUT)
        _run(_without_django(argv[2:]), f"{os.path.basename(argv[0])} {argv[1]}")  # noqa: PTH119 - as Django has it

    def print_help(self, prog_name: str, subcommand: str) -> None:
        _run(["--help"], f"{prog_name} {subcommand}")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *, arguments: Sequence[str], **options: object) -> None:  # noqa: ARG002
        """For `call_command("holdfast", "tick")`."""
        try:
            _run(arguments, "manage.py holdfast")
        except SystemExit as end:
            if end.code:
                raise CommandError(f"holdfast {' '.join(arguments)} failed", returncode=end.code) from end


def _run(arguments: Sequence[str], name: str) -> None:
    config = apps.get_app_config("holdfast")
    os.environ["HOLDFAST_APP"] = config.address
    if arguments and not {"-h", "--help", "--store"}.intersection(arguments):
        try:
            config.app._follow_framework()
        except InvalidInput as error:
            sys.stderr.write(f"holdfast: {error}\n")
            sys.exit(BAD_INPUT)
    main(arguments, name)


def _without_django(arguments: Sequence[str]) -> list[str]:
    """What Django itself has read already."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [each for before, each in pairs if before not in _OF_DJANGO and each.partition("=")[0] not in _OF_DJANGO]
