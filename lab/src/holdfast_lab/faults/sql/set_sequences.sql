-- $1 schema, $2 the number that each gave out last
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, $2::bigint)
FROM pg_sequences WHERE schemaname = $1
