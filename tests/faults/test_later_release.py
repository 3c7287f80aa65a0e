"""The later release that a case migrates to while workers of this release are running."""

import os
import subprocess
import sys

import pytest

from holdfast.domain.errors import SchemaMismatch
from holdfast.store.opening import opened
from holdfast.store.postgres.schema_files import schema_files
from holdfast_lab.faults import later_release
from tests.databases import Database


def test_it_has_new_migrations_a_changed_function_and_a_new_one() -> None:
    this, later = schema_files(), later_release.later_schema_files()
    assert later.migrations[: len(this.migrations)] == this.migrations
    assert later.version == this.version + 2
    changed = {name for name, text in later.functions.items() if this.functions.get(name, text) != text}
    assert (changed, later.functions.keys() - this.functions.keys()) == ({"now"}, {"later"})


async def test_it_accepts_the_schema_that_it_has_migrated_and_this_release_does_not(database: Database) -> None:
    for _ in range(2):
        command = [sys.executable, "-m", "holdfast_lab.faults.later_release", "migrate", "--store", database.url]
        given = {**os.environ, later_release.IN_LABORATORY: "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=given)  # noqa: ASYNC221
        assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(SchemaMismatch, match="newer than this release knows"):
        async with opened(database.url):
            pass


async def test_it_cannot_migrate_by_mistake(database: Database) -> None:
    command = [sys.executable, "-m", "holdfast_lab.faults.later_release", "migrate", "--store", database.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: ASYNC221
    assert done.returncode == 1
    assert "a release that does not exist" in done.stderr
    async with opened(database.url):
        pass
