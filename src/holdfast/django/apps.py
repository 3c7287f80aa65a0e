"""What Django loads when "holdfast.django" is one of INSTALLED_APPS."""

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules, import_string

from holdfast.app import Holdfast
from holdfast.django.checks import models_elsewhere, problems, registered_elsewhere
from holdfast.django.configuration import Configuration, is_postgresql
from holdfast.django.framework import DjangoFramework
from holdfast.django.migrating import empty_with_flush, install
from holdfast.domain.errors import InvalidInput


class HoldfastConfig(AppConfig):
    name = "holdfast.django"
    label = "holdfast"

    def ready(self) -> None:
        setting = getattr(settings, "HOLDFAST", {})
        configuration = Configuration.read(setting if isinstance(setting, Mapping) else {})
        self.address = configuration.app
        self.alias = configuration.alias
        self.problems = problems(setting)
        self.app = _found(configuration.app)
        self.app._framework = DjangoFramework(configuration.alias)
        store = self.app._framework.store_url(self.app.settings.store) if is_postgresql(self.alias) else None
        try:
            configuration.configure(self.app, store)
        except InvalidInput as error:
            self.problems.append(Error(str(error), id="holdfast.E002"))
            self.app.settings = self.app.settings.changed(store=store)
        post_migrate.connect(self._migrated, sender=self)
        connection_created.connect(self._connected)
        autodiscover_modules("jobs")

    def _migrated(self, *, using: str, verbosity: int, plan: object = None, **options: Any) -> None:  # noqa: ANN401
        if using != self.alias or not is_postgresql(using):
            return
        # `flush` has no plan.
        if plan is not None:
            install(self.app, verbosity, options.get("stdout"))

    def _connected(self, connection: Any, **_: object) -> None:  # noqa: ANN401
        if connection.alias == NO_DB_ALIAS:
            # Django is about to create or drop a test database, which must not be in use then.
            self.app.sync.close()
        elif connection.alias == self.alias and connection.vendor == "postgresql":
            empty_with_flush(self.app, connection)


@register("holdfast")
def check_setting(app_configs: object, **options: object) -> list[CheckMessage]:  # noqa: ARG001
    config = apps.get_app_config("holdfast")
    return [*config.problems, *registered_elsewhere(config.address, config.app), *models_elsewhere(config.alias)]


def _found(address: str) -> Holdfast:
    try:
        found = import_string(address.replace(":", "."))
    except ImportError as error:
        raise ImproperlyConfigured(f'HOLDFAST["APP"]: {error}') from error
    if not isinstance(found, Holdfast):
        raise ImproperlyConfigured(f'HOLDFAST["APP"]: {address} is a {type(found).__name__}, not a Holdfast app')
    return found
