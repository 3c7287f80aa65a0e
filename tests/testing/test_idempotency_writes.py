"""Which tables a statement writes to."""

import pytest

from holdfast.testing.idempotency.writes import Table, unobserved, written

STATEMENTS = {
    "INSERT INTO invoice (id) VALUES (1)": {"invoice"},
    'insert into "Invoice" values (1)': {"Invoice"},
    "INSERT INTO Books.Entry VALUES (1)": {"books.entry"},
    "UPDATE stock SET amount = 1": {"stock"},
    "UPDATE ONLY stock AS s SET amount = 1": {"stock"},
    "UPDATE stock s SET amount = 1": {"stock"},
    "DELETE FROM ONLY stock WHERE true": {"stock"},
    "MERGE INTO stock USING new ON true WHEN MATCHED THEN DO NOTHING": {"stock"},
    "TRUNCATE TABLE stock": {"stock"},
    'COPY "public"."stock" (a, b) FROM STDIN': {"public.stock"},
    "COPY stock TO STDOUT": set(),
    "WITH moved AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM moved": {"a", "b"},
    "INSERT INTO a VALUES (1) ON CONFLICT (id) DO UPDATE SET n = a.n + 1": {"a"},
    "SELECT * FROM a FOR UPDATE": set(),
    "SELECT * FROM a FOR NO KEY UPDATE SKIP LOCKED": set(),
    "SELECT 'INSERT INTO a', 1 -- DELETE FROM b": set(),
    "/* UPDATE a SET b = 1 */ SELECT 1": set(),
}


@pytest.mark.parametrize("sql", STATEMENTS)
def test_the_tables_that_a_statement_writes_to_are_found(sql: str) -> None:
    assert {str(table) for table in written([sql])} == STATEMENTS[sql]


def test_named_tables_read_tables_and_holdfast_tables_count_as_observed() -> None:
    tables = written(["INSERT INTO a.one SELECT 1", "DELETE FROM two", "DELETE FROM three", 'DELETE FROM "hf".job'])
    found = unobserved(tables, [Table.of("one")], ["SELECT count(*) FROM public.two; SELECT 1 AS threefold"], "hf")
    assert list(map(str, found)) == ["three"]
