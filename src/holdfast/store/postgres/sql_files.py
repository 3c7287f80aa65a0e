"""Loads the .sql files and replaces `holdfast` with the configured schema, the only text ever pasted into SQL."""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.domain.limits import check_schema

if TYPE_CHECKING:
    import asyncpg

_HERE = Path(__file__).parent
_SCHEMA_PREFIX = re.compile(r"\bholdfast\.")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


class Fetch(Protocol):
    """Runs a verb: sql/<verb>.sql, or the function of that name."""

    async def __call__(self, verb: str, *arguments: object) -> "list[asyncpg.Record]": ...


def quoted(schema: str) -> str:
    return f'"{check_schema(schema)}"'


@cache
def statement(verb: str, schema: str, arguments: int = 0) -> str:
    """Return the statement of sql/<verb>.sql, or a call of the function <verb> with this many arguments."""
    if (_HERE / "sql" / f"{verb}.sql").is_file():
        return statement_in(_HERE / "sql", verb, schema)
    if not (_HERE / "schema" / "functions" / f"{verb}.sql").is_file():
        raise LookupError(f"there is neither a statement nor a function {verb!r}")
    places = ", ".join(f"${number}" for number in range(1, arguments + 1))
    return f"SELECT * FROM {quoted(schema)}.{verb}({places})"  # noqa: S608 - the schema is checked and quoted


@cache
def statement_in(folder: Path, name: str, schema: str) -> str:
    """Return the statement of <name>.sql in this folder, without its comments."""
    text = (folder / f"{name}.sql").read_text(encoding="utf-8")
    return in_schema(_COMMENT.sub("", text), schema).strip()


def in_schema(sql: str, schema: str) -> str:
    return _SCHEMA_PREFIX.sub(lambda _: f"{quoted(schema)}.", sql)
