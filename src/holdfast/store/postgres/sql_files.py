"""Loads the .sql files and puts the configured schema in place of `holdfast`, the only text ever pasted into SQL."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    """Runs sql/<verb>.sql."""

    async def __call__(self, verb: str, *arguments: object) -> "list[asyncpg.Record]": ...


def quoted(schema: str) -> str:
    return f'"{check_schema(schema)}"'


@cache
def statement(verb: str, schema: str) -> str:
    """The statement of sql/<verb>.sql without its comments."""
    return statement_in(_HERE / "sql", verb, schema)


@cache
def statement_in(folder: Path, name: str, schema: str) -> str:
    """The same for the statements of another part of Holdfast, which are in a folder of its own."""
    text = (folder / f"{name}.sql").read_text(encoding="utf-8")
    return _in_schema(_COMMENT.sub("", text), schema).strip()


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


def migrations(schema: str) -> Iterator[Migration]:
    for path in sorted((_HERE / "migrations").glob("[0-9]*.sql")):
        version, _, name = path.stem.partition("_")
        yield Migration(int(version), name, _in_schema(path.read_text(encoding="utf-8"), schema))


def newest_version() -> int:
    return max(migration.version for migration in migrations("holdfast"))


def _in_schema(sql: str, schema: str) -> str:
    return _SCHEMA_PREFIX.sub(lambda _: f"{quoted(schema)}.", sql)
