"""The schema that this release needs: the files of schema/, which `migrate.py` installs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

_SCHEMA = Path(__file__).parent / "schema"
_FIRST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the tables, from the previous version to this one. The first version is the whole of tables.sql."""

    version: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class SchemaFiles:
    """All SQL is as in the files: for the schema `holdfast`."""

    tables: str
    first_rows: str
    migrations: tuple[Migration, ...]
    functions: Mapping[str, str]
    """The text of each function, by name."""

    @property
    def version(self) -> int:
        return self.migrations[-1].version if self.migrations else _FIRST_VERSION

    @property
    def digest(self) -> str:
        """The digest of everything that a fresh install runs."""
        return digest("".join((self.tables, *self.functions.values(), self.first_rows)))


@cache
def schema_files() -> SchemaFiles:
    return SchemaFiles(
        (_SCHEMA / "tables.sql").read_text(encoding="utf-8"),
        (_SCHEMA / "first_rows.sql").read_text(encoding="utf-8"),
        read_migrations(_SCHEMA / "migrations"),
        read_functions(_SCHEMA / "functions"),
    )


def read_migrations(folder: Path) -> tuple[Migration, ...]:
    """Read files such as `0002_tenants.sql`, in order."""
    found = []
    for path in sorted(folder.glob("[0-9]*.sql")):
        version, _, name = path.stem.partition("_")
        found.append(Migration(int(version), name, path.read_text(encoding="utf-8")))
    return tuple(found)


def read_functions(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.sql"))}


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
