"""A project whose variables choose what the tests want to see."""

import json
import os
import sys

if "WITH_PSYCOPG2" in os.environ:
    sys.modules["psycopg"] = None  # type: ignore[assignment]

SECRET_KEY = "of a test"
USE_TZ = "WITHOUT_TIME_ZONES" not in os.environ
TIME_ZONE = "America/New_York"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["holdfast.django"] if "WITHOUT_STOCK" in os.environ else ["holdfast.django", "stock"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "USER": os.environ["PGUSER"],
        # The server of the tests wants none.
        "PASSWORD": "open sesame/7",
        # So that each job meets what the one before it left.
        "CONN_MAX_AGE": None,
        "TEST": {"NAME": f"test_{os.environ['PGDATABASE']}"},
    },
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
if '"other"' in os.environ.get("HOLDFAST_TEST_SETTING", ""):
    DATABASES["other"] = {**DATABASES["default"], "TEST": {}}
HOLDFAST = json.loads(os.environ.get("HOLDFAST_TEST_SETTING", '{"CONCURRENCY": 1, "SCHEMA": "jobs"}'))
