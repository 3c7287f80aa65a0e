"""A PgBouncer before the server of a test's database, with a smaller pool than its clients could use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_lab.faults.bouncer import Bouncer, bouncer_program
from holdfast_lab.faults.proxy import Proxy

needs_pgbouncer = pytest.mark.skipif(bouncer_program() is None, reason="PgBouncer is not installed")


@contextmanager
def bounced(url: str, folder: Path, *, pool: int = 2) -> Iterator[Bouncer]:
    """By TCP, because PgBouncer may not enter the folder of an embedded server's socket."""
    with Proxy.before(url) as proxy, Bouncer(proxy.url, folder / "pgbouncer", pool=pool) as bouncer:
        yield bouncer
