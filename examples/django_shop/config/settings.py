"""Settings of the shop. The database comes from the usual variables of PostgreSQL's own tools."""

import os

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for development")
DEBUG = "SHOP_SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django.contrib.contenttypes", "holdfast.django", "shop"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "shop"),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
        # Keep connections between requests and between jobs, and check them before use.
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}

HOLDFAST = {"CONCURRENCY": 8}
