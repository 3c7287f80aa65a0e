"""The store on PostgreSQL: one file per question, the SQL in sql/ (statements) and schema/ (tables, functions)."""
