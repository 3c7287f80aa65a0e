"""How a process ends that could not do what it was started for: one line, and an exit code."""

import sys

import asyncpg

from apps.invoicing.settings import Misconfigured
from holdfast import AccessRefused, HoldfastError, InvalidInput

FORESEEN = (Misconfigured, HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

_FAILED, _MISCONFIGURED = 1, 2


def tell(error: Exception) -> int:
    """The exit code: 2 for what it cannot start with, 1 for what went wrong on the way."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, InvalidInput | AccessRefused):
        line = _by_its_variable(line)
    sys.stderr.write(f"invoicing: {line}\n")
    return _MISCONFIGURED if isinstance(error, Misconfigured | InvalidInput | AccessRefused) else _FAILED


def _by_its_variable(line: str) -> str:
    """What Holdfast does not take is a variable of its own, which it names, or the store, which is called else here."""
    if "HOLDFAST_" in line:
        return line
    told = line.removeprefix("store: ").replace("`holdfast migrate`", "`HOLDFAST_STORE=$DATABASE_URL holdfast migrate`")
    return f"DATABASE_URL: {told}"
