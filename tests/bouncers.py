"""A PgBouncer in front of a test database's server, with a pool smaller than its clients could use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_lab.faults.bouncer import Bouncer, bouncer_program
from holdfast_lab.faults.proxy import Proxy

needs_pgbouncer = pytest.mark.skipif(bouncer_program() is None, reason="PgBouncer is not installed")


@contextmanager
def bounced(url: str, folder: Path, *, pool: int = 2) -> Iterator[Bouncer]:
    """Over TCP, because PgBouncer may lack access to the folder of an embedded server's socket."""
    with Proxy.before(url) as proxy, Bouncer(proxy.url, folder / "pgbouncer", pool=pool) as bouncer:
        yield bouncer
