"""Finds the tables that a run writes to, as far as its SQL shows, and which of these no observer reads."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_TABLE = rf"(?:(?P<schema>{_NAME})\s*\.\s*)?(?P<table>{_NAME})"
# The SET and FROM at the end exclude FOR UPDATE, DO UPDATE and COPY … TO.
_WRITES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:INSERT\s+INTO|MERGE\s+INTO|DELETE\s+FROM|TRUNCATE)\s+(?:TABLE\s+)?(?:ONLY\s+)?{_TABLE}",
        rf"\bUPDATE\s+(?:ONLY\s+)?{_TABLE}(?:\s*\*)?(?:\s+(?:AS\s+)?(?!SET\b){_NAME})?\s+SET\b",
        rf"\bCOPY\s+{_TABLE}\s*(?:\([^)]*\)\s*)?FROM\b",
    )
]
# Names inside strings and comments are not tables.
_TEXT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)


class Table(NamedTuple):
    schema: str | None
    name: str

    @classmethod
    def of(cls, name: str) -> "Table":
        """Parse a name as `Tables` takes it: exact, and optionally with its schema."""
        schema, _, table = name.rpartition(".")
        return cls(schema or None, table)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def may_be(self, other: "Table") -> bool:
        return self.name == other.name and (None in (self.schema, other.schema) or self.schema == other.schema)


def written(statements: Iterable[str]) -> set[Table]:
    tables = set()
    for sql in statements:
        bare = _TEXT.sub(" ", sql)
        for pattern in _WRITES:
            for found in pattern.finditer(bare):
                schema = None if found["schema"] is None else _read(found["schema"])
                tables.add(Table(schema, _read(found["table"])))
    return tables


def unobserved(
    tables: Iterable[Table], named: Collection[Table], read: Iterable[str], own_schema: str
) -> Iterator[Table]:
    """Tables that are neither named nor anywhere in the observers' SQL. Holdfast's own tables are compared as jobs."""
    seen = "\n".join(read)
    for table in sorted(tables, key=str):
        is_read = re.search(rf"(?<![\w$]){re.escape(table.name)}(?![\w$])", seen, re.IGNORECASE)
        if table.schema != own_schema and not is_read and not any(table.may_be(each) for each in named):
            yield table


def _read(name: str) -> str:
    """The name as the server reads it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
