-- $1 schema, $2 the new last number of each sequence
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, $2::bigint)
FROM pg_sequences WHERE schemaname = $1
