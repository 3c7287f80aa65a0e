"""Holdfast's tables come and go with Django's: installed by `migrate`, emptied by the `flush` of tests.

Both also save what the project declares, so no event is lost that is published before the first worker starts.
"""

import asyncio
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from django.apps import apps
from django.core import mail
from django.core.management.base import CommandError
from django.db import connections

from holdfast.app import Holdfast
from holdfast.domain.errors import HoldfastError
from holdfast.store.postgres.migrate import Applied
from holdfast.store.postgres.schema_files import schema_files
from holdfast.store.postgres.sql_files import statement


def install(app: Holdfast, verbosity: int, stdout: TextIO | None) -> None:
    try:
        # In a thread, because this one may have an event loop.
        with ThreadPoolExecutor(1) as thread:
            applied = thread.submit(lambda: asyncio.run(_installed(app))).result()
    except HoldfastError as error:
        raise CommandError(f"Holdfast's tables cannot be installed: {error}") from error
    if verbosity and (applied.migrations or applied.functions):
        schema, version = app.settings.db_schema, schema_files().version
        (stdout or sys.stdout).write(f'Holdfast: schema "{schema}" is now at version {version}.\n')


async def _installed(app: Holdfast) -> Applied:
    applied = await app.migrate()
    async with app:
        await app.declare()
    return applied


def empty_with_flush(app: Holdfast, connection: Any) -> None:  # noqa: ANN401
    """Also delete all jobs when this connection flushes a test database.

    The signal `post_migrate` would miss the flushes of tests with `serialized_rollback`, which do not send it.
    """
    operations = connection.ops
    if hasattr(mail, "outbox") and "execute_sql_flush" not in vars(operations):
        flush = operations.execute_sql_flush

        def flush_and_empty(sql_list: Sequence[str]) -> None:
            flush(sql_list)
            _empty_in_tests(app, connection.alias)

        operations.execute_sql_flush = flush_and_empty


def _empty_in_tests(app: Holdfast, alias: str) -> None:
    """Delete all jobs, but only in a test: no other flush may touch jobs."""
    # A test with Django's private `available_apps` may leave out Holdfast.
    if hasattr(mail, "outbox") and apps.is_installed("holdfast.django"):
        schema = app.settings.db_schema
        with connections[alias].cursor() as cursor:
            cursor.execute(statement("empty_for_test", schema))
            # The name of the schema was checked when the settings were read.
            for sql in (
                f"UPDATE \"{schema}\".clock SET moved = '0', frozen_at = NULL",  # noqa: S608
                # Those in the code are declared again, with their first occurrence.
                f'DELETE FROM "{schema}".schedule',  # noqa: S608
                f'DELETE FROM "{schema}".subscription',  # noqa: S608
            ):
                cursor.execute(sql)
        from holdfast.django.testing import declare

        declare()
