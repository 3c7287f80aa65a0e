"""Just enough of a standby to send feedback, speaking the replication protocol directly."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import pq


@contextmanager
def feedback_given(url: str, slot: str | None, xmin: int) -> Iterator[None]:
    """Report that this standby still needs what `xmin` sees, through a slot or without one."""
    separator = "&" if "?" in url else "?"
    connection = pq.PGconn.connect(f"{url}{separator}replication=true&application_name=standby".encode())
    try:
        assert connection.status == pq.ConnStatus.OK, connection.error_message
        identity = connection.exec_(b"IDENTIFY_SYSTEM")
        position = identity.get_value(0, 2) or b"0/0"
        through = f"SLOT {slot} " if slot else ""
        started = connection.exec_(b"START_REPLICATION " + through.encode() + b"PHYSICAL " + position)
        assert started.status == pq.ExecStatus.COPY_BOTH, connection.error_message
        connection.put_copy_data(b"h" + struct.pack("!qIIII", 0, xmin & 0xFFFFFFFF, xmin >> 32, 0, 0))
        connection.flush()
        yield
    finally:
        connection.finish()
