"""A case's own RabbitMQ, which it may stop: an installed one, in a separate folder and on free ports."""

import os
import shutil
import signal
import socket
from pathlib import Path
from uuid import uuid4

from holdfast_lab.faults.programs import Program, free_port

_PROGRAMS = (
    "/usr/lib/rabbitmq/bin/rabbitmq-server",  # Debian's wrapper in the path insists on its own user and folders
    "/opt/homebrew/sbin/rabbitmq-server",
    "/usr/local/sbin/rabbitmq-server",
)
_HELLO = b"AMQP\x00\x00\x09\x01"
_START_SECONDS = 60.0


class OwnBroker:
    """A node without plugins. It starts in about 5 s; every call blocks until it is done."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self.port = free_port()
        self._node = Program(folder, lambda: answers(self.port), _START_SECONDS)
        self._environment = (
            {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
            | {
                "HOME": str(folder),  # the cookie
                "RABBITMQ_NODENAME": f"holdfast-{uuid4().hex[:12]}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                "RABBITMQ_LOG_BASE": str(folder / "log"),
                "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
                "RABBITMQ_CONFIG_FILE": str(folder / "no-config"),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
            }
        )
        (folder / "plugins").write_text("[].")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        self._node.start([self._program], env=self._environment)

    def stop(self) -> None:
        """Shut down in an orderly way: it closes all connections first."""
        self._node.end(signal.SIGTERM, signal.SIGKILL)


def broker_program() -> Path | None:
    """The installed program that starts RabbitMQ, if any."""
    for program in (*_PROGRAMS, shutil.which("rabbitmq-server")):
        if program is not None and Path(program).exists():
            return Path(program)
    return None


def answers(port: int) -> bool:
    """Whether a server speaks AMQP on this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(_HELLO)
            return bool(connection.recv(1))
    except OSError:
        return False
