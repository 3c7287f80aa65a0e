"""The blocks of docs/django.md are the files of a project, whose tests pass and whose worker works."""

import re
from pathlib import Path

import pytest

from holdfast.settings import GivenSettings
from tests.databases import Servers
from tests.django.projects import project_in

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text(encoding="utf-8")

# What `django-admin startproject` and `startapp` write, as far as the page needs it.
SETTINGS = """
import os

SECRET_KEY = "of a test"
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CONTRIB = ["admin", "auth", "contenttypes", "sessions", "messages"]
INSTALLED_APPS = [*(f"django.contrib.{name}" for name in CONTRIB), "shop"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "USER": os.environ["PGUSER"],
    }
}
"""
URLS = """
from django.urls import path

from shop.views import place_order

urlpatterns = [path("orders/", place_order)]
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"manage.py": MANAGE, "settings.py": SETTINGS, "urls.py": URLS, "shop/__init__.py": ""}
    for name, block in re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        path = "settings.py" if name == "settings" else name
        files[path] = files.get(path, "") + block
    assert PAGE.count("```python") == 12
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.long
def test_the_project_of_the_page_works(folder: Path, servers: Servers) -> None:
    with project_in(folder, servers) as project:
        assert "Holdfast: schema" in project.manage("migrate", "--run-syncdb")
        assert "Ran 3 tests" in project.manage("test", "--noinput")
        project.manage("shell", "-c", ORDER)
        assert "succeed 2" in project.manage("holdfast", "tick")
        assert "True" in project.manage(
            "shell", "-c", "from shop.models import Order; print(Order.objects.filter(confirmed=True).count() == 2)"
        )


@pytest.mark.long
def test_the_admin_action_of_the_page_retries_dead_letters(folder: Path, servers: Servers) -> None:
    with project_in(folder, servers) as project:
        project.manage("migrate", "--run-syncdb", "--verbosity", "0")
        assert "states: dead ready dead" in project.manage("shell", "-c", RETRY)


RETRY = """
from unittest.mock import patch
from holdfast.django import app
from shop.admin import retry_dead_letters
from shop.models import Order

orders = [Order.objects.create(customer="ann@example.com") for _ in range(2)]
ids = [app.sync.enqueue("order.confirm", {"order": order.pk}, attempts=1).id for order in orders]
with patch("shop.jobs.Order", None):
    app.sync.run(lambda: app.tick(runners=["queue"]))
before = app.sync.jobs.get(ids[0]).state
retry_dead_letters(None, None, Order.objects.filter(pk=orders[0].pk))
print("states:", before, *[app.sync.jobs.get(id).state for id in ids])
"""


ORDER = """
from asgiref.sync import async_to_sync
from django.test import RequestFactory
from shop.views import place_order, place_order_async

print(place_order(RequestFactory().post("/orders/", {"customer": "ann@example.com"})))
print(async_to_sync(place_order_async)(RequestFactory().post("/orders/", {"customer": "joe@example.com"})))
"""


def test_the_settings_of_the_page_are_settings() -> None:
    (written,) = re.findall(r"without its prefix: (.*) \|$", PAGE, re.MULTILINE)
    assert {name.lower() for name in re.findall(r"`(\w+)`", written)} <= set(GivenSettings.__annotations__)
