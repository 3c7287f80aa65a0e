-- The day after the last day of the partitions that begin on this day, according to their bounds. Null if there are
-- none, or if their bounds are not what add_partitions makes. Bounds of a range of uuids have one spelling, whatever
-- the session settings are.
CREATE OR REPLACE FUNCTION holdfast.part_end(day date) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT ending.upto
    FROM pg_class AS job_part
    JOIN pg_class AS finished_part
      ON finished_part.oid = to_regclass(format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD')))
    CROSS JOIN LATERAL (SELECT pg_get_expr(job_part.relpartbound, job_part.oid) AS bounds OFFSET 0) AS found
    CROSS JOIN LATERAL (
        SELECT holdfast.day_of(nullif(split_part(found.bounds, '''', 4), '')::uuid) AS upto OFFSET 0
    ) AS ending
    WHERE job_part.oid = to_regclass(format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD')))
      AND found.bounds = pg_get_expr(finished_part.relpartbound, finished_part.oid)
      AND found.bounds = format('FOR VALUES FROM (%L) TO (%L)', holdfast.first_id(day::timestamp AT TIME ZONE 'UTC'),
                                holdfast.first_id(ending.upto::timestamp AT TIME ZONE 'UTC'))
$$;
