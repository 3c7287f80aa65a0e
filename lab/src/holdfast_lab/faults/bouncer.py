"""A case's own PgBouncer in front of PostgreSQL, in transaction mode, which may be killed and restarted."""

import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

from holdfast_lab.faults.programs import Program, ProgramFailed, free_port, listens

_START_SECONDS = 20.0
_CLIENTS = 500
# Like a distribution's default, except for the mode, the location and a pool smaller than its clients could use.
# By default PgBouncer would wait 15 s after a failed login before it tries again.
_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} {password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = {clients}
server_login_retry = 1
"""


class Bouncer:
    """Runs for a `with` block; `url` leads through it. Every call blocks until it is done."""

    def __init__(self, url: str, folder: Path, *, pool: int = 4) -> None:
        """`url`: of a server reached over TCP, because PgBouncer gets another account when this process is root."""
        self._url = url
        self._folder = folder
        self.port = free_port()
        self._program = Program(folder, lambda: listens(self.port), _START_SECONDS)
        parts = urlsplit(url)
        password = unquote(parts.password or "").replace("'", "''")
        self._configuration = _CONFIGURATION.format(
            host=parts.hostname,
            port=parts.port or 5432,
            user=unquote(parts.username or "postgres"),
            password=f"password='{password}'" if password else "",
            listen_port=self.port,
            pool=pool,
            clients=_CLIENTS,
        )

    @property
    def url(self) -> str:
        parts = urlsplit(self._url)
        gone = ("host", "port", "sslmode")
        options = {name: values[-1] for name, values in parse_qs(parts.query).items() if name not in gone}
        user = parts.username or "postgres"
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}", query=urlencode(options)))

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(self._configuration)
        # PgBouncer refuses to run as root.
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if account is not None:
            for path in (self._folder, configuration):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._account = account
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        program = bouncer_program()
        if program is None:
            raise ProgramFailed("PgBouncer is not installed")
        account = self._account
        self._program.start(
            # A relative name, because its account may not be allowed to enter the folders above.
            [program, "pgbouncer.ini"],
            cwd=self._folder,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    def kill(self) -> None:
        """Send SIGKILL: every client loses its connection, and PostgreSQL rolls back open transactions."""
        self._program.end(signal.SIGKILL)


def bouncer_program() -> Path | None:
    """The installed PgBouncer program, if any. It is often in a folder that is only in root's PATH."""
    found = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    return Path(found) if found else None
