"""The setting HOLDFAST of a Django project, and the address of its database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connections

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.domain.url import database_url
from holdfast.settings import GivenSettings

_OWN = ("APP", "DATABASE", "SCHEMA")
NAMES = (*_OWN, *(name.upper() for name in GivenSettings.__annotations__))
# What both psycopg and asyncpg know. The rest is about Django's own connections, or about libpq.
_OPTIONS = (
    "service", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs", "options", "application_name",
    "krbsrvname", "gsslib",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Configuration:
    app: str = "holdfast.django:app"
    alias: str = "default"
    schema: str | None = None
    given: Mapping[str, object] = field(default_factory=dict)
    """Settings of Holdfast, by their names in code."""

    @classmethod
    def read(cls, setting: Mapping[str, Any]) -> "Configuration":
        """Leave out what is unknown; `problems` names it."""
        given = {name.lower(): value for name, value in setting.items() if name in NAMES and name not in _OWN}
        own = {"app": setting.get("APP"), "alias": setting.get("DATABASE"), "schema": setting.get("SCHEMA")}
        return cls(**{name: value for name, value in own.items() if value is not None}, given=given)

    def configure(self, app: Holdfast, store: str | None) -> None:
        """Raise InvalidInput if a value is wrong."""
        called = {"db_schema": "SCHEMA", **{name: name.upper() for name in self.given}}
        called = {name: f'HOLDFAST["{key}"]' for name, key in called.items()}
        app.settings = app.settings.changed(called=called, store=store, db_schema=self.schema, **self.given)


def is_postgresql(alias: str) -> bool:
    return alias in connections and bool(connections[alias].vendor == "postgresql")


def url_of(alias: str) -> str:
    """The address of one of Django's databases, which its tests change."""
    if not is_postgresql(alias):
        raise InvalidInput(f'HOLDFAST["DATABASE"]: {alias!r} is not a PostgreSQL database of this project')
    return url_from(connections.settings[alias])


def url_from(database: Mapping[str, Any]) -> str:
    options = database.get("OPTIONS") or {}
    query = {name: str(options[name]) for name in _OPTIONS if options.get(name) not in (None, "")}
    if role := options.get("assume_role"):
        query["role"] = role
    keys = ("HOST", "PORT", "USER", "PASSWORD", "NAME")
    host, port, user, password, name = (str(database.get(key) or "") for key in keys)
    return database_url(host, port, user, password, name, query)
