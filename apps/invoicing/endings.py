"""Ends a process that failed: one line on stderr, and an exit code."""

import sys

import asyncpg

from apps.invoicing.settings import Misconfigured
from holdfast.errors import AccessRefused, HoldfastError, InvalidInput

FORESEEN = (Misconfigured, HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

_FAILED, _MISCONFIGURED = 1, 2


def tell(error: Exception) -> int:
    """Print the error and return the exit code: 2 for a wrong configuration, 1 for a failure while running."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, InvalidInput | AccessRefused):
        line = _by_its_variable(line)
    sys.stderr.write(f"invoicing: {line}\n")
    return _MISCONFIGURED if isinstance(error, Misconfigured | InvalidInput | AccessRefused) else _FAILED


def _by_its_variable(line: str) -> str:
    """Name the variable. Holdfast names its own variables; anything else is about the store, which is DATABASE_URL."""
    if "HOLDFAST_" in line:
        return line
    told = line.removeprefix("store: ").replace("`holdfast migrate", "`HOLDFAST_STORE=$DATABASE_URL holdfast migrate")
    return f"DATABASE_URL: {told.removesuffix(' with --store or --app')}"
