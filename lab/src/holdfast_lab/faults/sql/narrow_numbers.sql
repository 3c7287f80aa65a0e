-- Columns that take their numbers from a sequence but are too narrow for them.
SELECT format('%s.%s', table_name, column_name) AS name
FROM information_schema.columns
WHERE table_schema = $1 AND data_type IN ('integer', 'smallint')
  AND (is_identity = 'YES' OR column_default LIKE 'nextval%' OR column_name IN ('fence', 'number'))
