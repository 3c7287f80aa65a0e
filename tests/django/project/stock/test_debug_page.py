"""What Django's debug page and error mails show of Holdfast's frames."""

import asyncio
import re
import sys
from collections.abc import Callable
from unittest.mock import patch
from urllib.parse import quote

from django.db import connection, connections
from django.test import TransactionTestCase, override_settings
from django.views.debug import ExceptionReporter

from holdfast.django import app

PASSWORD = connections.settings["default"]["PASSWORD"]


@override_settings(DEBUG=True)
class DebugPageTest(TransactionTestCase):
    def page(self, call: Callable[[], object]) -> str:
        try:
            call()
        except Exception:  # noqa: BLE001 - whatever it is, its page must not have the password
            kind, error, trace = sys.exc_info()
        else:
            self.fail("did not raise")
        page = ExceptionReporter(None, kind, error, trace).get_traceback_html()
        self.assertIn("holdfast", page)
        return page

    def assert_no_password(self, page: str) -> None:
        shown = {page[max(0, at.start() - 200) : at.end()] for at in re.finditer("open(%20| |[+])sesame", page)}
        self.assertEqual(shown, set())

    def test_no_error_shows_the_password(self) -> None:
        for call in (
            lambda: app.sync.enqueue("add", object()),
            lambda: app.sync.enqueue("add", "a", conn=object()),  # type: ignore[call-overload]
            lambda: app.sync.jobs.get("not an id"),
            lambda: app.sync.wait("00000000-0000-0000-0000-000000000000", "0s"),
            lambda: app.sync.run(lambda: app.schedules.save("x", "never", "add")),
        ):
            with self.subTest(call=call):
                self.assert_no_password(self.page(call))

    def test_no_missing_schema_shows_the_password(self) -> None:
        with patch.object(app, "settings", app.settings.changed(db_schema="elsewhere")):
            app.sync.close()
            for call in (lambda: app.sync.enqueue("add", "a"), lambda: app.sync.run(app.jobs_of_nothing)):
                with self.subTest(call=call):
                    self.assert_no_password(self.page(call))
        app.sync.close()

    def test_an_unreachable_server_does_not_show_the_password(self) -> None:
        async def work() -> None:
            async with app:
                pass

        app.sync.close()
        with patch.dict(connections.settings["default"], {"HOST": "127.0.0.1", "PORT": "1"}):
            for call in (
                lambda: app.sync.wait("00000000-0000-0000-0000-000000000000", "0s"),
                lambda: app.sync.migrate(),
                lambda: asyncio.run(work()),
            ):
                with self.subTest(call=call):
                    self.assert_no_password(self.page(call))
        app.sync.close()

    def test_no_repr_shows_the_password(self) -> None:
        self.assertIn(quote(PASSWORD, safe=""), app.url)
        for each in (app, app.settings, app._framework, app.sync, connection):
            self.assertNotIn("sesame", repr(each))
