"""A real RabbitMQ: the one on localhost, an installed one that is started, or one that the tests may install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast_lab.faults.broker import OwnBroker as PrivateBroker
from holdfast_lab.faults.broker import answers, broker_program

__all__ = ["PrivateBroker", "answers", "installed_program"]

_HOW = (
    "no RabbitMQ: start one on localhost:5672 (docker run -p 5672:5672 rabbitmq), or install rabbitmq-server, or run "
    "as root on Debian with HOLDFAST_TEST_INSTALL=1, which installs it"
)


def installed_program() -> Path:
    """The path of the program. Skips the test if RabbitMQ is neither installed nor may be installed."""
    found = broker_program()
    if found is None and os.environ.get("HOLDFAST_TEST_INSTALL") == "1" and os.geteuid() == 0:
        _install()
        found = broker_program()
    if found is None:
        pytest.skip(_HOW)
    return found


def _install() -> None:
    apt = shutil.which("apt-get")
    if apt is not None:
        # Do not start the service of Debian's package.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(
            [apt, "install", "-y", "--no-install-recommends", "rabbitmq-server"],
            env=environment,
            check=False,
            timeout=600,
        )
