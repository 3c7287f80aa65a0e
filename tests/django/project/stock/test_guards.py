"""A test that may not use the database cannot do so through Holdfast's own connections either."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionDoesNotExist
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from holdfast.django import app
from holdfast.testing import in_memory


async def open_app() -> None:
    async with app:
        await app.jobs.count()


USES: dict[str, Callable[[], object]] = {
    "read": lambda: app.sync.jobs.count(),
    "wait": lambda: app.sync.wait(UUID(int=7), "0s"),
    "run": lambda: app.sync.run(lambda: app.schedules.list()),
    "enqueue": lambda: app.sync.enqueue("add", "a"),
    "open": lambda: asyncio.run(open_app()),
}


class SimpleTest(SimpleTestCase):
    def test_every_use_is_refused(self) -> None:
        for name, use in USES.items():
            with self.subTest(use=name), self.assertRaisesMessage(AssertionError, "are not allowed"):
                use()

    async def test_an_async_test_cannot_open_the_app(self) -> None:
        with self.assertRaisesMessage(AssertionError, "are not allowed"):
            await open_app()

    async def test_an_app_in_memory_is_permitted(self) -> None:
        async with in_memory(app):
            await app.enqueue("add", "a")
            self.assertEqual((await app.jobs.count())["ready"], 1)


class OtherDatabaseTest(TestCase):
    databases = {"lite"}

    def test_a_database_that_is_not_listed_is_refused(self) -> None:
        for name, use in USES.items():
            with self.subTest(use=name), self.assertRaisesMessage(AssertionError, "are not allowed"):
                use()


class BlockedTest(TransactionTestCase):
    def test_every_use_is_refused_as_pytest_django_refuses_it(self) -> None:
        def blocked(*_: object, **__: object) -> None:
            raise ConnectionDoesNotExist("use the django_db mark")

        app.sync.close()
        for name in ("wait", "run", "open"):
            with (
                self.subTest(use=name),
                patch.object(BaseDatabaseWrapper, "ensure_connection", blocked),
                self.assertRaisesMessage(ConnectionDoesNotExist, "django_db"),
            ):
                USES[name]()
        USES["open"]()
