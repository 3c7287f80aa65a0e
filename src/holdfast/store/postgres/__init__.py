"""The store on PostgreSQL: one file per concern, with its SQL in sql/ (statements) and schema/ (tables, functions)."""
