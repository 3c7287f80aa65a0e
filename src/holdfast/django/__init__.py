"""Holdfast in a Django project: add "holdfast.django" to INSTALLED_APPS.

`app` is the project's app, unless HOLDFAST["APP"] names another. Handlers live in the `jobs.py` of each installed app.
"""

from django.core.exceptions import ImproperlyConfigured

from holdfast.app import Holdfast
from holdfast.django.framework import DjangoFramework
from holdfast.domain.errors import InvalidInput

__all__ = ["app"]

try:
    app = Holdfast()
except InvalidInput as error:
    raise ImproperlyConfigured(str(error)) from None
app._framework = DjangoFramework("default")
