-- Every sequence, with the number that it gave out last; null: none yet.
SELECT sequencename AS name, data_type::text AS type, last_value AS last
FROM pg_sequences WHERE schemaname = $1
ORDER BY sequencename
