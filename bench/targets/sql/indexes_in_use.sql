-- The indexes of the tables that a running queue touches all the time, and the columns of each in order. Includes all
-- tables except the days of history, no matter how the layout names them.
SELECT index.indrelid::regclass::text AS tabled,
       (SELECT string_agg(pg_get_indexdef(index.indexrelid, number, true), ', ' ORDER BY number)
        FROM generate_series(1, index.indnkeyatts::integer) AS number) AS columns
FROM pg_index AS index
JOIN pg_class AS named ON named.oid = index.indrelid
WHERE index.indpred IS NULL
  AND named.relnamespace = 'holdfast'::regnamespace
  AND named.relkind = 'r'
  AND (named.relname !~ '_[0-9]{8}$' OR named.relname LIKE '%' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD'))
ORDER BY named.relname, index.indexrelid
