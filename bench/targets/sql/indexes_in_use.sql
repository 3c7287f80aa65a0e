-- The indexes of the tables that a running queue touches all the time, and the columns by which each is ordered.
SELECT index.indrelid::regclass::text AS tabled,
       (SELECT string_agg(pg_get_indexdef(index.indexrelid, number, true), ', ' ORDER BY number)
        FROM generate_series(1, index.indnkeyatts::integer) AS number) AS columns
FROM pg_index AS index, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD') AS today
WHERE index.indpred IS NULL
  AND index.indrelid IN (to_regclass('holdfast.ready'), to_regclass('holdfast.lease'),
                         to_regclass('holdfast.job_' || today), to_regclass('holdfast.finished_' || today))
