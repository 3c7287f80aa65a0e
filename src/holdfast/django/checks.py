"""Django's system checks of the setting HOLDFAST, and of what the project does with it."""

import difflib
from collections.abc import Mapping

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router
from django.utils.module_loading import module_has_submodule

from holdfast import django
from holdfast.app import Holdfast
from holdfast.django.configuration import NAMES, is_postgresql


def problems(setting: object) -> list[CheckMessage]:
    if not isinstance(setting, Mapping):
        hint = 'Write HOLDFAST = {"CONCURRENCY": 8}, or leave it out.'
        return [Error(f"HOLDFAST is a {type(setting).__name__}, not a dictionary.", hint, id="holdfast.E005")]
    found = [_unknown(name) for name in setting if name not in NAMES]
    alias = setting.get("DATABASE", "default")
    if alias not in connections:
        found.append(Error(f'HOLDFAST["DATABASE"]: DATABASES has no {alias!r}.', id="holdfast.E003"))
    elif not is_postgresql(alias):
        hint = 'Name the alias of a PostgreSQL database: HOLDFAST = {"DATABASE": "…"}. Until then nothing can enqueue.'
        found.append(Warning(f"Database {alias!r} is not PostgreSQL, which jobs need.", hint, id="holdfast.W001"))
    return found


def _unknown(name: object) -> CheckMessage:
    close = difflib.get_close_matches(str(name).upper(), NAMES, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"It knows {', '.join(NAMES)}."
    return Error(f"HOLDFAST has no setting {name!r}.", hint, id="holdfast.E001")


def registered_elsewhere(address: str, app: Holdfast) -> list[CheckMessage]:
    """Handlers of the app that the project has replaced with its own."""
    kinds = ", ".join(sorted(handler.kind for handler in django.app.handlers))
    if app is django.app or not kinds:
        return []
    line = f'Handlers of holdfast.django.app never run, because HOLDFAST["APP"] is {address!r}: {kinds}.'
    return [Error(line, f"Register them with {address}.", id="holdfast.E004")]


def models_elsewhere(alias: str) -> list[CheckMessage]:
    """A choice of another database for the jobs. An application with handlers usually enqueues with its own models."""
    if alias == "default":
        return []
    for config in apps.get_app_configs():
        models = config.get_models() if module_has_submodule(config.module, "jobs") else ()
        for model in models:
            home = router.db_for_write(model)
            if home != alias:
                line = (
                    f"Jobs are in the database {alias!r}, but {model._meta.label} is in {home!r}: no transaction "
                    "includes both."
                )
                hint = (
                    'Move the jobs there with HOLDFAST["DATABASE"], or silence this check and see "Two databases" in '
                    "Holdfast's page about Django."
                )
                return [Warning(line, hint, id="holdfast.W002")]
    return []
