"""Scratch databases on one server: each peer's state is built once through its interface and cloned for every run."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

_PREFIX = "holdfast_bench_peers"


def with_database(url: str, name: str) -> str:
    """Return the address of another database on the server.

    For a server on a socket, the user goes into the query: not every driver accepts an address with a user but no host.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if not parts.hostname and parts.username:
        options["user"] = parts.username
        parts = parts._replace(netloc="")
    text = urlunsplit(parts._replace(path=f"/{quote(name)}", query=urlencode(options)))
    return text if parts.netloc else text.replace(f"{parts.scheme}:/", f"{parts.scheme}:///", 1)


class Databases:
    def __init__(self, server: str) -> None:
        self._server = server
        self._prefix = f"{_PREFIX}_{secrets.token_hex(3)}"
        self._admin = psycopg.connect(server, autocommit=True)
        self._templates: dict[str, str] = {}

    def template(self, key: str, build: Callable[[str], object]) -> str:
        """Return the name of the database that `build` fills. It is built on first use."""
        if key not in self._templates:
            name = f"{self._prefix}_{len(self._templates)}"
            self._do("CREATE DATABASE {}", name)
            self._templates[key] = name
            build(with_database(self._server, name))
            with psycopg.connect(with_database(self._server, name), autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        return self._templates[key]

    @contextmanager
    def clone(self, template: str) -> Iterator[str]:
        """Yield the address of a copy, which is dropped afterwards along with any open connections."""
        name = f"{self._prefix}_run"
        self._do("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._do("CREATE DATABASE {} TEMPLATE {}", name, template)
        self._admin.execute("CHECKPOINT")
        try:
            yield with_database(self._server, name)
        finally:
            self._do("DROP DATABASE {} WITH (FORCE)", name)

    def setting(self, name: str) -> str:
        row = self._admin.execute("SELECT current_setting(%s)", [name]).fetchone()
        return str(row[0]) if row else ""

    def close(self) -> None:
        for name in self._templates.values():
            self._do("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._admin.close()

    def _do(self, statement: LiteralString, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*(sql.Identifier(name) for name in names)))
