"""The address of another database on the same server, in a form that every peer's driver reads."""

import psycopg
import pytest

from bench.peers.databases import with_database


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("postgresql://me:secret@host:5433/postgres", "postgresql://me:secret@host:5433/other"),
        ("postgresql://host/postgres?sslmode=require", "postgresql://host/other?sslmode=require"),
        ("postgresql://me@/postgres?host=%2Frun%2Fsocket", "postgresql:///other?host=%2Frun%2Fsocket&user=me"),
        ("postgresql:///postgres?host=%2Frun%2Fsocket&user=me", "postgresql:///other?host=%2Frun%2Fsocket&user=me"),
    ],
)
def test_only_the_database_changes(server: str, expected: str) -> None:
    assert with_database(server, "other") == expected


def test_a_driver_reads_the_address_of_a_socket() -> None:
    address = with_database("postgresql://me@/postgres?host=/run/socket&port=5499", "a database")

    assert psycopg.conninfo.conninfo_to_dict(address) == {
        "user": "me",
        "dbname": "a database",
        "host": "/run/socket",
        "port": "5499",
    }
