-- All sequences, each with its last number; null if it has given out none.
SELECT sequencename AS name, data_type::text AS type, last_value AS last
FROM pg_sequences WHERE schemaname = $1
ORDER BY sequencename
