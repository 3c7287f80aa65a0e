"""Loads the laboratory's own .sql files."""

from pathlib import Path

from holdfast.store.postgres.sql_files import statement_in

_HERE = Path(__file__).parent / "sql"


def fault_statement(name: str, schema: str) -> str:
    """The statement of sql/<name>.sql, without comments."""
    return statement_in(_HERE, name, schema)
