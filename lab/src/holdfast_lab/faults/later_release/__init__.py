"""The release after this one: the same, with the migrations of this folder, which this one does not know."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.store.postgres import migrate, sql_files
from holdfast.store.postgres.sql_files import Migration, newest_version, statement_in

IN_LABORATORY = "FAULTS_LATER_RELEASE"
"""Set where a store is the laboratory's own: no release knows one that was migrated by this."""

_HERE = Path(__file__).parent
_of_this_release = sql_files.migrations
_NEWEST = newest_version()


def migrations(schema: str) -> Iterator[Migration]:
    """Of both releases, in their order."""
    yield from _of_this_release(schema)
    for number, path in enumerate(sorted(_HERE.glob("*.sql")), start=_NEWEST + 1):
        yield Migration(number, path.stem, statement_in(_HERE, path.stem, schema))


def take_over() -> None:
    """This process is of the later release from now on."""
    for module in (sql_files, migrate):
        vars(module)["migrations"] = migrations
