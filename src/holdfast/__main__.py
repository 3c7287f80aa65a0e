"""The program `holdfast`, and `python -m holdfast` for where the command is not on the path."""

import sys

from holdfast.hosting.early_stop import exit_when_told

_RUNS_JOBS = ("worker", "tick")


def main() -> None:
    if next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None) in _RUNS_JOBS:
        exit_when_told()
    # Only now, because this takes long.
    from holdfast.cli import main as run

    run()


if __name__ == "__main__":
    main()
