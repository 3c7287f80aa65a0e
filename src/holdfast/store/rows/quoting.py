"""Quotes the names and constants of an application's table for SQL."""

import re

from holdfast.domain.errors import InvalidInput

_LONGEST_NAME_BYTES = 63
# A parameter of ours would be confused with it; see statement.py.
_PARAMETER = re.compile(r"\$\d")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def check_identifier(what: str, name: object) -> str:
    """Check a table or column name, which must be exactly as PostgreSQL has it: `lockedUntil` is not `lockeduntil`."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{what}: {name!r} is not a name; give it as text, exactly as PostgreSQL has it")
    if "\0" in name or _PARAMETER.search(name):
        raise InvalidInput(f"{what}: {name!r} has a NUL character or a $ before a digit; such a name cannot be used")
    if len(name.encode()) > _LONGEST_NAME_BYTES:
        raise InvalidInput(f"{what}: {name!r} is longer than the {_LONGEST_NAME_BYTES} bytes that PostgreSQL keeps")
    return name


def check_sql(what: str, text: object) -> str:
    """Check a condition or query that the developer wrote. It is trusted, but it cannot have parameters."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what}: {text!r} is not SQL text")
    if _PARAMETER.search(text) or "\0" in text:
        raise InvalidInput(f"{what}: has a parameter such as $1, which would get no value; write a constant")
    bare = _QUOTED.sub(" ", text)
    if any(mark in bare for mark in (";", "--", "/*")):
        raise InvalidInput(f"{what}: has a ; or a comment; give one expression or query without them")
    if not _is_closed(bare):
        raise InvalidInput(f"{what}: has a parenthesis or a quote without a match")
    return text.strip()


def _is_closed(bare: str) -> bool:
    """Whether the text stays within the parentheses that will be put around it."""
    depth = 0
    for character in bare:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0 or character in "'\"":
            return False
    return not depth


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'" if "\\" not in value else "E'" + doubled.replace("\\", "\\\\") + "'"
