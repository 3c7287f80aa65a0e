"""Runs manage.py of a real project, with a database of its own on a server of the tests."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.databases import Servers

ROOT = Path(__file__).parents[2]
_SECONDS = 100


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path
    url: str
    environment: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", "manage.py", *arguments]

    def having(self, **variables: str) -> "Project":
        return replace(self, environment={**self.environment, **variables})

    def manage(self, *arguments: str, code: int = 0) -> str:
        """What the command printed."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def start(self, program: list[str], output: Path) -> "subprocess.Popen[bytes]":
        with output.open("wb") as file:
            return subprocess.Popen(program, cwd=self.folder, env=self.environment, stdout=file, stderr=file)


@contextmanager
def project_in(folder: Path, servers: Servers, **variables: str) -> Iterator[Project]:
    """Holdfast's tables are not there yet."""
    with servers.get("embedded-18").fresh_database(migrated=False) as database:
        parts = conninfo_to_dict(database.url)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "DJANGO"))}
        environment |= {
            "PGDATABASE": database.name,
            "PGHOST": str(parts["host"]),
            "PGPORT": str(parts["port"]),
            "PGUSER": str(parts["user"]),
            "PYTHONPATH": str(ROOT / "src"),
            **variables,
        }
        yield Project(folder, database.url, environment)
