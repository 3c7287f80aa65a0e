-- The first day of each partition and the day after its last, which is null if its bounds are not what add_partitions
-- makes.
CREATE OR REPLACE FUNCTION holdfast.partition_days() RETURNS TABLE (day date, upto date) LANGUAGE sql STABLE AS $$
    SELECT part.day, ending.upto
    FROM (
        SELECT to_date(substr(pg_class.relname, 5), 'YYYYMMDD') AS day, pg_class.relname AS name
        FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = 'holdfast.job'::regclass AND pg_class.relname ~ '^job_[0-9]{8}$'
    ) AS part
    CROSS JOIN LATERAL (SELECT holdfast.part_end(part.day) AS upto OFFSET 0) AS ending
    -- Exclude a partition that another session has dropped meanwhile.
    WHERE ending.upto IS NOT NULL OR to_regclass(format('holdfast.%I', part.name)) IS NOT NULL
    ORDER BY part.day
$$;
