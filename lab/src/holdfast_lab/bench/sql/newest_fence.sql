-- Rises by one with every claimed job, and costs one page to read, however large the tables are.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM holdfast.fence
