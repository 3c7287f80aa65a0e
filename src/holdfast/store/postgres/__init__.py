"""The store on PostgreSQL: one file per question, the SQL in sql/ (a statement per verb) and migrations/."""
